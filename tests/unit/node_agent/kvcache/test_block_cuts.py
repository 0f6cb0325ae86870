"""The beginning of a block: found by the names of its cuts, proven before it is used."""

import json
from dataclasses import replace

import pytest

from manifests.wire.prefix_chain import CUT_TOKENS, ChainRoot, PrefixChain
from node_agent.kvcache.block import Block, CutBlock, Tier, stored
from node_agent.kvcache.block_format import (
    BlockDamagedError,
    BlockMismatchError,
    decode_block,
    decode_header,
    encode_block,
    expect_cut,
)
from node_agent.kvcache.hot import HotTier
from node_agent.kvcache.restore_plan import plan_restore, wanted_cuts
from node_agent.kvcache.stats import StatsCounter
from node_agent.kvcache.tiers import CacheTiers, DiskTier
from tests.support.kv_blocks import (
    DENSE,
    FINGERPRINT,
    HYBRID,
    block,
    chain,
    open_disk,
    same_content,
    wanted,
)

SIZE = 64
OLD = chain(*range(150), block_tokens=SIZE)  # two full blocks and 22 tokens
# Turns off after 40 tokens of the second block.
NEW = chain(*range(SIZE + 40), *range(900, 950), block_tokens=SIZE)


def made(index: int, of: PrefixChain = OLD, tokens: int | None = None) -> Block:
    return block(of, index, tokens=tokens, payload=64)


def tiers_over(disk) -> CacheTiers:
    """Return tiers that read the disk; nothing is written through them."""

    class Idle:
        def touch(self, digests) -> None:
            """Note nothing."""

    return CacheTiers((FINGERPRINT, DENSE), None, DiskTier(disk.store, Idle()), disk.stats)


@pytest.fixture
def disk(tmp_path):
    opened = open_disk(tmp_path / "cache")
    for index, tokens in ((0, SIZE), (1, SIZE), (2, 22)):
        opened.store.put(made(index, tokens=tokens))
    yield opened
    opened.link.close()


def test_names_of_cuts_are_equal_exactly_where_the_tokens_before_them_are() -> None:
    assert NEW.cuts(1, SIZE - 1) != OLD.cuts(1, SIZE - 1)
    assert NEW.cuts(1, SIZE - 1)[:2] == OLD.cuts(1, SIZE - 1)[:2]
    assert OLD.cuts(1, SIZE - 1) == OLD.cuts(1, SIZE)[:3]
    assert OLD.cuts(2, CUT_TOKENS - 1) == ()
    shifted = chain(1, *range(1, 64), *range(64, 150), block_tokens=SIZE)
    assert not set(shifted.cuts(1, SIZE)) & set(OLD.cuts(1, SIZE))


def test_names_of_cuts_hang_on_the_key_that_stands_in_no_file() -> None:
    """B97: with a header alone, 16 tokens at a time cannot be guessed."""
    keyed = PrefixChain(OLD.root_digest, bytes(32), OLD.packed, SIZE, OLD.digests)
    assert not set(keyed.cuts(0, SIZE)) & set(OLD.cuts(0, SIZE))
    salted = chain(*range(150), block_tokens=SIZE, root=ChainRoot(FINGERPRINT, ("tenant",)))
    assert not set(salted.cuts(0, SIZE)) & set(OLD.cuts(0, SIZE))


def test_the_formula_of_cuts_is_pinned_so_stored_blocks_survive_releases() -> None:
    assert OLD.cuts(1, SIZE)[1].hex() == "defa88b91cc5ba0e8056b7b0630c08db"


def test_cuts_come_back_with_the_block_and_prove_its_beginning() -> None:
    whole = encode_block(made(1)).joined()
    found = CutBlock(stored(made(1).header, 1, Tier.SSD), 32)
    decoded = decode_block(whole, expect_cut(NEW, FINGERPRINT, found))
    assert same_content(decoded, made(1))
    assert len(decoded.header.cuts) == 3


