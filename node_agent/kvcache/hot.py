"""The RAM tier: blocks as bytes, least recently used first out, never over its capacity.

Owns the blocks it holds; one thread calls it, the engine's. Its bytes are counted in the node's
memory ledger by whoever set the capacity.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from manifests.wire.prefix_chain import PrefixChain
from node_agent.kvcache.block import Block, CutBlock, StoredBlock
from node_agent.kvcache.hot_shelf import HotShelf
from node_agent.kvcache.stats import StatsCounter


class HotTier:
    """Blocks in RAM. A block that another one here needs goes after it, never before."""

    def __init__(self, capacity_bytes: int, stats: StatsCounter) -> None:
        self._capacity_bytes = capacity_bytes
        self._stats = stats
        self._shelf = HotShelf()
        self._blocks = self._shelf.blocks
        self._pins: Counter[bytes] = Counter()

    @property
    def used_bytes(self) -> int:
        """Return the bytes held."""
        return self._shelf.used_bytes

    @property
    def capacity_bytes(self) -> int:
        """Return the bytes that may be held."""
        return self._capacity_bytes

    def __len__(self) -> int:
        return len(self._blocks)

    def find(self, chain: PrefixChain) -> tuple[StoredBlock, ...]:
        """Return all blocks that a sequence could start from; for `plan_restore`."""
        return self._shelf.find(chain)

    def find_cut(self, cuts: Sequence[bytes]) -> CutBlock | None:
        """Return a block with the last of these cuts that any has; see `wanted_cuts`."""
        return self._shelf.find_cut(cuts)

    def get(self, digest: bytes) -> Block | None:
        """Return a block without noting its use; `pinned` does that for a whole restore."""
        return self._blocks.get(digest)

    def contains(self, digest: bytes, snapshot_mask: int = 0) -> bool:
        """Return whether a block is here, with all these snapshots."""
        block = self._blocks.get(digest)
        return block is not None and block.header.snapshot_mask & snapshot_mask == snapshot_mask

    def names(self, snapshot_mask: int, block_tokens: int) -> frozenset[bytes]:
        """Return the full blocks that carry all these snapshots."""
        return frozenset(
            digest
            for digest, block in self._blocks.items()
            if block.header.tokens == block_tokens
            and block.header.snapshot_mask & snapshot_mask == snapshot_mask
        )

    def put(self, block: Block) -> bool:
        """Keep a block as the most recently used; False when there is no room for it.

        It takes the place of one with the same name that lacks a snapshot it has.
        """
        digest, other = block.header.digest, self._blocks.get(block.header.digest)
        if other is not None and not block.header.snapshot_mask & ~other.header.snapshot_mask:
            self._blocks.move_to_end(digest)
            return True
        if block.payload_bytes > self._capacity_bytes:
            return False
        if other is not None:
            self._shelf.remove(digest)
        self._shelf.enter(block)
        with self.pinned([digest, block.header.parent]):
            self._shrink()
        if self._shelf.used_bytes > self._capacity_bytes:  # all else is pinned
            self._shelf.remove(digest)
            if other is not None:
                self._shelf.enter(other)
        return self._blocks.get(digest) is block

    @contextmanager
    def pinned(self, digests: Iterable[bytes]) -> Iterator[None]:
        """Hold blocks, given in the order of their chain, and note their use.

        The last of a chain counts as used first, so that a chain is given up from its end.
        """
        held = tuple(digests)
        for digest in reversed(held):
            if digest in self._blocks:
                self._blocks.move_to_end(digest)
        self._pins.update(held)
        try:
            yield
        finally:
            self._pins.subtract(held)
            self._pins = +self._pins
            self._shrink()

    def resize(self, capacity_bytes: int) -> int:
        """Set the capacity and give up what is over it at once; return the bytes given up.

        What a restore holds goes when the restore is done.
        """
        before = self._shelf.used_bytes
        self._capacity_bytes = capacity_bytes
        self._shrink()
        return before - self._shelf.used_bytes

    def wipe(self, fingerprint: str | None = None) -> None:
        """Forget one model's blocks, or all."""
        for digest, block in list(self._blocks.items()):
            if fingerprint is None or block.header.fingerprint == fingerprint:
                self._shelf.remove(digest)

    def _shrink(self) -> None:
        while self._shelf.used_bytes > self._capacity_bytes:
            free = (name for name in self._blocks if not self._pins[name])
            victim = next((name for name in free if not self._shelf.is_needed(name)), None)
            if victim is None:
                return
            self._shelf.remove(victim)
            self._stats.add(hot_evictions=1)
