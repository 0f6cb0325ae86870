"""The cache of one engine: RAM and disk behind three calls.

Owns the order of tiers and the counting of hits. The engine's thread calls it: `plan` when a
request is about to start, `load` to get the blocks of that plan, `keep` for every captured block.
Both tiers may be None. It never raises for what a tier does: the worst case is a cold start.

    chain = PrefixChain.of(ChainRoot(fingerprint, extra_keys), prompt_ids, block_tokens)
    restored = tiers.restore(chain)            # blocks in order; all layers end at restored.tokens
    for capture in plan_captures(layout, rules, chain.tokens, restored.tokens): ...
    tiers.keep(Block(tiers.header(chain, end_tokens, layers), tensors))
"""

import time
from contextlib import ExitStack
from dataclasses import dataclass

from manifests.wire.prefix_chain import PrefixChain
from node_agent.kvcache.block import Block, BlockHeader, CutBlock, LayerRecord, StoredBlock, Tier
from node_agent.kvcache.block_format import Expected, expect, expect_cut
from node_agent.kvcache.hot import HotTier
from node_agent.kvcache.layer_kinds import CacheLayout
from node_agent.kvcache.restore_plan import BlockUse, RestorePlan, plan_restore, wanted_cuts
from node_agent.kvcache.ssd_store import SsdStore
from node_agent.kvcache.ssd_writer import SsdWriter
from node_agent.kvcache.stats import StatsCounter


@dataclass(frozen=True, slots=True)
class LoadedBlock:
    """A block with how it is to be used; its bytes stay valid as long as it is referred to."""

    block: Block
    use: BlockUse


@dataclass(frozen=True, slots=True)
class Restored:
    """What a sequence starts from: every layer stands at `tokens`."""

    tokens: int = 0
    blocks: tuple[LoadedBlock, ...] = ()


@dataclass(frozen=True, slots=True)
class DiskTier:
    """The disk as the engine's thread sees it."""

    store: SsdStore
    writer: SsdWriter


