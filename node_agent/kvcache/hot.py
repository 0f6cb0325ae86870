"""The RAM tier: blocks as bytes, least recently used first out, never over its capacity.

Owns the blocks it holds; one thread calls it, the engine's. Its bytes are counted in the node's
memory ledger by whoever set the capacity.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from manifests.wire.prefix_chain import PrefixChain
from node_agent.kvcache.block import Block, StoredBlock, Tier, stored
from node_agent.kvcache.restore_plan import wanted_digests
from node_agent.kvcache.stats import StatsCounter


class HotTier:
    """Blocks in RAM. A block that another one here needs goes after it, never before."""

    def __init__(self, capacity_bytes: int, stats: StatsCounter) -> None:
        self._capacity_bytes = capacity_bytes
        self._stats = stats
        self._blocks: OrderedDict[bytes, Block] = OrderedDict()
        self._children: dict[bytes, set[bytes]] = {}
        self._pins: Counter[bytes] = Counter()
        self._used_bytes = 0

    @property
    def used_bytes(self) -> int:
        """Return the bytes held."""
        return self._used_bytes

    @property
    def capacity_bytes(self) -> int:
        """Return the bytes that may be held."""
        return self._capacity_bytes

    def __len__(self) -> int:
        return len(self._blocks)

    def find(self, chain: PrefixChain) -> tuple[StoredBlock, ...]:
        """Return all blocks that a sequence could start from; for `plan_restore`."""
        digests, parents = wanted_digests(chain)
        names = {digest for digest in digests if digest in self._blocks}
        for parent in parents:
            for child in self._children.get(parent, ()):
                if self._blocks[child].header.tokens < chain.block_tokens:
                    names.add(child)
        return tuple(
            stored(self._blocks[name].header, self._blocks[name].payload_bytes, Tier.HOT)
            for name in names
        )

    def get(self, digest: bytes) -> Block | None:
        """Return a block without noting its use; `pinned` does that for a whole restore."""
        return self._blocks.get(digest)

    def names(self, snapshot_mask: int, block_tokens: int) -> frozenset[bytes]:
        """Return the full blocks that carry all these snapshots."""
        return frozenset(
            digest
            for digest, block in self._blocks.items()
            if block.header.tokens == block_tokens
            and block.header.snapshot_mask & snapshot_mask == snapshot_mask
        )

    def put(self, block: Block) -> bool:
        """Keep a block as the most recently used; False when there is no room for it."""
        digest, size_bytes = block.header.digest, block.payload_bytes
        if digest in self._blocks:
            self._blocks.move_to_end(digest)
            return True
        if size_bytes > self._capacity_bytes:
            return False
        self._blocks[digest] = block
        self._children.setdefault(block.header.parent, set()).add(digest)
        self._used_bytes += size_bytes
        with self.pinned([digest, block.header.parent]):
            self._shrink()
        if self._used_bytes > self._capacity_bytes:
            self._remove(digest)  # all else is pinned
        return digest in self._blocks

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
        before = self._used_bytes
        self._capacity_bytes = capacity_bytes
        self._shrink()
        return before - self._used_bytes

    def wipe(self, fingerprint: str | None = None) -> None:
        """Forget one model's blocks, or all."""
        for digest, block in list(self._blocks.items()):
            if fingerprint is None or block.header.fingerprint == fingerprint:
                self._remove(digest)

    def _shrink(self) -> None:
        while self._used_bytes > self._capacity_bytes:
            victim = next((name for name in self._blocks if self._may_go(name)), None)
            if victim is None:
                return
            self._remove(victim)
            self._stats.add(hot_evictions=1)

    def _may_go(self, digest: bytes) -> bool:
        if self._pins[digest]:
            return False
        needed_by = self._children.get(digest, ())
        return not any(self._blocks[child].header.needs_parent for child in needed_by)

    def _remove(self, digest: bytes) -> None:
        block = self._blocks.pop(digest)
        siblings = self._children[block.header.parent]
        siblings.discard(digest)
        if not siblings:
            del self._children[block.header.parent]
        self._used_bytes -= block.payload_bytes
