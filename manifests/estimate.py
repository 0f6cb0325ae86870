"""How many bytes a model and its requests need, from `config.json` and safetensors headers.

Owns the arithmetic that the agent, the placement and the gateway share, so that they agree to
the byte. It never imports MLX and never reads weights. `tests/bench/estimate_accuracy.py` compares
it with measured peaks.
"""

from dataclasses import dataclass

from manifests.architecture import read_shape
from manifests.meta import Reported
from manifests.shape import LayerGroup, LayerKind, ModelShape

__all__ = [
    "CACHE_STEP_TOKENS",
    "ENGINE_BASE_BYTES",
    "EngineEstimate",
    "LayerGroup",
    "LayerKind",
    "ModelShape",
    "PrefillCase",
    "PrefillEstimate",
    "estimate_bytes_per_token",
    "estimate_engine",
    "estimate_kv_bytes",
    "estimate_prefill",
    "estimate_tokens_that_fit",
    "read_shape",
]

# mlx-lm's caches grow by whole steps. Source: mlx-lm 0.32.2, models/cache.py, `KVCache.step`.
CACHE_STEP_TOKENS = 256

# What an engine process holds besides weights and requests: Python, mlx, mlx-lm and up to 32 MiB
# of buffers that MLX keeps for reuse. Source: RSS minus active memory after a prefill was 96 MB
# (tiny model) and 118 MB (SmolLM2), mlx 0.32.4, Linux CPU, 2026-11-28. Not measured on Metal.
ENGINE_BASE_BYTES = 192 << 20

# A mask is one byte for each pair of a prefilled token and a remembered one.
MASK_BYTES = 1
CHUNKED_MASK_BYTES = 9  # Llama 4 builds its mask from whole numbers

# Mamba works in blocks of this many tokens, in fp32. Source: mlx-lm 0.32.2, `ssm_attn`.
BLOCK_TOKENS = 256
FLOAT_BYTES = 4

# Logits of the last position, in fp32: the model's own, normalised, and sorted to sample.
LOGITS_COPIES = 4

# Metal's fused attention takes these head sizes when it prefills. Source: MLX's
# scaled_dot_product_attention.cpp; we have not run Metal.
FUSED_HEAD_DIMS = frozenset((64, 80, 128))


class PrefillCase(Reported):
    """One request's demand. Units: tokens; `rows` requests of this size run as one batch.

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
    """Return what one row's caches hold after `tokens`, padded as mlx-lm pads them."""
    return sum(
        group.layers * (_held_tokens(group, tokens, chunk_tokens) * group.bytes_per_token)
        + group.layers * group.constant_bytes
        for group in shape.groups
    )


def estimate_bytes_per_token(shape: ModelShape) -> int:
    """Return how much one more token adds once every window is full."""
    return sum(group.layers * group.bytes_per_token for group in shape.groups if _unbounded(group))


def estimate_prefill(
    shape: ModelShape, case: PrefillCase, *, fused: bool = False
) -> PrefillEstimate:
    """Return what a request needs at its worst moment, in prefill or at the end of decode.

    `fused` says that the engine's device has fused kernels, which Metal has and a CPU has not;
    whether attention is among them depends on the model's head size.
    """
    parts = _parts(shape, case, fused=fused)
    return PrefillEstimate(
        kv_bytes=parts.end_kv_bytes,
        scores_bytes=parts.scores_bytes,
        activations_bytes=parts.activations_bytes,
        growth_bytes=parts.growth_bytes,
        peak_bytes=parts.peak_bytes,
    )


def estimate_tokens_that_fit(
    shape: ModelShape,
    free_bytes: int,
    *,
    chunk_tokens: int,
    max_tokens: int = 0,
    fused: bool = False,
) -> int:
    """Return the longest prompt whose peak is at most `free_bytes`; 0 when none fits.

    Never more than the model's own context leaves beside `max_tokens`.
    """
    low, high = 0, max(0, shape.context_tokens - max_tokens)
    while low < high:
        middle = (low + high + 1) // 2
        case = PrefillCase(prompt_tokens=middle, max_tokens=max_tokens, chunk_tokens=chunk_tokens)
        if _parts(shape, case, fused=fused).peak_bytes <= free_bytes:
            low = middle
        else:
            high = middle - 1
    return low


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
    prompt_tokens = max(1, case.prompt_tokens)
    end_tokens = prompt_tokens + max(0, case.max_tokens)
    chunk = max(1, min(case.chunk_tokens, prompt_tokens - case.cached_tokens))
    kv_bytes = rows * estimate_kv_bytes(shape, prompt_tokens, chunk_tokens=case.chunk_tokens)
    end_kv_bytes = rows * estimate_kv_bytes(shape, end_tokens, chunk_tokens=case.chunk_tokens)
    scores_bytes = rows * chunk * _score_bytes(shape, prompt_tokens, chunk, fused=fused)
    activations_bytes = rows * _activation_bytes(shape, prompt_tokens, chunk, fused=fused)
    growth_bytes = rows * _growth_bytes(shape, prompt_tokens, chunk)
    end_growth_bytes = rows * _growth_bytes(shape, end_tokens, 1)
    logits_bytes = rows * shape.vocab_size * LOGITS_COPIES * FLOAT_BYTES
    return _Parts(
        end_kv_bytes=end_kv_bytes,
        scores_bytes=scores_bytes,
        activations_bytes=activations_bytes,
        growth_bytes=growth_bytes,
        peak_bytes=max(
            kv_bytes + scores_bytes + activations_bytes + growth_bytes,
            end_kv_bytes + end_growth_bytes + logits_bytes,
        ),
    )


