"""Any set of stored blocks gives a start that is valid, and as deep as brute force finds."""

import hypothesis.strategies as st
from hypothesis import given

from manifests.wire.prefix_chain import ChainRoot, PrefixChain, chain_digests, tail_digest
from node_agent.kvcache.block import Tier, stored
from node_agent.kvcache.capture_plan import CaptureRules, plan_captures
from node_agent.kvcache.layer_kinds import CacheLayout
from node_agent.kvcache.restore_plan import plan_restore
from tests.support.kv_blocks import BLOCK_TOKENS, DENSE, HYBRID, RECURRENT, block, chain

ids = st.lists(st.integers(0, 2), min_size=1, max_size=18)
layouts = st.sampled_from([DENSE, HYBRID, RECURRENT])


def ends_of(tokens: list[int]) -> list[int]:
    return list(range(1, len(tokens) + 1))


@given(ids, st.lists(st.tuples(ids, st.booleans()), max_size=4), layouts, st.data())
def test_the_start_is_valid_and_the_deepest(
    prompt: list[int],
    others: list[tuple[list[int], bool]],
    layout: CacheLayout,
    data: st.DataObject,
) -> None:
    wanted = chain(*prompt)
    present, snapshots = [], {}
    for tokens, snapshot in others:
        for end in data.draw(st.lists(st.sampled_from(ends_of(tokens)), unique=True)):
            index = (end - 1) // BLOCK_TOKENS
            made = block(
                chain(*tokens),
                index,
                tokens=end - index * BLOCK_TOKENS,
                layout=layout,
                snapshot=snapshot,
                payload=2,
            )
            present.append(stored(made.header, 1, data.draw(st.sampled_from(Tier))))
            prefix = tuple(tokens[:end])
            snapshots[prefix] = snapshots.get(prefix, False) or snapshot
    plan = plan_restore(wanted, layout, present)

    def is_valid(end: int) -> bool:
        whole = range(BLOCK_TOKENS, end, BLOCK_TOKENS)
        chained = all(tuple(prompt[:at]) in snapshots for at in whole)
        last = tuple(prompt[:end])
        if layout.snapshot_mask:
            return snapshots.get(last, False) and (chained or not layout.needs_chain)
        full = tuple(prompt[: end + 1]) if end == len(prompt) - 1 else last
        same_block = end % BLOCK_TOKENS != 0
        return chained and (last in snapshots or (same_block and full in snapshots))

    best = max((end for end in range(1, len(prompt)) if is_valid(end)), default=0)
    assert plan.tokens == best
    assert plan.tokens < len(prompt)
    held = {(x.digest, x.tier) for x in present}
    assert all((use.block.digest, use.block.tier) in held for use in plan.blocks)
    if layout.needs_chain and plan.blocks:
        assert sum(use.take_tokens for use in plan.blocks) == plan.tokens


@given(ids, layouts, st.integers(0, 2000))
def test_the_same_prompt_again_feeds_one_token_when_snapshots_are_affordable(
    prompt: list[int], layout: CacheLayout, budget: int
) -> None:
    of = chain(*prompt)
    rules = CaptureRules(BLOCK_TOKENS, budget)
    captures = plan_captures(layout, rules, of.tokens, 0)
    present = []
    for capture in captures:
        index = (capture.end_tokens - 1) // BLOCK_TOKENS
        tokens = capture.end_tokens - index * BLOCK_TOKENS
        made = block(of, index, tokens=tokens, layout=layout, snapshot=capture.snapshot, payload=2)
        present.append(stored(made.header, 1, Tier.SSD))
    assert sum(x.snapshot for x in captures) * layout.snapshot_bytes <= budget
    if budget >= layout.snapshot_bytes:
        assert plan_restore(of, layout, present).tokens == len(prompt) - 1


@given(ids, ids, st.integers(1, 5))
def test_names_are_equal_exactly_where_the_tokens_are(
    left: list[int], right: list[int], size: int
) -> None:
    root = ChainRoot("f")
    a, b = chain_digests(root, left, size), chain_digests(root, right, size)
    for index, (x, y) in enumerate(zip(a, b, strict=False)):
        assert (x == y) == (left[: (index + 1) * size] == right[: (index + 1) * size])
    assert (tail_digest(root, left, size) == tail_digest(root, right, size)) == (
        left == right
        or not (PrefixChain.of(root, left, size).tail or PrefixChain.of(root, right, size).tail)
    )
