"""Log-probabilities as plain numbers: the chosen token's and the best alternatives'.

Called on the MLX thread with evaluated arrays.
"""

from collections.abc import Sequence
from typing import cast

import mlx.core as mx

from node_agent.engine.messages import TokenLogprobs

# JSON has no infinity; this is what OpenAI's API shows for "practically never".
LOWEST_LOGPROB = -9999.0


def _finite(value: float) -> float:
    # NaN compares false, so it also becomes the lowest.
    return value if value > LOWEST_LOGPROB else LOWEST_LOGPROB


def pick_logprobs(
    rows: Sequence[tuple[mx.array, int, int]],
) -> list[TokenLogprobs]:
    """Return for each (log-probabilities, chosen token, top count) what is reported.

    All rows are read in one evaluation. `top` is sorted best first, equal ones by token id.
    Shapes: each array is (vocabulary,).
    """
    lazy: list[tuple[mx.array, mx.array, mx.array]] = []
    for logprobs, token, top_count in rows:
        count = min(top_count, logprobs.shape[-1])
        best = mx.argsort(-logprobs)[:count]
        lazy.append((logprobs[token], best, logprobs[best]))
    mx.eval(lazy)
    return [_read_one(*arrays) for arrays in lazy]


def _read_one(chosen: mx.array, ids: mx.array, values: mx.array) -> TokenLogprobs:
    best_ids = cast(list[int], ids.tolist())
    best = [_finite(value) for value in cast(list[float], values.astype(mx.float32).tolist())]
    top = sorted(zip(best_ids, best, strict=True), key=lambda pair: (-pair[1], pair[0]))
    return TokenLogprobs(logprob=_finite(cast(float, chosen.item())), top=top)
