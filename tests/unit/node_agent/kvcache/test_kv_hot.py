"""The RAM tier: bounded, in the order of use, from the end of a chain."""

from node_agent.kvcache.block import Block
from node_agent.kvcache.hot import HotTier
from node_agent.kvcache.stats import StatsCounter
from tests.support.kv_blocks import BLOCK_TOKENS, block, chain, long_chain

SIZE = 2 * 100  # two layers
ONE, TWO = long_chain(4, seed=1), long_chain(4, seed=2)


def made(of, index: int) -> Block:
    return block(of, index, payload=100)


def tier(blocks: int) -> tuple[HotTier, StatsCounter]:
    stats = StatsCounter()
    return HotTier(blocks * SIZE, stats), stats


def held(hot: HotTier, of) -> list[int]:
    return sorted(found.index for found in hot.find(of))


def test_it_never_holds_more_than_its_capacity() -> None:
    hot, stats = tier(3)
    for index in range(4):
        hot.put(made(ONE, index))
        hot.put(made(TWO, index))
        assert hot.used_bytes <= 3 * SIZE
    assert stats.snapshot().hot_evictions > 0
    assert len(hot) == 3


def test_a_chain_is_given_up_from_its_end() -> None:
    hot, _ = tier(4)
    for index in range(4):
        hot.put(made(ONE, index))
    hot.put(made(TWO, 0))
    assert (held(hot, ONE), held(hot, TWO)) == ([0, 1, 2], [0])


def test_what_was_used_last_stays() -> None:
    hot, _ = tier(4)
    for of in (ONE, TWO):
        for index in range(2):
            hot.put(made(of, index))
    with hot.pinned(ONE.digests[:2]):
        pass
    hot.put(made(long_chain(1, seed=3), 0))
    assert (held(hot, ONE), held(hot, TWO)) == ([0, 1], [0])


def test_a_hot_prefix_survives_a_hundred_others() -> None:
    """B49."""
    hot, _ = tier(10)
    hot.put(made(ONE, 0))
    hot.put(made(ONE, 1))
    for seed in range(100):
        hot.put(made(long_chain(1, seed=100 + seed), 0))
        with hot.pinned(ONE.digests[:2]):
            assert held(hot, ONE) == [0, 1]


def test_a_smaller_capacity_holds_at_once_and_pinned_blocks_go_when_they_are_free() -> None:
    hot, _ = tier(4)
    for index in range(4):
        hot.put(made(ONE, index))
    with hot.pinned(ONE.digests[:2]):
        assert hot.resize(0) == 2 * SIZE
        assert held(hot, ONE) == [0, 1]
        assert not hot.put(made(TWO, 0))
    assert (len(hot), hot.used_bytes) == (0, 0)


def test_a_block_without_room_beside_pinned_ones_is_refused() -> None:
    hot, _ = tier(2)
    hot.put(made(ONE, 0))
    hot.put(made(ONE, 1))
    with hot.pinned(ONE.digests[:2]):
        assert not hot.put(made(TWO, 0))
    assert held(hot, ONE) == [0, 1]


def test_partial_blocks_are_found_by_what_comes_before_them() -> None:
    hot, _ = tier(4)
    short = chain(*range(6))
    hot.put(block(short, 1, tokens=2, payload=100))
    found = hot.find(chain(*range(12)))
    assert [(x.index, x.tokens) for x in found] == [(1, 2)]
    assert BLOCK_TOKENS == 4


def test_a_wipe_forgets_one_models_blocks_or_all() -> None:
    hot, _ = tier(4)
    hot.put(made(ONE, 0))
    hot.wipe("another model")
    assert len(hot) == 1
    hot.wipe()
    assert (len(hot), hot.used_bytes) == (0, 0)