def test_a_block_whose_beginning_is_another_is_a_mismatch() -> None:
    whole = encode_block(made(1)).joined()
    deeper = CutBlock(stored(made(1).header, 1, Tier.SSD), 48)
    with pytest.raises(BlockMismatchError, match="ids"):
        decode_block(whole, expect_cut(NEW, FINGERPRINT, deeper))


def test_a_header_with_too_few_or_half_cuts_is_damaged() -> None:
    for cuts in ((b"x" * 16,), (b"x" * 15,) * 3):
        head = encode_block(Block(replace(made(1).header, cuts=cuts), ())).head[8:]
        with pytest.raises(BlockDamagedError):
            decode_header(head, 0)


def test_a_block_of_the_older_format_is_used_whole() -> None:
    plain = Block(replace(made(1).header, cuts=()), ())
    entries = json.loads(encode_block(plain).head[8:])
    entries["__metadata__"] |= {"mlxfleet_block": "1"}
    del entries["__metadata__"]["cuts"]
    assert decode_header(json.dumps(entries).encode(), 0) == plain.header


def test_a_block_with_snapshots_has_no_cuts() -> None:
    stats = StatsCounter()
    for layout, count in ((HYBRID, 0), (DENSE, 3)):
        tiers = CacheTiers((FINGERPRINT, layout), HotTier(1, stats), None, stats)
        assert len(tiers.header(OLD, 2 * SIZE, ()).cuts) == count
        assert len(wanted_cuts(OLD, layout, [])[1]) == count


@pytest.mark.parametrize("shared", range(16, SIZE))
def test_what_a_block_shares_with_a_sequence_is_measured_to_the_token(shared: int) -> None:
    prompt = chain(*range(SIZE + shared), *range(900, 950), block_tokens=SIZE)
    hot = HotTier(1 << 20, StatsCounter())
    for index in range(2):
        hot.put(made(index))
    tiers = CacheTiers((FINGERPRINT, DENSE), hot, None, StatsCounter())
    assert tiers.restore(prompt).tokens == SIZE + shared
    # Its last token is fed, even where the block has it.
    short = chain(*range(SIZE + shared), block_tokens=SIZE)
    assert tiers.restore(short).tokens == SIZE + shared - 1


def test_a_block_stored_without_marks_is_used_up_to_its_cut() -> None:
    hot = HotTier(1 << 20, StatsCounter())
    for index in range(2):
        hot.put(Block(replace(made(index).header, marks=b""), made(index).tensors))
    tiers = CacheTiers((FINGERPRINT, DENSE), hot, None, StatsCounter())
    assert tiers.restore(NEW).tokens == SIZE + 32


def test_every_sixteenth_mark_is_a_cut_and_too_few_marks_are_damage() -> None:
    marks = OLD.marks(1, SIZE - 1)
    assert [marks[at : at + 16] for at in (240, 496, 752)] == list(OLD.cuts(1, SIZE - 1))
    head = encode_block(Block(replace(made(1).header, marks=marks[16:]), ())).head[8:]
    with pytest.raises(BlockDamagedError):
        decode_header(head, 0)


def test_ram_finds_the_deepest_cut_and_forgets_those_of_what_went() -> None:
    hot = HotTier(1 << 20, StatsCounter())
    for index in range(2):
        hot.put(made(index))
    cuts = NEW.cuts(1, SIZE - 1)
    found = hot.find_cut(cuts)
    assert found is not None
    assert (found.block.index, found.tokens) == (1, 32)
    branch = made(1, of=NEW)
    hot.put(branch)
    deeper = hot.find_cut(cuts)
    assert deeper is not None
    assert (deeper.block.digest, deeper.tokens) == (branch.header.digest, 48)
    hot.resize(0)
    assert hot.find_cut(cuts) is None


