"""The blocks of the RAM tier with the ways to find them: by name, by parent, by cut.

Owns the three indexes, which always agree. What may stay and what goes is the tier's to say.
"""

from collections import OrderedDict
from collections.abc import Sequence

from manifests.wire.prefix_chain import CUT_TOKENS, PrefixChain
from node_agent.kvcache.block import Block, CutBlock, StoredBlock, Tier, stored
from node_agent.kvcache.restore_plan import wanted_digests


class HotShelf:
    """Blocks in the order of their use, the last one last. Units: `used_bytes` of payload."""

    def __init__(self) -> None:
        self.blocks: OrderedDict[bytes, Block] = OrderedDict()
        self.used_bytes = 0
        self._children: dict[bytes, set[bytes]] = {}
        self._cuts: dict[bytes, set[bytes]] = {}

    def enter(self, block: Block) -> None:
        """Take in a block whose name is not here."""
        header = block.header
        self.blocks[header.digest] = block
        self._children.setdefault(header.parent, set()).add(header.digest)
        for cut in header.cuts:
            self._cuts.setdefault(cut, set()).add(header.digest)
        self.used_bytes += block.payload_bytes

    def remove(self, digest: bytes) -> None:
        """Let a block go that is here."""
        block = self.blocks.pop(digest)
        _drop(self._children, block.header.parent, digest)
        for cut in block.header.cuts:
            _drop(self._cuts, cut, digest)
        self.used_bytes -= block.payload_bytes

    def is_needed(self, digest: bytes) -> bool:
        """Return whether a block here is of use only together with this one."""
        needed_by = self._children.get(digest, ())
        return any(self.blocks[child].header.needs_parent for child in needed_by)

    def find(self, chain: PrefixChain) -> tuple[StoredBlock, ...]:
        """Return the full blocks of a sequence, and partial ones that follow these."""
        digests, parents = wanted_digests(chain)
        names = {digest for digest in digests if digest in self.blocks}
        for parent in parents:
            for child in self._children.get(parent, ()):
                if self.blocks[child].header.tokens < chain.block_tokens:
                    names.add(child)
        return tuple(self._stored(name) for name in names)

    def find_cut(self, cuts: Sequence[bytes]) -> CutBlock | None:
        """Return a block with the last of these cuts that any has."""
        for number in range(len(cuts), 0, -1):
            for digest in self._cuts.get(cuts[number - 1], ()):
                return CutBlock(self._stored(digest), number * CUT_TOKENS)
        return None

    def _stored(self, digest: bytes) -> StoredBlock:
        block = self.blocks[digest]
        return stored(block.header, block.payload_bytes, Tier.HOT)


def _drop(names: dict[bytes, set[bytes]], key: bytes, digest: bytes) -> None:
    names[key].discard(digest)
    if not names[key]:
        del names[key]
