"""Which cached blocks a prompt starts from.

Owns the decision only; pure. The engine gathers what the tiers hold for a chain, asks here,
loads the blocks, and asks again without a block that proved damaged or gone.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from manifests.wire.prefix_chain import CUT_BYTES, CUT_TOKENS, PrefixChain
from node_agent.kvcache.block import CutBlock, StoredBlock, Tier
from node_agent.kvcache.layer_kinds import CacheLayout


@dataclass(frozen=True, slots=True)
class BlockUse:
    """A block to load.

    `take_tokens` is less than the block's own count where sliceable layers must be cut short.
    `use_snapshot` is set on the last block when the layout has snapshot layers: their state comes
    from it and from no other. `cut_tokens` is not 0 for a block of which only so many tokens are
    the sequence's.
    """

    block: StoredBlock
    take_tokens: int
    use_snapshot: bool
    cut_tokens: int = 0


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """Blocks in order; after them every layer stands at `tokens`. Empty: start from nothing.

    `late` says that the disk's index was slow to answer: it may hold more.
    """

    tokens: int = 0
    blocks: tuple[BlockUse, ...] = ()
    late: bool = False

    def load_bytes(self, tier: Tier) -> int:
        """Return what is read from one tier."""
        return sum(use.block.size_bytes for use in self.blocks if use.block.tier is tier)


def wanted_digests(chain: PrefixChain) -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
    """Return what to ask the tiers for: names of full blocks, and parents of partial ones.

    Partial blocks hang from any of the parents; a tier answers with those it holds.
    """
    return chain.digests, (chain.root_digest, *chain.digests)


def wanted_cuts(
    chain: PrefixChain, layout: CacheLayout, present: Iterable[StoredBlock]
) -> tuple[int, tuple[bytes, ...]]:
    """Return the block where a sequence turns off from what is stored, and names of its cuts.

    A tier that holds a block with one of these cuts may be started from in that block's middle.
    """
    index = _reach(chain, layout, _by_digest(present, layout.snapshot_mask))
    if layout.snapshot_mask:
        return index, ()
    rest = chain.tokens - index * chain.block_tokens
    return index, chain.cuts(index, min(rest, chain.block_tokens - 1))


def plan_restore(
    chain: PrefixChain,
    layout: CacheLayout,
    present: Iterable[StoredBlock],
    cuts: Iterable[CutBlock] = (),
) -> RestorePlan:
    """Return the deepest start that is valid for every layer.

    It is never past the last token but one: the last token is always fed, its logits are what
    the prompt is for. All layers stand at one length: sliceable layers are joined from all blocks,
    snapshot layers come from the last block, so that block must carry all of them (B29, B30).
    `cuts` are what tiers found for `wanted_cuts`; a block is used in part only where that is
    deeper than any whole one.
    """
    known = _by_digest(present, layout.snapshot_mask)
    limit = chain.tokens - 1
    reach = _reach(chain, layout, known)
    best: tuple[int, int, StoredBlock] | None = None
    for block in known.values():
        take = _usable_tokens(chain, layout, block, reach, limit)
        end = block.index * chain.block_tokens + take
        # On a draw a full block is better than a partial one: the whole chain is of one kind.
        if take and (best is None or (end, block.tokens) > (best[0], best[2].tokens)):
            best = (end, take, block)
    use = None if best is None else BlockUse(best[2], best[1], bool(layout.snapshot_mask))
    end = 0 if best is None else best[0]
    for cut in () if layout.snapshot_mask else cuts:
        start = cut.block.index * chain.block_tokens
        cut_end = min(start + cut.tokens, limit)
        if cut.block.index == reach and cut_end > max(end, start):
            end, use = cut_end, BlockUse(cut.block, cut_end - start, False, cut.tokens)
    if use is None:
        return RestorePlan()
    return RestorePlan(end, (*_blocks_before(chain, layout, known, use.block), use))


def measure_cut(chain: PrefixChain, use: BlockUse, marks: bytes) -> BlockUse:
    """Return a use of a block's beginning that ends where the sequence turns off, to the token.

    `marks` are the block's own, now that it is read. Never past the last token but one.
    """
    index, taken = use.block.index, use.take_tokens
    left_tokens = chain.tokens - 1 - index * chain.block_tokens
    # Another cut would have been found, were the next one equal.
    limit = min(use.cut_tokens + CUT_TOKENS - 1, left_tokens, len(marks) // CUT_BYTES)
    if not use.cut_tokens or limit <= taken:
        return use
    ours = chain.marks(index, limit)
    while taken < limit and _mark(ours, taken) == _mark(marks, taken):
        taken += 1
    return replace(use, take_tokens=taken)


def _mark(marks: bytes, tokens: int) -> bytes:
    """Return the mark after one token more."""
    return marks[tokens * CUT_BYTES : (tokens + 1) * CUT_BYTES]


def _by_digest(present: Iterable[StoredBlock], mask: int) -> Mapping[bytes, StoredBlock]:
    """Keep one copy of each block: with snapshots rather than without, then the faster tier."""
    known: dict[bytes, StoredBlock] = {}
    for block in present:
        other = known.get(block.digest)
        if other is None or _worth(block, mask) > _worth(other, mask):
            known[block.digest] = block
    return known


def _worth(block: StoredBlock, mask: int) -> tuple[bool, int]:
    return (block.snapshot_mask & mask == mask, -block.tier)


def _reach(chain: PrefixChain, layout: CacheLayout, known: Mapping[bytes, StoredBlock]) -> int:
    """Return how many full blocks from the start are there without a gap."""
    if not layout.needs_chain:
        return len(chain.digests)
    for index, digest in enumerate(chain.digests):
        if digest not in known:
            return index
    return len(chain.digests)


def _usable_tokens(
    chain: PrefixChain, layout: CacheLayout, block: StoredBlock, reach: int, limit: int
) -> int:
    """Return how many tokens of a block may be the end of a restore; 0 when none."""
    start = block.index * chain.block_tokens
    end = start + block.tokens
    if not 0 <= block.index <= reach or not 0 < block.tokens <= chain.block_tokens:
        return 0
    if end > chain.tokens or chain.digest_at(block.index, block.tokens) != block.digest:
        return 0
    if layout.snapshot_mask:
        complete = block.snapshot_mask & layout.snapshot_mask == layout.snapshot_mask
        return block.tokens if complete and end <= limit else 0
    return min(end, limit) - start


def _blocks_before(
    chain: PrefixChain,
    layout: CacheLayout,
    known: Mapping[bytes, StoredBlock],
    last: StoredBlock,
) -> Iterator[BlockUse]:
    if not layout.needs_chain:
        return
    for digest in chain.digests[: last.index]:
        yield BlockUse(known[digest], known[digest].tokens, use_snapshot=False)
