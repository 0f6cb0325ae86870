"""How many bytes a model and its requests need, from `config.json` and safetensors headers.

Owns the arithmetic that the agent, the placement, the gateway and the engines' gates share, so that
they agree to the byte. It never imports MLX and never reads weights; the formulas of single layers
are `sizing.layer_bytes`. `tests/bench/estimate_accuracy.py` compares it with measured peaks.

The engine it describes feeds one row at a time on a cache of its own, every token but the last, in
chunks that keep buffers at whole steps; then the row joins those being decoded, layer by layer.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from manifests.kinds.meta import Reported
from manifests.sizing.architecture import read_shape
from manifests.sizing.image_tokens import estimate_image_tokens
from manifests.sizing.layer_bytes import (
    CACHE_STEP_TOKENS,
    FLOAT_BYTES,
    LOGITS_COPIES,
    MOST_WITH_LAST_TOKENS,
    copied_bytes,
    decode_bytes,
    is_unbounded,
    layer_bytes,
    layer_copies,
    passing_bytes,
    whole_steps,
)
from manifests.sizing.shape import LayerGroup, LayerKind, ModelShape

__all__ = [
    "CACHE_STEP_TOKENS",
    "ENGINE_BASE_BYTES",
    "FLOAT_BYTES",
    "LOGITS_COPIES",
    "MOST_WITH_LAST_TOKENS",
    "EngineEstimate",
    "LayerGroup",
    "LayerKind",
    "ModelShape",
    "PrefillCase",
    "PrefillEstimate",
    "estimate_bytes_per_token",
    "estimate_chunk",
    "estimate_engine",
    "estimate_image_tokens",
    "estimate_join_bytes",
    "estimate_kv_bytes",
    "estimate_prefill",
    "estimate_tokens_that_fit",
    "read_shape",
    "scale_transient",
]

# What an engine process holds besides weights and requests: Python, mlx, mlx-lm and up to 32 MiB
# of buffers that MLX keeps for reuse. Source: RSS minus active memory after a prefill was 96 MB
# (tiny model) and 118 MB (SmolLM2), mlx 0.32.4, Linux CPU, 2026-11-28. Not measured on Metal.
ENGINE_BASE_BYTES = 192 << 20


class PrefillCase(Reported):
    """One request's demand. Units: tokens; `rows` such rows are held together, one feeds at a time.

    `cached_tokens` of the prompt are restored, not computed, but still copied into memory.
    """

    prompt_tokens: int
    cached_tokens: int = 0
    max_tokens: int = 0
    chunk_tokens: int = 512
    rows: int = 1


class PrefillEstimate(Reported):
    """Where the bytes of a request go; `peak_bytes` is what must be free before it starts.

    `kv_bytes` is held until the request ends and counts its whole output. The others come and
    go: scores (with their mask), activations, and the copy made while one layer's cache grows.
    """

    kv_bytes: int
    scores_bytes: int
    activations_bytes: int
    growth_bytes: int
    peak_bytes: int


@dataclass(frozen=True, slots=True)
class EngineEstimate:
    """What one engine takes: its weights, one request that fills its context, and the sum.

    `needed_bytes` adds what every engine process holds.
    """

    weights_bytes: int
    context_bytes: int
    needed_bytes: int


def estimate_kv_bytes(shape: ModelShape, tokens: int, *, chunk_tokens: int) -> int:
    """Return what one row's caches hold after `tokens`, padded as mlx-lm pads them.

    `chunk_tokens` is the width of the last chunk, which windowed layers hold besides their window;
    0 once tokens are decoded one by one.
    """
    held = 0
    for group in shape.groups:
        held += group.layers * layer_bytes(group, tokens, chunk_tokens)
    return held


def estimate_bytes_per_token(shape: ModelShape) -> int:
    """Return how much one more token adds once every window is full."""
    return sum(
        group.layers * group.bytes_per_token for group in shape.groups if is_unbounded(group)
    )


def estimate_chunk(
    shape: ModelShape,
    *,
    held_tokens: int,
    chunk_tokens: int,
    last_chunk_tokens: int = 0,
    fused: bool = False,
) -> int:
    """Return what the next chunk of a row takes over what is held when it begins.

    Growth of the caches, the copy made while a layer grows, scores and activations; never less
    for a longer chunk. `held_tokens` are in the cache already, in buffers of whole steps.
    `last_chunk_tokens` is how many of them the chunk before fed: windowed layers still hold those,
    so less is added. 0 is always safe.
    """
    end_tokens = held_tokens + chunk_tokens
    added = copied = 0
    for group in shape.groups:
        if group.kind is LayerKind.RECURRENT:
            added += 0 if held_tokens else group.layers * group.constant_bytes
            copied = max(copied, group.constant_bytes)
            continue
        before = layer_bytes(group, held_tokens, last_chunk_tokens)
        after = layer_bytes(group, end_tokens, chunk_tokens)
        if held_tokens % CACHE_STEP_TOKENS and is_unbounded(group) and after > before:
            # Room is added to what is held, not to whole steps.
            room_tokens = held_tokens + whole_steps(chunk_tokens)
            after = max(after, room_tokens * group.bytes_per_token)
        added += group.layers * max(0, after - before)
        turns = group.window_tokens is not None and end_tokens > group.window_tokens
        # A CPU writes the second half of a chunk while the first may still read what was held.
        if after > before or turns or not fused:
            copied = max(copied, after * layer_copies(fused=fused))
    scores, activations = passing_bytes(shape, end_tokens, chunk_tokens, fused=fused)
    return added + copied + scores + activations


def estimate_join_bytes(shape: ModelShape, group_tokens: Sequence[int], row_tokens: int) -> int:
    """Return what joining rows that are decoded takes, over what all of them hold.

    Units: tokens held by each row of the batch, and by the one that joins. Every row is padded to
    the longest, which stays; one layer exists twice meanwhile; then the first token is picked.
    """
    rows = len(group_tokens) + 1
    longest = max(row_tokens, *group_tokens, 0)
    held = estimate_kv_bytes(shape, row_tokens, chunk_tokens=0)
    if group_tokens:
        held += (rows - 1) * estimate_kv_bytes(shape, max(group_tokens), chunk_tokens=0)
    padding = rows * estimate_kv_bytes(shape, longest, chunk_tokens=0) - held
    return padding + rows * (copied_bytes(shape, longest, 0) + decode_bytes(shape, longest))


def estimate_prefill(
    shape: ModelShape, case: PrefillCase, *, fused: bool = False
) -> PrefillEstimate:
    """Return what a request needs at its worst moment: in prefill, joining, or at its end.

    Holds for every way of cutting the prompt into chunks of at most `chunk_tokens`. `fused` says
    that the engine's device has fused kernels, which Metal has and a CPU has not; whether
    attention is among them depends on the model's head size.
    """
    parts = _parts(shape, case, fused=fused)
    return PrefillEstimate(
        kv_bytes=parts.end_kv_bytes,
        scores_bytes=parts.scores_bytes,
        activations_bytes=parts.activations_bytes,
        growth_bytes=parts.growth_bytes,
        peak_bytes=parts.peak_bytes,
    )


def scale_transient(peak_bytes: int, transient_bytes: int, ratio: float) -> int:
    """Return a request's need with its transient scaled; what is held is exact and is not."""
    return peak_bytes + int(transient_bytes * (ratio - 1.0))


