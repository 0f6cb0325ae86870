"""One restore on its way: planned, read beside the engine's thread, planned anew where that fails.

Owns what a restore holds meanwhile: pins in RAM, and leases on the disk while blocks are read.
The engine's thread asks `poll` until there is an answer, and calls `close` when it is done with
the blocks, or wants them no more.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial

from manifests.wire.prefix_chain import PrefixChain
from node_agent.kvcache.block import Block, CutBlock, StoredBlock, Tier
from node_agent.kvcache.block_format import Expected, expect, expect_cut
from node_agent.kvcache.hot import HotTier
from node_agent.kvcache.readers import READER_THREADS, Readers
from node_agent.kvcache.restore_plan import BlockUse, RestorePlan, measure_cut
from node_agent.kvcache.ssd_store import SsdStore
from node_agent.kvcache.ssd_writer import SsdWriter
from node_agent.kvcache.stats import StatsCounter

Gone = frozenset[tuple[bytes, Tier]]
# Blocks that were read, None for one that is not to be had.
Found = dict[bytes, Block | None]


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


@dataclass(frozen=True, slots=True)
class RestoreSource:
    """Where a sequence's blocks come from. `plan` says what to start from without some blocks."""

    chain: PrefixChain
    fingerprint: str
    hot: HotTier | None
    disk: DiskTier | None
    stats: StatsCounter
    plan: Callable[[Gone], RestorePlan]


@dataclass(slots=True)
class _Reading:
    """What the readers have found so far; they stop at the next block once it is given up."""

    found: Found = field(default_factory=dict)
    given_up: bool = False


class Restoring:
    """One sequence's restore."""

    def __init__(self, source: RestoreSource, readers: Readers) -> None:
        """Begin to read."""
        self._source, self._readers = source, readers
        self._started_seconds = time.perf_counter()
        self._held = ExitStack()
        self._gone: Gone = frozenset()
        self._begin()

    def poll(self, wait_seconds: float | None) -> Restored | None:
        """Return what was read, None while it is on its way; wait so long for it at most.

        A block that is gone or damaged is left out and the next best start is tried. So is what a
        disk that hangs has not given by now.
        """
        while self._plan.blocks:
            if wait(self._reads, wait_seconds).not_done:
                disk = self._source.disk
                if disk is None or not disk.store.link.watch.hanging:
                    return None
                self._leave(disk)
                continue
            failed, blocks = self._collect()
            if failed is None:
                return self._finish(blocks)
            self._gone |= {(failed.digest, failed.tier)}
            self._held.close()
            self._begin()
        self._source.stats.add(misses=1)
        return Restored()

    def close(self) -> None:
        """Let the blocks go; what is not read yet is not read any more."""
        self._reading.given_up = True
        for read in self._reads:
            read.cancel()
        self._held.close()

    def _begin(self) -> None:
        """Plan, hold the blocks in RAM and have the others read, dealt out to the readers."""
        source = self._source
        self._plan = source.plan(self._gone)
        self._reads: list[Future[None]] = []
        self._reading = reading = _Reading()
        if source.hot is not None:
            digests = [use.block.digest for use in self._plan.blocks]
            self._held.enter_context(source.hot.pinned(digests))
        cold = [use for use in self._plan.blocks if use.block.tier is Tier.SSD]
        for number in range(min(READER_THREADS, len(cold))):
            part = cold[number::READER_THREADS]
            self._reads.append(self._readers.submit(partial(self._read, part, reading)))

    def _read(self, uses: Sequence[BlockUse], reading: _Reading) -> None:
        """Read blocks, up to the first that cannot be had. On a reader's thread."""
        disk = self._source.disk
        if disk is None:
            return
        with disk.store.leased([use.block.digest for use in uses]):
            for use in uses:
                if reading.given_up or self._readers.closing:
                    break
                block = disk.store.get(self._expected(use))
                if reading.given_up:
                    break
                reading.found[use.block.digest] = block
                if block is None:
                    break

    def _leave(self, disk: DiskTier) -> None:
        """Go on without the disk, with what RAM holds and what was read."""
        reading = self._reading
        self.close()
        cold = [use.block for use in self._plan.blocks if use.block.tier is Tier.SSD]
        for block in [reading.found.get(one.digest) for one in cold]:
            if block is not None and self._source.hot is not None:
                self._source.hot.put(block)
        self._gone |= {(one.digest, one.tier) for one in cold}
        self._source.stats.add(stalls=1)
        disk.store.link.tell_hanging()
        self._begin()

    def _expected(self, use: BlockUse) -> Expected:
        chain, fingerprint = self._source.chain, self._source.fingerprint
        if use.cut_tokens:
            return expect_cut(chain, fingerprint, CutBlock(use.block, use.cut_tokens))
        return expect(chain, fingerprint, use.block.index, use.block.tokens)

    def _collect(self) -> tuple[StoredBlock | None, list[Block]]:
        """Return the plan's blocks in order, or the first that cannot be had."""
        hot, read, blocks = self._source.hot, self._reading.found, list[Block]()
        for one in self._reads:
            one.result()
        for use in self._plan.blocks:
            digest = use.block.digest
            if use.block.tier is Tier.SSD:
                block = read.get(digest)
                if block is not None and hot is not None:
                    hot.put(block)
            else:
                block = None if hot is None else hot.get(digest)
            if block is None:
                return use.block, []
            blocks.append(block)
        return None, blocks

    def _finish(self, blocks: Sequence[Block]) -> Restored:
        """Measure how much of the last block is the sequence's, and count."""
        source, plan = self._source, self._plan
        last = measure_cut(source.chain, plan.blocks[-1], blocks[-1].header.marks)
        tokens = plan.tokens + last.take_tokens - plan.blocks[-1].take_tokens
        uses = (*plan.blocks[:-1], last)
        hot = [use.block.digest for use in uses if use.block.tier is Tier.HOT]
        if source.disk is not None and hot:
            source.disk.writer.touch(hot)
        source.stats.add(
            hot_hits=len(hot),
            ssd_hits=len(uses) - len(hot),
            tokens_saved=tokens,
            restores=1,
            restore_seconds=time.perf_counter() - self._started_seconds,
        )
        return Restored(tokens, tuple(map(LoadedBlock, blocks, uses)))
