"""Both tiers together, as the engine's thread sees them."""

import pytest

from manifests.wire.prefix_chain import PrefixChain
from node_agent.kvcache.block import Tier
from node_agent.kvcache.capture_plan import CaptureRules, plan_captures
from node_agent.kvcache.hot import HotTier
from node_agent.kvcache.layer_kinds import CacheLayout
from node_agent.kvcache.ssd_writer import SsdWriter, WriterSettings
from node_agent.kvcache.stats import StatsCounter
from node_agent.kvcache.tiers import CacheTiers, DiskTier
from tests.support.kv_blocks import (
    BLOCK_TOKENS,
    DENSE,
    FINGERPRINT,
    HYBRID,
    block,
    chain,
    long_chain,
    open_disk,
)

RULES = CaptureRules(BLOCK_TOKENS, 1 << 20)
SECONDS = 20.0


class Rig:
    """Tiers over a directory, with the writer running."""

    def __init__(self, path, layout: CacheLayout = DENSE, hot_bytes: int = 1 << 30) -> None:
        self.layout = layout
        self.disk = open_disk(path)
        self.writer = SsdWriter(self.disk.store, WriterSettings())
        self.writer.start()
        self.hot = HotTier(hot_bytes, self.disk.stats)
        disk = DiskTier(self.disk.store, self.writer)
        self.tiers = CacheTiers((FINGERPRINT, layout), self.hot, disk, self.disk.stats)

    def serve(self, prompt: PrefixChain) -> int:
        """Do as an engine does: restore, capture; return what was restored."""
        restored = self.tiers.restore(prompt)
        for capture in plan_captures(self.layout, RULES, prompt.tokens, restored.tokens):
            index = (capture.end_tokens - 1) // BLOCK_TOKENS
            made = block(
                prompt,
                index,
                tokens=capture.end_tokens - index * BLOCK_TOKENS,
                layout=self.layout,
                snapshot=capture.snapshot,
            )
            header = self.tiers.header(prompt, capture.end_tokens, made.header.layers)
            assert header == made.header
            assert self.tiers.keep(made)
        return restored.tokens

    def close(self) -> None:
        self.writer.close(SECONDS)


@pytest.mark.parametrize("layout", [DENSE, HYBRID])
def test_the_same_prompt_again_feeds_one_token_and_writes_nothing(tmp_path, layout) -> None:
    """B42."""
    rig, prompt = Rig(tmp_path / "cache", layout), chain(*range(15))
    assert rig.serve(prompt) == 0
    assert rig.writer.flush(SECONDS)
    written = rig.disk.stats.snapshot().written_bytes
    for _ in range(50):
        assert rig.serve(prompt) == 14
    rig.close()
    assert rig.disk.stats.snapshot().written_bytes == written


def test_the_next_turn_starts_where_the_last_one_ended(tmp_path) -> None:
    rig = Rig(tmp_path / "cache", HYBRID)
    rig.serve(chain(*range(15)))
    assert rig.serve(chain(*range(14), 50, 51, 52)) == 14
    rig.close()


def test_a_restart_finds_on_disk_what_was_served_before(tmp_path) -> None:
    rig, prompt = Rig(tmp_path / "cache"), chain(*range(15))
    rig.serve(prompt)
    rig.close()
    again = Rig(tmp_path / "cache")
    assert again.serve(prompt) == 14
    stats = again.disk.stats.snapshot()
    assert (stats.ssd_hits, stats.hot_hits, stats.tokens_saved) == (4, 0, 14)
    assert again.serve(prompt) == 14
    again.close()
    stats = again.disk.stats.snapshot()
    assert (stats.hot_hits, stats.written_bytes, stats.restores) == (4, 0, 2)


def test_a_damaged_block_costs_only_what_hangs_from_it(tmp_path) -> None:
    rig, prompt = Rig(tmp_path / "cache"), chain(*range(15))
    rig.serve(prompt)
    rig.close()
    again = Rig(tmp_path / "cache")
    again.disk.file(prompt, 1).write_bytes(b"x")
    assert again.serve(prompt) == 4
    assert again.writer.flush(SECONDS)
    assert again.serve(prompt) == 14
    again.close()
    assert again.disk.stats.snapshot().corruptions == 1


def test_restored_blocks_stay_readable_when_both_tiers_give_them_up(tmp_path) -> None:
    rig, prompt = Rig(tmp_path / "cache"), long_chain(4, seed=1)
    rig.serve(prompt)
    rig.close()
    again = Rig(tmp_path / "cache")
    restored = again.tiers.restore(prompt)
    again.hot.resize(0)
    while again.disk.store.wipe():
        pass
    expected = [block(prompt, index) for index in range(3)]
    for loaded, made in zip(restored.blocks, expected, strict=False):
        assert [bytes(t.data) for t in loaded.block.tensors] == [t.data for t in made.tensors]
    again.close()


def test_ram_too_small_for_a_chain_still_restores_all_of_it_from_disk(tmp_path) -> None:
    prompt = long_chain(8, seed=1)
    rig = Rig(tmp_path / "cache", hot_bytes=2 * block(prompt, 0).payload_bytes)
    rig.serve(prompt)
    assert rig.writer.flush(SECONDS)
    restored = rig.tiers.restore(prompt)
    assert restored.tokens == prompt.tokens - 1
    assert {loaded.use.block.tier for loaded in restored.blocks} == {Tier.HOT, Tier.SSD}
    assert rig.hot.used_bytes <= rig.hot.capacity_bytes
    rig.close()


def test_without_tiers_every_start_is_cold() -> None:
    stats = StatsCounter()
    tiers = CacheTiers((FINGERPRINT, DENSE), None, None, stats)
    assert tiers.restore(chain(*range(9))).blocks == ()
    assert not tiers.keep(block(chain(*range(9)), 0))
    assert not tiers.holds(chain(*range(9)), 4, snapshot=False)
    assert stats.snapshot().misses == 1
