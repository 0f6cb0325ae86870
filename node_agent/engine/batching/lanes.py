"""How the forward pass of a chunk uses the cores there are.

MLX runs the operations of a stream one at a time, and on a CPU only matrix products use more cores
than one: while scores become weights, the others idle. So where BLAS has two threads a chunk is
cut in two, each half on a stream of its own with one of them. Layer by layer a part needs of
the part before it only what that has put into the cache, so they go through the model side by
side, one layer behind the other at most. It is the same arithmetic as feeding the parts in turn.
Owns the streams and BLAS's number of threads. Called on the MLX thread.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from typing import Any

import mlx.core as mx
from mlx import nn
from threadpoolctl import ThreadpoolController

# Each lane more may hold another copy of a layer's keys and values, and the estimator counts one.
MOST_LANES = 2
# A part with fewer tokens, over all rows, takes as long as one with as many.
MIN_PART_TOKENS = 12
_OPENBLAS = "libopenblas"


class Lanes:
    """A model, and the streams its chunks go on; with one, a pass is the model's own."""

    def __init__(
        self, model: nn.Module, count: int = 1, blas: ThreadpoolController | None = None
    ) -> None:
        """Hold `blas` to one thread while several parts are under way."""
        self.model, self._blas = model, blas
        device = mx.default_device()
        self._streams = [mx.new_stream(device) for _ in range(count)] if count > 1 else []

    @property
    def count(self) -> int:
        """How many parts of a chunk are fed side by side at most."""
        return max(1, len(self._streams))

    def feed(
        self, chunk: Sequence[Sequence[int]], cache: list[Any], *, said: bool
    ) -> mx.array | None:
        """Feed the next tokens of each row and evaluate the cache.

        Returns what the last token says, if that is wanted. Shapes: chunk (rows, tokens); returns
        (rows, 1, vocabulary). Mutates: the cache.
        """
        parts = cut_parts(len(chunk), len(chunk[0]), self.count)
        logits: mx.array | None = None
        for lane, (start, end) in enumerate(parts):
            tokens = [list(row[start:end]) for row in chunk]
            with nullcontext() if len(parts) == 1 else mx.stream(self._streams[lane]):
                # A copy: a view would hold on to what all the tokens say.
                logits = mx.contiguous(self.model(mx.array(tokens), cache=cache)[:, -1:, :])
        logits = logits if said else None
        with self._one_thread_each(len(parts)):
            # Unless they are wanted, logits are never computed.
            mx.eval([layer.state for layer in cache], logits)
        return logits

    def _one_thread_each(self, parts: int) -> AbstractContextManager[Any]:
        return nullcontext() if parts == 1 or self._blas is None else self._blas.limit(limits=1)


def cut_parts(rows: int, tokens: int, lanes: int) -> list[tuple[int, int]]:
    """Return where the parts of a chunk begin and end: even, and at most as many as lanes.

    Pure. Units: tokens of each row.
    """
    count = max(1, min(lanes, tokens // 2, rows * tokens // MIN_PART_TOKENS))
    ends = [tokens * part // count for part in range(count + 1)]
    return list(pairwise(ends))


def lanes_for(libraries: Sequence[Mapping[str, Any]]) -> int:
    """Return how many lanes suit these BLAS libraries, as threadpoolctl describes them. Pure.

    One for each thread of an OpenBLAS that several threads may call at once; one with any other,
    and where there are more threads than there may be lanes. NumPy's own has another name.
    """
    ours = [one for one in libraries if one["prefix"] == _OPENBLAS]
    if len(ours) != 1 or ours[0]["threading_layer"] != "pthreads":
        return 1
    threads = int(ours[0]["num_threads"])
    return threads if threads <= MOST_LANES else 1


def find_lanes(model: nn.Module) -> Lanes:
    """Return the lanes for this device: on a GPU one pass at a time is best."""
    if mx.default_device().type == mx.DeviceType.gpu:
        return Lanes(model)
    blas = ThreadpoolController().select(prefix=_OPENBLAS)
    return Lanes(model, lanes_for(blas.info()), blas)
