"""The cache of one engine: RAM and disk behind three calls.

Owns the order of tiers. The engine's thread calls it: `plan` when a request is about to start,
`begin` to have the blocks it starts from read, `keep` for every captured block.
Both tiers may be None. It never raises for what a tier does: the worst case is a cold start.

    chain = PrefixChain.of(ChainRoot(fingerprint, extra_keys), prompt_ids, block_tokens)
    restored = tiers.restore(chain)            # blocks in order; all layers end at restored.tokens
                                               # (`begin` reads them beside the caller's thread)
    for capture in plan_captures(layout, rules, chain.tokens, restored.tokens): ...
    tiers.keep(Block(tiers.header(chain, end_tokens, layers), tensors))
"""

from dataclasses import replace

from manifests.wire.prefix_chain import PrefixChain
from node_agent.kvcache.block import Block, BlockHeader, LayerRecord
from node_agent.kvcache.hot import HotTier
from node_agent.kvcache.layer_kinds import CacheLayout
from node_agent.kvcache.readers import InlineReader, Readers
from node_agent.kvcache.restore_plan import RestorePlan, plan_restore, wanted_cuts
from node_agent.kvcache.restoring import (
    DiskTier,
    Gone,
    LoadedBlock,
    Restored,
    RestoreSource,
    Restoring,
)
from node_agent.kvcache.stats import StatsCounter

__all__ = ["CacheTiers", "DiskTier", "LoadedBlock", "Restored"]


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

    def plan(self, chain: PrefixChain, gone: Gone = frozenset()) -> RestorePlan:
        """Return what a sequence could start from without the blocks that are gone, unread."""
        disk = None if self._disk is None else self._disk.store
        hot = () if self._hot is None else self._hot.find(chain)
        stored = () if disk is None else disk.find(chain)
        present = tuple(x for x in (*hot, *(stored or ())) if (x.digest, x.tier) not in gone)
        index, wanted = wanted_cuts(chain, self._layout, present)
        in_ram = None if self._hot is None else self._hot.find_cut(wanted)
        on_disk = () if disk is None else disk.find_cut(wanted)
        cuts = [*([] if in_ram is None else [in_ram]), *(on_disk or ())]
        plan = plan_restore(
            chain,
            self._layout,
            present,
            (
                x
                for x in cuts
                if x.block.index == index and (x.block.digest, x.block.tier) not in gone
            ),
        )
        return replace(plan, late=stored is None or on_disk is None)

    def begin(
        self, chain: PrefixChain, readers: Readers, first: RestorePlan | None = None
    ) -> Restoring:
        """Begin to read what a sequence starts from; what comes from the disk is kept in RAM too.

        `first` is what was planned a moment ago. The caller closes it.
        """
        plans = [] if first is None else [first]

        def plan(gone: Gone) -> RestorePlan:
            return plans.pop() if plans else self.plan(chain, gone)

        source = RestoreSource(chain, self._fingerprint, self._hot, self._disk, self._stats, plan)
        return Restoring(source, readers)

    def restore(self, chain: PrefixChain) -> Restored:
        """Read what a sequence starts from, at once."""
        restoring = self.begin(chain, InlineReader())
        try:
            return restoring.poll(None) or Restored()
        finally:
            restoring.close()

    def header(
        self, chain: PrefixChain, end_tokens: int, layers: tuple[LayerRecord, ...]
    ) -> BlockHeader:
        """Return the header of the block of a sequence that ends after `end_tokens` tokens."""
        index = (end_tokens - 1) // chain.block_tokens
        tokens = end_tokens - index * chain.block_tokens
        # A snapshot cannot be cut short.
        cut_tokens = 0 if self._layout.snapshot_mask else tokens - 1
        return BlockHeader(
            chain.digest_at(index, tokens),
            chain.parent(index),
            index,
            tokens,
            chain.ids_digest(index, tokens),
            self._fingerprint,
            layers,
            chain.cuts(index, cut_tokens),
            chain.marks(index, cut_tokens),
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
