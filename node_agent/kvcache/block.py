"""The values that tiers hand to each other: a block's header, its tensors, what a tier knows.

Owns values only. Made by the engine when it captures a cache, and by the block format when it
reads a file.
"""

from dataclasses import dataclass
from enum import IntEnum

from node_agent.kvcache.layer_kinds import LayerKind


class Tier(IntEnum):
    """Where a block is; the lower, the faster."""

    HOT = 0
    SSD = 1


@dataclass(frozen=True, slots=True)
class LayerRecord:
    """What a block holds of one layer.

    `present` is False for a SNAPSHOT layer in a block without a snapshot; it then has no tensors.
    `skeleton` is text of the engine's own making (JSON) with what is no array: offsets, window
    positions, the shape of nested state.
    """

    kind: LayerKind
    cache_class: str
    present: bool = True
    skeleton: str = ""


@dataclass(frozen=True, slots=True)
class TensorBytes:
    """One array as it lies in memory, C order, little-endian.

    `dtype` is safetensors' name (BF16, F16, F32, U32 ...), so bf16 needs no other library.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: bytes | memoryview


@dataclass(frozen=True, slots=True)
class BlockHeader:
    """What a block is.

    `digest` names it, `parent` is the digest before it. `index` counts blocks from the start, so
    it covers tokens `index * block size ..` and `tokens` of them. `ids_digest` is
    `PrefixChain.ids_digest`. `fingerprint` is `cache_fingerprint`. `cuts` are `PrefixChain.cuts`,
    by which its beginning is found; empty when it has snapshots or was stored without. `marks`
    are `PrefixChain.marks`, by which that is measured; empty where `cuts` are, and in older blocks.
    """

    digest: bytes
    parent: bytes
    index: int
    tokens: int
    ids_digest: bytes
    fingerprint: str
    layers: tuple[LayerRecord, ...]
    cuts: tuple[bytes, ...] = ()
    marks: bytes = b""

    @property
    def snapshot_mask(self) -> int:
        """Return a bit for each SNAPSHOT layer whose state at the block's end is here."""
        return sum(
            1 << number
            for number, layer in enumerate(self.layers)
            if layer.present and layer.kind is LayerKind.SNAPSHOT
        )

    @property
    def needs_parent(self) -> bool:
        """Return whether the block is of use only together with all blocks before it."""
        return self.index > 0 and any(x.kind is LayerKind.SLICEABLE for x in self.layers)


@dataclass(frozen=True, slots=True)
class Block:
    """A block with its bytes. Tensors of layer 3 are named `3.<anything>`."""

    header: BlockHeader
    tensors: tuple[TensorBytes, ...]

    @property
    def payload_bytes(self) -> int:
        """Return the size of all tensors."""
        return sum(memoryview(tensor.data).nbytes for tensor in self.tensors)


@dataclass(frozen=True, slots=True)
class StoredBlock:
    """What a tier knows of a block without reading it. Units: `size_bytes` in that tier."""

    digest: bytes
    parent: bytes
    index: int
    tokens: int
    snapshot_mask: int
    size_bytes: int
    tier: Tier
    needs_parent: bool = True


@dataclass(frozen=True, slots=True)
class CutBlock:
    """A block of which only the first `tokens` tokens are a sequence's, found by their name."""

    block: StoredBlock
    tokens: int


def stored(header: BlockHeader, size_bytes: int, tier: Tier) -> StoredBlock:
    """Return what a tier remembers of a block."""
    return StoredBlock(
        header.digest,
        header.parent,
        header.index,
        header.tokens,
        header.snapshot_mask,
        size_bytes,
        tier,
        header.needs_parent,
    )
