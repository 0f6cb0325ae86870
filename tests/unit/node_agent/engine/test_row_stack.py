"""Caches of several rows as one, and back, for every kind of cache a row can have."""

import mlx.core as mx
import pytest
from mlx_lm.models.cache import (
    ArraysCache,
    CacheList,
    ChunkedKVCache,
    ConcatenateKVCache,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
)

from node_agent.engine.batching.row_stack import can_stack, stack, unstack, view, widest_layer_bytes

HEADS, WIDTH = 2, 64


def filled(cache: object, tokens: int, seed: int) -> object:
    keys = mx.random.normal((1, HEADS, tokens, WIDTH), key=mx.random.key(seed))
    cache.update_and_fetch(keys, keys + 1)
    return cache


def arrays(seed: int) -> ArraysCache:
    cache = ArraysCache(2)
    cache[0] = mx.random.normal((1, 3, WIDTH), key=mx.random.key(seed))
    return cache


MAKERS = {
    "plain": lambda seed: filled(KVCache(), 5, seed),
    "empty": lambda _seed: KVCache(),
    "quantized": lambda seed: filled(QuantizedKVCache(bits=8), 5, seed),
    "window": lambda seed: filled(RotatingKVCache(8), 5, seed),
    "turned window": lambda seed: filled(filled(RotatingKVCache(8), 12, seed), 1, seed + 50),
    "joined": lambda seed: filled(ConcatenateKVCache(), 5, seed),
    "recurrent": arrays,
    "list": lambda seed: CacheList(filled(KVCache(), 5, seed), arrays(seed)),
}


def leaves(state: object) -> list:
    if isinstance(state, list | tuple):
        return [leaf for part in state for leaf in leaves(part)]
    return [state.tolist() if isinstance(state, mx.array) else state]


@pytest.mark.parametrize("kind", list(MAKERS))
def test_rows_come_out_as_they_went_in(kind):
    rows = [[MAKERS[kind](seed), MAKERS[kind](seed + 10)] for seed in range(3)]
    before = [[leaves(layer.state) for layer in caches] for caches in rows]
    assert can_stack(rows)
    stacked = stack(rows)
    assert rows == [[], [], []]
    seen = [[leaves(layer.state) for layer in view(stacked, at)] for at in range(3)]
    assert seen == before
    parted = unstack(stacked, 3)
    assert stacked == []
    assert [[leaves(layer.state) for layer in caches] for caches in parted] == before
    assert [type(layer) for layer in parted[0]] == [type(MAKERS[kind](0))] * 2


def test_a_row_holds_no_memory_of_the_others_once_it_is_apart():
    tokens = 2048
    stacked = stack([[filled(KVCache(), tokens, seed)] for seed in range(4)])
    first, *others = unstack(stacked, 4)
    with_all = mx.get_active_memory()
    others.clear()
    assert with_all - mx.get_active_memory() >= 3 * first[0].nbytes
    assert widest_layer_bytes([first, first]) == 2 * first[0].nbytes


@pytest.mark.parametrize(
    "other",
    [
        lambda: filled(KVCache(), 6, 1),
        lambda: filled(KVCache(), 300, 1),
        lambda: filled(RotatingKVCache(8), 5, 1),
        KVCache,
    ],
)
def test_rows_that_differ_in_more_than_their_values_cannot_be_stacked(other):
    assert not can_stack([[filled(KVCache(), 5, 0)], [other()]])


def test_a_kind_of_cache_that_nobody_knows_is_left_alone():
    assert not can_stack([[filled(ChunkedKVCache(8), 5, 0)], [filled(ChunkedKVCache(8), 5, 1)]])