def estimate_tokens_that_fit(
    shape: ModelShape,
    free_bytes: int,
    *,
    chunk_tokens: int,
    max_tokens: int = 0,
    fused: bool = False,
    transient_ratio: float = 1.0,
) -> int:
    """Return the longest prompt whose peak is at most `free_bytes`; 0 when none fits.

    Never more than the model's own context leaves beside `max_tokens`. Transients are scaled by
    `transient_ratio`, which admission learns of each engine; less than 1 counts as 1.
    """

    def need_bytes(prompt_tokens: int) -> int:
        case = PrefillCase(
            prompt_tokens=prompt_tokens, max_tokens=max_tokens, chunk_tokens=chunk_tokens
        )
        parts = _parts(shape, case, fused=fused)
        transient = parts.scores_bytes + parts.activations_bytes
        return scale_transient(parts.peak_bytes, transient, max(1.0, transient_ratio))

    longest = max(0, shape.context_tokens - max_tokens)
    # Where a whole context fits, one look is enough.
    if not longest or need_bytes(longest) <= free_bytes:
        return longest
    return bisect_right(range(1, longest), free_bytes, key=need_bytes)


def estimate_engine(
    shape: ModelShape,
    weights_bytes: int,
    *,
    context_tokens: int,
    chunk_tokens: int,
    fused: bool = False,
) -> EngineEstimate:
    """Return what an engine needs to load and to serve one request that fills its context."""
    case = PrefillCase(prompt_tokens=context_tokens, chunk_tokens=chunk_tokens)
    context_bytes = _parts(shape, case, fused=fused).peak_bytes
    return EngineEstimate(
        weights_bytes=weights_bytes,
        context_bytes=context_bytes,
        needed_bytes=weights_bytes + context_bytes + ENGINE_BASE_BYTES,
    )


