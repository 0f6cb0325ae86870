"""What layers hold, and what comes and goes while one chunk runs through them.

Owns the formulas behind `sizing.estimate`, which is what everybody else calls. Pure; every
figure is for one row. Source: mlx-lm 0.32.2's caches, and peaks measured with mlx 0.32.4 on a Linux
CPU by `tests/bench/estimate_accuracy.py`, 2026-11-28. Not measured on Metal.
"""

from manifests.sizing.shape import LayerGroup, LayerKind, ModelShape

# mlx-lm's caches grow by whole steps. Source: mlx-lm 0.32.2, models/cache.py, `KVCache.step`.
CACHE_STEP_TOKENS = 256

# A mask is one byte for each pair of a prefilled token and a remembered one.
MASK_BYTES = 1
CHUNKED_MASK_BYTES = 9  # Llama 4 builds its mask from whole numbers

# Mamba works in blocks of this many tokens, in fp32. Source: mlx-lm 0.32.2, `ssm_attn`.
BLOCK_TOKENS = 256
FLOAT_BYTES = 4

# Logits of the last position, in fp32: the model's own, normalised, and sorted to sample.
LOGITS_COPIES = 4

# A last chunk of at most so many tokens takes the prompt's last one along, whose logits are wanted;
# the model then computes those of the whole chunk.
MOST_WITH_LAST_TOKENS = 32

# Frees run beside the computation, so equal chunks measure a percent or two apart; one part in so
# many is added.
SLACK_PARTS = 50

# Metal's fused attention prefills these head sizes since mlx 0.32.1; others, 256 among them, run
# unfused and write their scores out. A CPU never fuses. Source: MLX's
# scaled_dot_product_attention.cpp, read and not run: we have no Metal.
FUSED_HEAD_DIMS = frozenset((64, 72, 80, 96, 128))


def whole_steps(tokens: int) -> int:
    """Return the room that a growing cache has once it holds `tokens`."""
    return -(-tokens // CACHE_STEP_TOKENS) * CACHE_STEP_TOKENS


def is_unbounded(group: LayerGroup) -> bool:
    """Say whether a layer keeps every token."""
    return group.kind is LayerKind.FULL or group.kind is LayerKind.MLA


def seen_tokens(group: LayerGroup, tokens: int, chunk_tokens: int) -> int:
    """Return how many tokens a layer attends to in the chunk that ends after `tokens`."""
    if group.window_tokens is None:
        return tokens
    return min(tokens, group.window_tokens + chunk_tokens)


def held_tokens(group: LayerGroup, tokens: int, chunk_tokens: int) -> int:
    """Return the length of one layer's buffers after a chunk of that width, padding included.

    A width of 0 means tokens decoded one by one.
    """
    window = group.window_tokens
    if window is None:
        return whole_steps(tokens)
    if group.kind is not LayerKind.CHUNKED:
        return min(whole_steps(tokens), window + chunk_tokens)
    if tokens <= window:
        return whole_steps(tokens)
    # Cut back to its window, then given room again.
    return window + whole_steps(min(tokens - window, max(1, chunk_tokens)))


def layer_bytes(group: LayerGroup, tokens: int, chunk_tokens: int) -> int:
    """Return what one layer of a group holds after a chunk of that width, 0 for decoded tokens."""
    if group.kind is LayerKind.RECURRENT:
        return group.constant_bytes + group.view_row_bytes * chunk_tokens
    return held_tokens(group, tokens, chunk_tokens) * group.bytes_per_token


def score_bytes(shape: ModelShape, tokens: int, chunk_tokens: int, *, fused: bool) -> int:
    """Return the scores and mask of a chunk that ends after `tokens`, in the widest layer."""
    copies = shape.score_copies
    if fused and shape.head_dim in FUSED_HEAD_DIMS:
        # The fused kernel of a latent cache still wants the rotary scores, as its mask.
        latent = any(group.kind is LayerKind.MLA for group in shape.groups)
        copies = copies - 1 if latent else 0
    scores = copies * shape.attention_heads * shape.dtype_bytes
    widest = 0
    for group in shape.groups:
        if group.kind is LayerKind.RECURRENT:
            continue
        mask = CHUNKED_MASK_BYTES if group.kind is LayerKind.CHUNKED else MASK_BYTES
        widest = max(widest, seen_tokens(group, tokens, chunk_tokens) * (scores + mask))
    return chunk_tokens * widest


def passing_bytes(
    shape: ModelShape, tokens: int, chunk_tokens: int, *, fused: bool
) -> tuple[int, int]:
    """Return the scores and the activations of a chunk, with slack for both in the latter."""
    scores = score_bytes(shape, tokens, chunk_tokens, fused=fused)
    activations = activation_bytes(shape, tokens, chunk_tokens, fused=fused)
    if not fused:
        passing = sum(group.layers * group.passing_row_bytes for group in shape.groups)
        activations += max(0, chunk_tokens * passing - scores)
    return scores, activations + (scores + activations) // SLACK_PARTS


def activation_bytes(shape: ModelShape, tokens: int, chunk_tokens: int, *, fused: bool) -> int:
    """Return what a chunk's own tokens take while they pass through the widest layer."""
    elements = shape.row_elements or 8 * (shape.intermediate_size + shape.hidden_size)
    # On a CPU two halves of a chunk are under way, and each expands all that is remembered.
    expanded = tokens * shape.expanded_elements * (1 if fused else 2)
    widest = (chunk_tokens * elements + expanded) * shape.dtype_bytes
    return widest + _retained_bytes(shape, chunk_tokens, fused=fused)


def copied_bytes(shape: ModelShape, tokens: int, chunk_tokens: int) -> int:
    """Return the second copy of one layer that exists while its buffers are made longer.

    Source: KVCache concatenates old buffers and new room; RotatingKVCache does so for each chunk.
    """
    widest = 0
    for group in shape.groups:
        if group.kind is LayerKind.RECURRENT:
            widest = max(widest, group.constant_bytes)
        else:
            widest = max(widest, layer_bytes(group, tokens, chunk_tokens))
    return widest


def layer_copies(*, fused: bool) -> int:
    """Return how many copies of a layer exist at once at most while a chunk is fed.

    On a CPU each of its two halves may make one: to make the buffers longer, or to write what the
    other still reads. Fused kernels mean a GPU, where chunks are not cut in two.
    """
    return 1 if fused else 2


def decode_bytes(shape: ModelShape, tokens: int) -> int:
    """Return what computing and picking one token after `tokens` others takes."""
    logits = shape.vocab_size * LOGITS_COPIES * FLOAT_BYTES
    scores = score_bytes(shape, tokens, 1, fused=False)
    return logits + scores + activation_bytes(shape, 0, 1, fused=False)


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