def test_a_cut_elsewhere_than_where_the_sequence_turns_off_is_not_used() -> None:
    cut = CutBlock(stored(made(1).header, 1, Tier.HOT), 32)
    assert plan_restore(NEW, DENSE, [], [cut]).tokens == 0
    first = stored(made(0).header, 1, Tier.HOT)
    assert plan_restore(NEW, DENSE, [first], [cut]).tokens == SIZE + 32
    assert plan_restore(NEW, HYBRID, [first], [cut]).tokens == 0


def test_the_last_token_is_fed_even_where_a_cut_is_the_prompts_end() -> None:
    prompt = chain(*range(SIZE + 32), block_tokens=SIZE)
    first = stored(made(0).header, 1, Tier.HOT)
    cut = CutBlock(stored(made(1).header, 1, Tier.HOT), 32)
    plan = plan_restore(prompt, DENSE, [first], [cut])
    assert (plan.tokens, plan.blocks[-1].take_tokens) == (SIZE + 31, 31)


def test_the_disk_starts_a_prompt_in_the_middle_of_a_block(disk) -> None:
    restored = tiers_over(disk).restore(NEW)
    assert restored.tokens == SIZE + 40
    assert [one.use.take_tokens for one in restored.blocks] == [SIZE, 40]
    assert same_content(restored.blocks[1].block, made(1))


def test_a_partial_block_is_used_in_its_beginning_too(disk) -> None:
    prompt = chain(*range(2 * SIZE + 18), 900, 901, block_tokens=SIZE)
    assert tiers_over(disk).restore(prompt).tokens == 2 * SIZE + 18


@pytest.mark.parametrize("lost", ["nothing", "index", "index of another version"])
def test_cuts_are_found_after_a_restart_and_made_again_from_the_headers(disk, lost: str) -> None:
    disk.link.close()
    if lost == "index":
        (disk.path / "index.db").unlink()
    if lost == "index of another version":
        raw = bytearray((disk.path / "index.db").read_bytes())
        raw[60:64] = (1).to_bytes(4, "big")  # SQLite's user_version
        (disk.path / "index.db").write_bytes(raw)
    again = open_disk(disk.path)
    assert again.store.figures()[0].blocks == 3
    assert tiers_over(again).restore(NEW).tokens == SIZE + 40
    again.link.close()


def test_a_damaged_block_is_not_used_in_its_beginning_and_the_next_best_is(disk) -> None:
    branch = chain(*range(SIZE + 20), *range(700, 744), block_tokens=SIZE)
    disk.store.put(made(1, of=branch))
    file = disk.file(OLD, 1)
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    file.write_bytes(content)
    assert tiers_over(disk).restore(NEW).tokens == SIZE + 20
    assert disk.stats.snapshot().corruptions == 1


def test_cuts_of_evicted_blocks_are_gone(disk) -> None:
    while disk.store.wipe():
        pass
    assert disk.store.find_cut(NEW.cuts(1, SIZE - 1)) == ()
    disk.store.put(made(0))
    assert tiers_over(disk).restore(NEW).tokens == SIZE
    assert wanted(NEW, 0).proof == wanted(OLD, 0).proof


def test_a_whole_block_that_ends_deeper_than_a_cut_is_preferred() -> None:
    prompt = chain(*range(2 * SIZE + 22), 900, 901, block_tokens=SIZE)
    present = [
        stored(made(n, tokens=t).header, 1, Tier.SSD) for n, t in ((0, 64), (1, 64), (2, 22))
    ]
    cut = CutBlock(present[2], 16)
    plan = plan_restore(prompt, DENSE, present, [cut])
    assert (plan.tokens, plan.blocks[-1].cut_tokens) == (2 * SIZE + 22, 0)


def test_a_block_that_cannot_be_read_though_the_index_has_it_is_tried_once(
    disk, monkeypatch
) -> None:
    asked: list[bytes] = []
    second = OLD.digests[1]
    get = disk.store.get

    def unreadable(expected):
        asked.append(expected.digest)
        return None if expected.digest == second else get(expected)

    monkeypatch.setattr(disk.store, "get", unreadable)
    assert tiers_over(disk).restore(NEW).tokens == SIZE
    assert asked.count(second) == 1
