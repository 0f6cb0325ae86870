"""A prompt that begins as a stored one is computed from at most a cut before their parting."""

import hypothesis.strategies as st
from hypothesis import given

from manifests.wire.prefix_chain import CUT_TOKENS
from node_agent.kvcache.block import Block
from node_agent.kvcache.capture_plan import CaptureRules, plan_captures
from node_agent.kvcache.hot import HotTier
from node_agent.kvcache.layer_kinds import LayerKind
from node_agent.kvcache.stats import StatsCounter
from node_agent.kvcache.tiers import CacheTiers
from tests.support.kv_blocks import DENSE, FINGERPRINT, HYBRID, block, chain

SIZE = 64
lengths = st.integers(1, 4 * SIZE)
branches = st.lists(st.tuples(lengths, lengths), min_size=1, max_size=4)


def common(left: list[int], right: list[int]) -> int:
    pairs = enumerate(zip(left, right, strict=False))
    return next((at for at, (x, y) in pairs if x != y), min(len(left), len(right)))


def store(tiers: CacheTiers, tokens: list[int]) -> None:
    """Store what an engine would that was asked this, from nothing."""
    of = chain(*tokens, block_tokens=SIZE)
    for capture in plan_captures(DENSE, CaptureRules(SIZE, 0), of.tokens, 0):
        index = (capture.end_tokens - 1) // SIZE
        tail = capture.end_tokens - index * SIZE
        made = block(of, index, tokens=tail, payload=2)
        header = tiers.header(of, capture.end_tokens, made.header.layers)
        assert header == made.header
        tiers.keep(Block(header, made.tensors))


@given(branches, lengths, lengths)
def test_a_start_is_within_a_cut_of_the_longest_beginning_that_is_stored(
    stored_ones: list[tuple[int, int]], shared: int, own: int
) -> None:
    """Each stored prompt shares some beginning with the one asked, and then goes its own way."""
    stats = StatsCounter()
    tiers = CacheTiers((FINGERPRINT, DENSE), HotTier(1 << 20, stats), None, stats)
    asked = [*range(shared), *range(10_000, 10_000 + own)]
    deepest = 0
    for number, (same, more) in enumerate(stored_ones):
        begin = 20_000 + 1000 * number
        tokens = [*asked[:same], *range(begin, begin + more)]
        store(tiers, tokens)
        deepest = max(deepest, common(asked, tokens[:-1]))
    of = chain(*asked, block_tokens=SIZE)
    planned = tiers.plan(of)
    restored = tiers.restore(of)
    # The block is read by now, and its marks say to the token where the prompts part.
    assert planned.tokens <= restored.tokens < planned.tokens + CUT_TOKENS
    assert min(deepest // CUT_TOKENS * CUT_TOKENS, len(asked) - 1) <= restored.tokens
    assert restored.tokens <= min(deepest, len(asked) - 1)
    assert sum(one.use.take_tokens for one in restored.blocks) == restored.tokens
    assert not any(one.use.use_snapshot for one in restored.blocks)


@given(lengths, lengths, lengths)
def test_a_layout_with_snapshots_never_starts_inside_a_block(
    shared: int, one: int, two: int
) -> None:
    stats = StatsCounter()
    tiers = CacheTiers((FINGERPRINT, HYBRID), HotTier(1 << 20, stats), None, stats)
    left = [*range(shared), *range(1000, 1000 + one)]
    right = [*range(shared), *range(2000, 2000 + two)]
    of = chain(*left, block_tokens=SIZE)
    rules = CaptureRules(SIZE, 1 << 20)
    for capture in plan_captures(HYBRID, rules, of.tokens, 0):
        index = (capture.end_tokens - 1) // SIZE
        tiers.keep(
            block(of, index, tokens=capture.end_tokens - index * SIZE, layout=HYBRID, payload=2)
        )
    restored = tiers.restore(chain(*right, block_tokens=SIZE))
    assert restored.tokens % SIZE == 0 or restored.tokens == len(left) - 1
    assert restored.tokens <= shared
    assert HYBRID.layers[1].kind is LayerKind.SNAPSHOT
