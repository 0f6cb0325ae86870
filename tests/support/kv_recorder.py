"""A model that keeps the tokens themselves in every kind of cache, so that they can be read.

It computes nothing, so hundreds of rows take seconds. Imports MLX.
"""

from typing import Any

import mlx.core as mx
from mlx import nn
from mlx_lm.models.cache import ArraysCache, CacheList, ChunkedKVCache, KVCache, RotatingKVCache

from node_agent.engine.prefix.kv_layers import counted_state, flatten

WINDOW_TOKENS, CHUNK_TOKENS = 6, 5

HEADS, WIDTH = 2, 4


class Recorder(nn.Module):
    """Plain KV, a recurrent state beside plain KV, a window, and a chunked cache."""

    def __init__(self, dtype: mx.Dtype = mx.float32, width: int = WIDTH) -> None:
        super().__init__()
        self.dtype, self.width = dtype, width

    def make_cache(self) -> list[Any]:
        return [
            KVCache(),
            CacheList(ArraysCache(2), KVCache()),
            RotatingKVCache(WINDOW_TOKENS),
            ChunkedKVCache(CHUNK_TOKENS),
        ]

    def __call__(self, tokens: mx.array, cache: list[Any]) -> mx.array:
        shape = (1, HEADS, tokens.shape[1], self.width)
        keys = mx.broadcast_to(tokens[:, None, :, None], shape).astype(self.dtype)
        for layer in flatten(cache):
            if isinstance(layer, ArraysCache):
                held = layer[0] if layer[0] is not None else mx.zeros((1, 3), self.dtype)
                layer[0] = held + tokens.sum().astype(self.dtype)
                continue
            if isinstance(layer, ChunkedKVCache):
                layer.maybe_trim_front()
            # Values without width, as some indexers have them.
            layer.update_and_fetch(keys, mx.zeros((*shape[:3], 0), self.dtype))
        return tokens


def held(cache: Any) -> list[float]:
    """Return the tokens in a cache, in their order."""
    keys = counted_state(cache)[0]
    offset = getattr(cache, "offset", keys.shape[2])
    return keys[0, 0, :offset, 0].tolist()
