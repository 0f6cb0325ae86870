"""Blocks, chains and stores of the KV cache for tests, small enough to read."""

import os
import random
from dataclasses import dataclass, replace
from pathlib import Path

from manifests.wire.prefix_chain import ChainRoot, PrefixChain
from node_agent.kvcache.block import Block, BlockHeader, LayerRecord, TensorBytes
from node_agent.kvcache.block_format import Expected, expect
from node_agent.kvcache.layer_kinds import CacheLayout, LayerDescriptor, LayerKind
from node_agent.kvcache.ssd_budget import SsdBudget
from node_agent.kvcache.ssd_link import SsdLink, SsdSettings
from node_agent.kvcache.ssd_store import SsdStore
from node_agent.kvcache.stats import StatsCounter

FINGERPRINT = "tiny"
ROOT = ChainRoot(FINGERPRINT)
BLOCK_TOKENS = 4
KV = LayerDescriptor(LayerKind.SLICEABLE, "KVCache", token_bytes=8)
ROTATING = LayerDescriptor(LayerKind.SNAPSHOT, "RotatingKVCache", snapshot_bytes=100)
DENSE = CacheLayout((KV, KV))
HYBRID = CacheLayout((KV, ROTATING))
RECURRENT = CacheLayout((ROTATING, ROTATING))
PLENTY = SsdBudget(size_bytes=1 << 30)


class Clock:
    """Seconds that pass only when told."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


def chain(*tokens: int, block_tokens: int = BLOCK_TOKENS, root: ChainRoot = ROOT) -> PrefixChain:
    return PrefixChain.of(root, tokens, block_tokens)


def long_chain(blocks: int, seed: int = 0, block_tokens: int = BLOCK_TOKENS) -> PrefixChain:
    source = random.Random(seed)
    ids = [source.randrange(1 << 17) for _ in range(blocks * block_tokens)]
    return PrefixChain.of(ROOT, ids, block_tokens)


def wanted(of: PrefixChain, index: int, tokens: int | None = None) -> Expected:
    return expect(of, FINGERPRINT, index, tokens or of.block_tokens)


def block(
    of: PrefixChain,
    index: int,
    *,
    tokens: int | None = None,
    layout: CacheLayout = DENSE,
    snapshot: bool = True,
    payload: int = 4096,
) -> Block:
    """Return block `index` of a sequence; its bytes are random, and different for each block."""
    expected = wanted(of, index, tokens)
    layers = tuple(
        LayerRecord(x.kind, x.cache_class, x.kind is LayerKind.SLICEABLE or snapshot, "{}")
        for x in layout.layers
    )
    source = random.Random(expected.digest)
    tensors = tuple(
        TensorBytes(f"{n}.keys", "BF16", (payload // 2,), source.randbytes(payload))
        for n, layer in enumerate(layers)
        if layer.present
    )
    return Block(
        BlockHeader(
            expected.digest,
            expected.parent,
            expected.index,
            expected.tokens,
            of.ids_digest(index, expected.tokens),
            FINGERPRINT,
            layers,
            () if layout.snapshot_mask else of.cuts(index, expected.tokens - 1),
            b"" if layout.snapshot_mask else of.marks(index, expected.tokens - 1),
        ),
        tensors,
    )


def same_content(left: Block | None, right: Block) -> bool:
    if left is None or left.header != right.header:
        return False
    plain = [[replace(t, data=bytes(t.data)) for t in x.tensors] for x in (left, right)]
    return plain[0] == plain[1]


@dataclass
class Disk:
    """A store in a directory, opened."""

    store: SsdStore
    link: SsdLink
    stats: StatsCounter
    clock: Clock
    path: Path

    def blocks(self) -> list[Path]:
        return sorted((self.path / "blocks").glob("*.safetensors"))

    def file(self, of: PrefixChain, index: int) -> Path:
        return self.path / "blocks" / f"{of.digests[index].hex()}.safetensors"


def open_disk(
    path: Path,
    budget: SsdBudget = PLENTY,
    *,
    memory_file: Path | None = None,
    durable: bool = False,
    clock: Clock | None = None,
) -> Disk:
    clock, stats = clock or Clock(), StatsCounter()
    link = SsdLink(SsdSettings(path, memory_file, durable), budget, stats, clock)
    link.probe()
    return Disk(SsdStore(link), link, stats, clock, path)


def bytes_on_disk(path: Path) -> int:
    """Return what du says of a directory's files."""
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                total += (Path(folder) / name).lstat().st_blocks * 512
            except FileNotFoundError:
                continue
    return total