@dataclass(frozen=True, slots=True)
class _Parts:
    end_kv_bytes: int
    scores_bytes: int
    activations_bytes: int
    growth_bytes: int
    peak_bytes: int


def _parts(shape: ModelShape, case: PrefillCase, *, fused: bool) -> _Parts:
    rows = case.rows
    end_tokens = max(1, case.prompt_tokens) + max(0, case.max_tokens)
    end_kv_bytes = estimate_kv_bytes(shape, end_tokens, chunk_tokens=0)
    peak_bytes = rows * (
        end_kv_bytes + copied_bytes(shape, end_tokens, 0) + decode_bytes(shape, end_tokens)
    )
    scores_bytes = activations_bytes = growth_bytes = feeding_bytes = 0
    # Buffers of a prefix that ends within a step stay as far off whole steps.
    slack_tokens = CACHE_STEP_TOKENS - 1 if case.cached_tokens % CACHE_STEP_TOKENS else 0
    for tokens, width, logits_bytes in _widest_chunks(shape, case):
        kv_bytes = estimate_kv_bytes(shape, tokens + slack_tokens, chunk_tokens=width)
        one_bytes = copied_bytes(shape, tokens + slack_tokens, width)
        copied = layer_copies(fused=fused) * one_bytes
        scores, activations = passing_bytes(shape, tokens, width, fused=fused)
        others_bytes = (rows - 1) * max(kv_bytes, end_kv_bytes)
        activations += logits_bytes
        chunk_bytes = others_bytes + kv_bytes + copied + scores + activations
        if chunk_bytes > feeding_bytes:
            feeding_bytes = chunk_bytes
            scores_bytes, activations_bytes, growth_bytes = scores, activations, copied
    return _Parts(
        end_kv_bytes=rows * end_kv_bytes,
        scores_bytes=scores_bytes,
        activations_bytes=activations_bytes,
        growth_bytes=growth_bytes,
        peak_bytes=max(peak_bytes, feeding_bytes),
    )


def _widest_chunks(shape: ModelShape, case: PrefillCase) -> tuple[tuple[int, int, int], ...]:
    """Return the chunks that may take most: tokens each ends after, its width, bytes of its logits.

    The engine feeds equal chunks and then the rest. A cache with snapshots also ends chunks at
    its blocks, so there, and where widths are no whole part of a step, any cut is possible. A
    short last chunk, into which the rest of any prompt may be cut, has the logits of its tokens.
    """
    width = case.chunk_tokens
    last_tokens = max(1, case.prompt_tokens)
    feed_tokens = max(1, last_tokens - case.cached_tokens)
    said_tokens = min(width, feed_tokens, MOST_WITH_LAST_TOKENS)
    said = (last_tokens, said_tokens, said_tokens * shape.vocab_size * FLOAT_BYTES)
    if feed_tokens <= width:
        return ((last_tokens, feed_tokens, 0), said)
    aligned = width % CACHE_STEP_TOKENS == 0 or CACHE_STEP_TOKENS % width == 0
    sliceable = width <= CACHE_STEP_TOKENS or not any(
        group.kind is LayerKind.SLIDING or group.kind is LayerKind.RECURRENT
        for group in shape.groups
    )
    if not aligned or not sliceable or case.cached_tokens % CACHE_STEP_TOKENS:
        return ((last_tokens, width, 0), said)
    rest_tokens = feed_tokens % width
    full = (last_tokens - rest_tokens, width, 0)
    return (full, (last_tokens, rest_tokens, 0), said) if rest_tokens else (full, said)