class CacheTiers:
    """Both tiers of one engine."""

    def __init__(
        self,
        identity: tuple[str, CacheLayout],
        hot: HotTier | None,
        disk: DiskTier | None,
        stats: StatsCounter,
    ) -> None:
        """`identity` is `cache_fingerprint(...)` and the layout it was made of."""
        self._fingerprint, self._layout = identity
        self._hot = hot
        self._disk = disk
        self._stats = stats

    def plan(self, chain: PrefixChain) -> RestorePlan:
        """Return what a sequence could start from, without reading it."""
        present = self._present(chain)
        return plan_restore(chain, self._layout, present, self._cuts(chain, present))

    def restore(self, chain: PrefixChain) -> Restored:
        """Read what a sequence starts from; blocks read from the disk are kept in RAM too.

        A block that is gone or damaged is left out and the next best start is tried.
        """
        started = time.perf_counter()
        present, gone = self._present(chain), set[tuple[bytes, Tier]]()
        while True:
            cuts = self._cuts(chain, present)
            cuts = tuple(x for x in cuts if (x.block.digest, x.block.tier) not in gone)
            plan = plan_restore(chain, self._layout, present, cuts)
            if not plan.blocks:
                self._stats.add(misses=1)
                return Restored()
            loaded, failed = self._load(chain, plan)
            if failed is None:
                break
            gone.add((failed.digest, failed.tier))
            present = tuple(x for x in present if (x.digest, x.tier) not in gone)
        self._count(plan, time.perf_counter() - started)
        return Restored(plan.tokens, loaded)

    def header(
        self, chain: PrefixChain, end_tokens: int, layers: tuple[LayerRecord, ...]
    ) -> BlockHeader:
        """Return the header of the block of a sequence that ends after `end_tokens` tokens."""
        index = (end_tokens - 1) // chain.block_tokens
        tokens = end_tokens - index * chain.block_tokens
        return BlockHeader(
            chain.digest_at(index, tokens),
            chain.parent(index),
            index,
            tokens,
            chain.ids_digest(index, tokens),
            self._fingerprint,
            layers,
            # A snapshot cannot be cut short.
            () if self._layout.snapshot_mask else chain.cuts(index, tokens - 1),
        )

    def holds(self, chain: PrefixChain, end_tokens: int, *, snapshot: bool) -> bool:
        """Return whether a block need not be captured (again).

        With `snapshot` one that was stored without does not count.
        """
        mask = self._layout.snapshot_mask if snapshot else 0
        index = (end_tokens - 1) // chain.block_tokens
        digest = chain.digest_at(index, end_tokens - index * chain.block_tokens)
        in_ram = self._hot is None or self._hot.contains(digest, mask)
        on_disk = self._disk is None or self._disk.store.contains(digest, mask)
        return in_ram and on_disk and (self._hot is not None or self._disk is not None)

    def keep(self, block: Block) -> bool:
        """Store a captured block in both tiers; False when neither took it."""
        in_ram = self._hot is not None and self._hot.put(block)
        if self._disk is None:
            return in_ram
        outcome = self._disk.writer.submit(block)
        return in_ram or outcome in ("accepted", "already")

    def _present(self, chain: PrefixChain) -> tuple[StoredBlock, ...]:
        hot = self._hot.find(chain) if self._hot is not None else ()
        disk = self._disk.store.find(chain) if self._disk is not None else ()
        return (*hot, *disk)

    def _cuts(self, chain: PrefixChain, present: tuple[StoredBlock, ...]) -> tuple[CutBlock, ...]:
        index, cuts = wanted_cuts(chain, self._layout, present)
        hot = self._hot.find_cut(cuts) if self._hot is not None else None
        disk = self._disk.store.find_cut(cuts) if self._disk is not None else None
        return tuple(x for x in (hot, disk) if x is not None and x.block.index == index)

    def _load(
        self, chain: PrefixChain, plan: RestorePlan
    ) -> tuple[tuple[LoadedBlock, ...], StoredBlock | None]:
        """Read all blocks of a plan; stop at the first that cannot be had, and name it."""
        loaded: list[LoadedBlock] = []
        digests = {
            tier: [use.block.digest for use in plan.blocks if use.block.tier is tier]
            for tier in Tier
        }
        with ExitStack() as held:
            if self._hot is not None:
                held.enter_context(self._hot.pinned([use.block.digest for use in plan.blocks]))
            if self._disk is not None:
                held.enter_context(self._disk.store.leased(digests[Tier.SSD]))
            for use in plan.blocks:
                block = self._read(chain, use)
                if block is None:
                    return (), use.block
                loaded.append(LoadedBlock(block, use))
        if self._disk is not None and digests[Tier.HOT]:
            self._disk.writer.touch(digests[Tier.HOT])
        return tuple(loaded), None

    def _read(self, chain: PrefixChain, use: BlockUse) -> Block | None:
        if use.block.tier is Tier.HOT:
            return self._hot.get(use.block.digest) if self._hot is not None else None
        if self._disk is None:
            return None
        block = self._disk.store.get(self._expected(chain, use))
        if block is not None and self._hot is not None:
            self._hot.put(block)
        return block

    def _expected(self, chain: PrefixChain, use: BlockUse) -> Expected:
        if use.cut_tokens:
            return expect_cut(chain, self._fingerprint, CutBlock(use.block, use.cut_tokens))
        return expect(chain, self._fingerprint, use.block.index, use.block.tokens)

    def _count(self, plan: RestorePlan, seconds: float) -> None:
        tiers = [use.block.tier for use in plan.blocks]
        self._stats.add(
            hot_hits=tiers.count(Tier.HOT),
            ssd_hits=tiers.count(Tier.SSD),
            tokens_saved=plan.tokens,
            restores=1,
            restore_seconds=seconds,
        )