def _latent(shape: ModelShape) -> bool:
    return any(group.kind is LayerKind.MLA for group in shape.groups)


def _unbounded(group: LayerGroup) -> bool:
    return group.kind in {LayerKind.FULL, LayerKind.MLA}


def _whole_steps(tokens: int) -> int:
    return -(-tokens // CACHE_STEP_TOKENS) * CACHE_STEP_TOKENS


def _seen_tokens(group: LayerGroup, tokens: int, chunk_tokens: int) -> int:
    """Return how many tokens a layer attends to while it prefills its last chunk."""
    if group.window_tokens is None:
        return tokens
    return min(tokens, group.window_tokens + chunk_tokens)


def _held_tokens(group: LayerGroup, tokens: int, chunk_tokens: int) -> int:
    """Return the length of a layer's buffers, padding included."""
    if group.kind is LayerKind.RECURRENT:
        return 0
    seen = _seen_tokens(group, tokens, chunk_tokens)
    if group.kind is LayerKind.SLIDING:
        return seen
    if group.window_tokens is not None:
        return min(_whole_steps(tokens), group.window_tokens + _whole_steps(chunk_tokens))
    aligned = chunk_tokens % CACHE_STEP_TOKENS == 0 or CACHE_STEP_TOKENS % chunk_tokens == 0
    if aligned:
        return _whole_steps(seen)
    return seen + CACHE_STEP_TOKENS - 1


def _score_bytes(shape: ModelShape, tokens: int, chunk_tokens: int, *, fused: bool) -> int:
    """Return the bytes of scores and mask for one prefilled token, in the widest layer."""
    copies = shape.score_copies
    if fused and _latent(shape):
        copies -= 1  # the fused kernel still wants the rotary scores, as its mask
    elif fused and shape.head_dim in FUSED_HEAD_DIMS:
        copies = 0
    scores = copies * shape.attention_heads * shape.dtype_bytes
    widest = 0
    for group in shape.groups:
        if group.kind is LayerKind.RECURRENT:
            continue
        mask = CHUNKED_MASK_BYTES if group.kind is LayerKind.CHUNKED else MASK_BYTES
        widest = max(widest, _seen_tokens(group, tokens, chunk_tokens) * (scores + mask))
    return widest


def _activation_bytes(shape: ModelShape, tokens: int, chunk_tokens: int, *, fused: bool) -> int:
    elements = shape.row_elements or 8 * (shape.intermediate_size + shape.hidden_size)
    widest = (chunk_tokens * elements + tokens * shape.expanded_elements) * shape.dtype_bytes
    return widest + _retained_bytes(shape, chunk_tokens, fused=fused)


def _retained_bytes(shape: ModelShape, chunk_tokens: int, *, fused: bool) -> int:
    """Return what recurrent layers hold on to until the whole chunk is computed."""
    block_bytes = min(chunk_tokens, BLOCK_TOKENS) ** 2 * FLOAT_BYTES
    total = 0
    for group in shape.groups:
        if group.block_heads:
            total += (group.layers + 2) * group.block_heads * block_bytes
        if group.block_heads or not fused:
            total += group.layers * group.retained_row_bytes * chunk_tokens
    return total


def _growth_bytes(shape: ModelShape, tokens: int, chunk_tokens: int) -> int:
    """Return what growing one layer's cache takes: a second copy and the room that is added."""
    added = _whole_steps(chunk_tokens)
    return max(
        (
            group.bytes_per_token * (_seen_tokens(group, tokens, chunk_tokens) + added)
            for group in shape.groups
        ),
        default=0,
    )
