"""Where a prompt starts: the deepest point that is valid for every layer."""

import pytest

from node_agent.kvcache.block import StoredBlock, Tier, stored
from node_agent.kvcache.layer_kinds import (
    CacheLayout,
    LayerDescriptor,
    LayerKind,
    cache_fingerprint,
)
from node_agent.kvcache.restore_plan import plan_restore
from tests.support.kv_blocks import DENSE, HYBRID, KV, RECURRENT, ROTATING, block, chain

PROMPT = chain(*range(14))  # three full blocks of four and two more


def have(
    index: int,
    *,
    of=PROMPT,
    tokens: int | None = None,
    layout: CacheLayout = DENSE,
    snapshot: bool = True,
    tier: Tier = Tier.SSD,
) -> StoredBlock:
    return stored(
        block(of, index, tokens=tokens, layout=layout, snapshot=snapshot).header, 100, tier
    )


def ends(plan) -> tuple[int, list[int]]:
    return plan.tokens, [use.block.index for use in plan.blocks]


def test_nothing_stored_starts_from_nothing() -> None:
    assert ends(plan_restore(PROMPT, DENSE, [])) == (0, [])


def test_sliceable_layers_take_the_longest_unbroken_chain() -> None:
    assert ends(plan_restore(PROMPT, DENSE, [have(0), have(1), have(2)])) == (12, [0, 1, 2])
    assert ends(plan_restore(PROMPT, DENSE, [have(0), have(2)])) == (4, [0])
    assert ends(plan_restore(PROMPT, DENSE, [have(1), have(2)])) == (0, [])


def test_the_last_token_is_always_fed() -> None:
    prompt = chain(*range(8))
    plan = plan_restore(prompt, DENSE, [have(0, of=prompt), have(1, of=prompt)])
    assert ends(plan) == (7, [0, 1])
    assert [use.take_tokens for use in plan.blocks] == [4, 3]


def test_a_snapshot_is_never_cut_short() -> None:
    prompt = chain(*range(8))
    blocks = [have(0, of=prompt, layout=HYBRID), have(1, of=prompt, layout=HYBRID)]
    assert ends(plan_restore(prompt, HYBRID, blocks)) == (4, [0])


def test_a_prompt_of_one_token_or_none_restores_nothing() -> None:
    for prompt in (chain(7), chain()):
        tail = [have(0, of=chain(7), tokens=1)]
        assert ends(plan_restore(prompt, DENSE, tail)) == (0, [])


def test_hybrids_go_back_to_the_last_block_with_all_snapshots() -> None:
    blocks = [
        have(0, layout=HYBRID),
        have(1, layout=HYBRID),
        have(2, layout=HYBRID, snapshot=False),
    ]
    plan = plan_restore(PROMPT, HYBRID, blocks)
    assert ends(plan) == (8, [0, 1])
    assert [use.use_snapshot for use in plan.blocks] == [False, True]


def test_a_snapshot_of_some_layers_only_is_none() -> None:
    three = CacheLayout((KV, ROTATING, ROTATING))
    partial = StoredBlock(PROMPT.digests[0], PROMPT.root_digest, 0, 4, 0b010, 9, Tier.SSD)
    assert ends(plan_restore(PROMPT, three, [partial])) == (0, [])


def test_layers_with_snapshots_only_need_one_block_and_no_chain() -> None:
    plan = plan_restore(PROMPT, RECURRENT, [have(2, layout=RECURRENT)])
    assert ends(plan) == (12, [2])


def test_a_partial_block_is_used_where_the_prompt_goes_on_from_it() -> None:
    plan = plan_restore(PROMPT, HYBRID, [
        *(have(n, layout=HYBRID, snapshot=False) for n in range(3)),
        have(3, tokens=1, layout=HYBRID),
    ])  # fmt: skip
    assert ends(plan) == (13, [0, 1, 2, 3])


def test_a_partial_block_of_other_tokens_is_not_used() -> None:
    other = chain(*range(12), 77, 78)
    blocks = [*(have(n) for n in range(3)), have(3, of=other, tokens=1)]
    assert ends(plan_restore(PROMPT, DENSE, blocks)) == (12, [0, 1, 2])


def test_a_partial_block_behind_a_gap_is_not_used() -> None:
    assert ends(plan_restore(PROMPT, DENSE, [have(0), have(2, tokens=3)])) == (4, [0])


def test_the_faster_tier_is_read_unless_only_the_slower_has_the_snapshot() -> None:
    blocks = [
        have(0, layout=HYBRID),
        have(0, layout=HYBRID, snapshot=False, tier=Tier.HOT),
    ]
    plan = plan_restore(PROMPT, HYBRID, blocks)
    assert [use.block.tier for use in plan.blocks] == [Tier.SSD]
    both = [have(0), have(0, tier=Tier.HOT)]
    plan = plan_restore(PROMPT, DENSE, both)
    assert (plan.load_bytes(Tier.HOT), plan.load_bytes(Tier.SSD)) == (100, 0)


def test_a_block_that_claims_an_impossible_place_is_ignored() -> None:
    for index, tokens in ((-1, 4), (0, 0), (0, 5), (9, 4)):
        odd = StoredBlock(PROMPT.digests[0], PROMPT.root_digest, index, tokens, 0, 9, Tier.SSD)
        assert plan_restore(PROMPT, RECURRENT, [odd]).tokens == 0


@pytest.mark.parametrize("detail", ["bf16", "q8 group 64"])
def test_the_fingerprint_changes_with_the_precision_of_the_cache(detail: str) -> None:
    layer = LayerDescriptor(LayerKind.SLICEABLE, "KVCache", detail)
    assert cache_fingerprint("m", [layer]) != cache_fingerprint("m", [KV])
    assert cache_fingerprint("m", [layer]) != cache_fingerprint("n", [layer])
