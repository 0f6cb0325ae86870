"""Caches of several rows as one, row by row, and back.

Rows that stand at the same token need no padding: mlx-lm's single-row caches take a batch of them
as it is. Owns the putting together and the taking apart, one layer at a time, so that only one
exists twice. Called by `prefill.py` on the MLX thread.
"""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import (
    ArraysCache,
    CacheList,
    ConcatenateKVCache,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
)

# All that these hold is in their state, and rows are its arrays' first axis.
_PLAIN = (ArraysCache, ConcatenateKVCache, KVCache, QuantizedKVCache, RotatingKVCache)

Caches = list[Any]


def can_stack(rows: Sequence[Caches]) -> bool:
    """Return whether rows' caches differ in nothing but what their arrays say."""
    kinds = [_kind(caches) for caches in rows]
    return None not in kinds and all(one == kinds[0] for one in kinds)


def stack(rows: Sequence[Caches]) -> Caches:
    """Return one cache for all rows, in their order. Mutates: empties each row's."""
    stacked = []
    while rows[0]:
        layers = [caches.pop(0) for caches in rows]
        stacked.append(_combine(layers))
        mx.eval(stacked[-1].state)
    return stacked


def unstack(stacked: Caches, count: int) -> list[Caches]:
    """Return the rows' own caches again. Mutates: empties `stacked`."""
    rows: list[Caches] = [[] for _ in range(count)]
    while stacked:
        layer = stacked.pop(0)
        for at, caches in enumerate(rows):
            # A view would keep all the rows' arrays alive.
            caches.append(
                _map([layer], lambda arrays, at=at: mx.contiguous(arrays[0][at : at + 1]))
            )
        mx.eval([caches[-1].state for caches in rows])
    return rows


def view(stacked: Caches, at: int) -> Caches:
    """Return one row's cache, not copied; it is to be let go before the next forward pass."""
    return [_map([layer], lambda arrays: arrays[0][at : at + 1]) for layer in stacked]


def widest_layer_bytes(rows: Sequence[Caches]) -> int:
    """Return what the largest layer takes, over all rows."""
    return sum(max((layer.nbytes for layer in caches), default=0) for caches in rows)


def _combine(layers: Sequence[Any]) -> Any:
    return _map(layers, lambda arrays: mx.concatenate(arrays, axis=0))


def _map(layers: Sequence[Any], change: Any) -> Any:
    """Return a cache like `layers[0]` whose arrays are made of those of all."""
    first = layers[0]
    if isinstance(first, CacheList):
        members = zip(*(layer.caches for layer in layers), strict=True)
        return CacheList(*(_map(one, change) for one in members))
    return type(first).from_state(_walk([layer.state for layer in layers], change))


def _walk(states: Sequence[Any], change: Any) -> Any:
    first = states[0]
    if isinstance(first, mx.array):
        return change(states)
    if isinstance(first, list | tuple):
        return type(first)(_walk(list(parts), change) for parts in zip(*states, strict=True))
    return first


def _kind(caches: Caches) -> Any:
    """Return what must be alike: classes, shapes, types and numbers; None for an unknown class."""
    kinds: list[Any] = []
    for layer in caches:
        if isinstance(layer, CacheList):
            kinds.append(_kind(list(layer.caches)))
        else:
            kinds.append((type(layer), _describe(layer.state)) if type(layer) in _PLAIN else None)
    return None if None in kinds else kinds


def _describe(state: Any) -> Any:
    if isinstance(state, mx.array):
        return state.shape, state.dtype
    if isinstance(state, list | tuple):
        return [_describe(part) for part in state]
    return state
