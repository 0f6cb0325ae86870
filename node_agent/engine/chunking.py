"""Where the next prefill chunk of a row ends. Pure; called by both runners."""

from collections.abc import Sequence

# mlx-lm's caches grow by whole steps of this many tokens, from wherever they stand. Chunks that
# never cross a step keep the buffers at whole steps, as the estimator counts them.
STEP_TOKENS = 256


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
