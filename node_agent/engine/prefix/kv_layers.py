"""What each kind of mlx-lm's caches is made of.

Owns the knowledge of the classes: which can be cut by token, what of the others counts, and how
either is set from what was stored. Lists of caches are looked into, so that a list of a
recurrent state and a KV cache stores the KV by token. It knows no block and no tier. Called by
`kv_codec.py` on the MLX thread.
"""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import (
    CacheList,
    ChunkedKVCache,
    ConcatenateKVCache,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
)

from node_agent.engine.prefix.kv_bytes import RestoreError, dtype_name, signature, strip
from node_agent.kvcache.layer_kinds import LayerDescriptor, LayerKind

# KV caches grow by whole steps of this many tokens.
STEP_TOKENS = 256

_BY_TOKEN = (KVCache, QuantizedKVCache, ConcatenateKVCache)


def flatten(caches: Sequence[Any]) -> list[Any]:
    """Return the caches of all layers, with lists of caches replaced by their members."""
    flat: list[Any] = []
    for cache in caches:
        flat += flatten(cache.caches) if isinstance(cache, CacheList) else [cache]
    return flat


def describe(cache: Any) -> LayerDescriptor:
    """Return what a cache that holds one token is.

    Raises: RestoreError when its state cannot be stored, or not be set again.
    """
    name = type(cache).__name__
    if type(cache) in _BY_TOKEN:
        arrays = token_arrays(cache)
        detail = signature(arrays)
        return LayerDescriptor(LayerKind.SLICEABLE, name, detail, token_bytes=_token_bytes(arrays))
    arrays = []
    strip(counted_state(cache), arrays)
    if not arrays:
        raise RestoreError(f"{name} shows no state that could be stored")
    try:
        cache.state = cache.state
    except AttributeError as error:
        raise RestoreError(f"{name} cannot be set to a stored state: {error}") from error
    window = _window_tokens(cache)
    if window:
        kept = getattr(cache, "keep", 0)
        detail = f"{signature(arrays)};window {window}, {kept} kept"
        size = _token_bytes(arrays) * window
    else:
        detail = ",".join(f"{dtype_name(one)}:{list(one.shape)}" for one in arrays)
        size = sum(one.nbytes for one in arrays)
    return LayerDescriptor(LayerKind.SNAPSHOT, name, detail, snapshot_bytes=size)


def token_arrays(cache: Any) -> list[mx.array]:
    """Return the arrays of a cache that can be cut by token: keys first, then values.

    Raises: RestoreError when it is empty.
    """
    if cache.keys is None:
        raise RestoreError(f"{type(cache).__name__} holds nothing")
    if isinstance(cache, QuantizedKVCache):
        return [*cache.keys, *cache.values]
    return [cache.keys, cache.values]


def array_count(cache: Any) -> int:
    """Return how many arrays `token_arrays` gives; quantized ones have scales and biases."""
    return 6 if isinstance(cache, QuantizedKVCache) else 2


def room_tokens(cache: Any, tokens: int) -> int:
    """Return how many tokens an array for so many has room for: whole steps, as when it is fed."""
    return (
        tokens if isinstance(cache, ConcatenateKVCache) else -(-tokens // STEP_TOKENS) * STEP_TOKENS
    )


def set_tokens(cache: Any, sides: Sequence[mx.array], tokens: int) -> None:
    """Let a cache stand at `tokens`, in arrays that have `room_tokens`. Mutates: `cache`."""
    if isinstance(cache, ConcatenateKVCache):
        cache.state = tuple(sides)
    elif isinstance(cache, QuantizedKVCache):
        quantized = (tuple(sides[:3]), tuple(sides[3:]))
        cache.state = (*quantized, tokens, cache.group_size, cache.bits)
    else:
        cache.state = (*sides, tokens)


def counted_state(cache: Any) -> Any:
    """Return the state of a cache that is stored whole, without what it would drop next anyway.

    While it feeds a chunk a window holds as much again, and its buffer has spare room.
    """
    if type(cache) is RotatingKVCache and cache.keys is not None:
        return _unrolled(cache.state)
    if type(cache) is ChunkedKVCache and cache.keys is not None:
        return _front_cut(cache.state)
    try:
        return cache.state
    except AttributeError as error:
        raise RestoreError(f"{type(cache).__name__} shows no state: {error}") from error


def _unrolled(state: Any) -> Any:
    """Return a rotating window in the order of tokens, cut to its size."""
    keys, values, offset, keep, max_size, at = state

    def cut(ring: mx.array) -> mx.array:
        if at < min(offset, ring.shape[2]):
            ring = mx.concatenate([ring[:, :, :keep], ring[:, :, at:], ring[:, :, keep:at]], axis=2)
        else:
            ring = ring[:, :, :at]
        surplus = ring.shape[2] - max_size
        if surplus <= 0:
            return ring
        return mx.concatenate([ring[:, :, :keep], ring[:, :, keep + surplus :]], axis=2)

    keys, values = cut(keys), cut(values)
    return keys, values, offset, keep, max_size, keys.shape[2]


def _front_cut(state: Any) -> Any:
    """Return a chunked cache as it is after the trim that comes before each forward pass."""
    keys, values, offset, chunk_size, start = state
    held = offset - start
    surplus = max(0, held - chunk_size)
    keys, values = (one[:, :, surplus:held] for one in (keys, values))
    return keys, values, offset, chunk_size, start + surplus


def _window_tokens(cache: Any) -> int:
    if isinstance(cache, RotatingKVCache):
        return int(cache.max_size)
    return int(cache.chunk_size) if isinstance(cache, ChunkedKVCache) else 0


def _token_bytes(arrays: Sequence[mx.array]) -> int:
    return sum(one.nbytes // one.shape[2] for one in arrays)
