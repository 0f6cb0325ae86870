"""Where the next prefill chunk of a row ends. Pure; called by both runners."""

from collections.abc import Sequence

from manifests.sizing.estimate import MOST_WITH_LAST_TOKENS

# mlx-lm's caches grow by whole steps of this many tokens, from wherever they stand. Chunks that
# never cross a step keep the buffers at whole steps, as the estimator counts them.
STEP_TOKENS = 256


# Equal parts are made as few as they can be with none this much wider than fits. Narrower ones
# cost more: a chunk is also a decode step, and its forward pass reads all weights.
STRETCH = 1.1


def even_part(way_tokens: int, limit_tokens: int) -> int:
    """Return the width of the parts of a way when no rest is to be left.

    About `limit_tokens` at most; see `STRETCH`.
    """
    parts = -(-way_tokens // max(1, int(limit_tokens * STRETCH)))
    return -(-way_tokens // max(1, parts))


def cut_chunk(fed_tokens: int, last_tokens: int, limit_tokens: int, stops: Sequence[int]) -> int:
    """Return how many tokens the next chunk feeds; 0 when all but the last token are fed.

    It ends at `last_tokens`, at the limit, at the next step boundary it would cross, or at the
    next of `stops`: offsets, ascending, at which somebody wants the cache as it stands there.
    """
    end = min(fed_tokens + max(1, limit_tokens), last_tokens)
    if end < last_tokens:
        boundary = end - end % STEP_TOKENS
        if boundary > fed_tokens:
            end = boundary
    for stop in stops:
        if fed_tokens < stop < end:
            end = stop
            break
    return max(0, end - fed_tokens)


def takes_last(
    chunk_tokens: int, last_tokens: int, limit_tokens: int, stops: Sequence[int]
) -> bool:
    """Return whether a chunk that ends at `last_tokens` takes the token there along.

    Its logits are wanted, and that is one forward pass less; in a wider chunk the logits of all
    its tokens would cost more than that pass.
    Not across a step boundary, and not where the cache is wanted as it stands before that token.
    """
    short = 0 < chunk_tokens < min(limit_tokens, MOST_WITH_LAST_TOKENS)
    return short and last_tokens % STEP_TOKENS > 0 and last_tokens not in stops
