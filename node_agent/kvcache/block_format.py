"""One block as bytes: a safetensors file that proves its own content.

Owns the format. Pure: bytes in, values out; files are `block_file`'s. Any safetensors reader can
open a block; the header's `__metadata__` says what it is. bf16 survives because bytes are never
interpreted here.

A `seal`, XXH3-128 over the header (with the seal's place zeroed) and the payload, stands in the
header: a flipped bit anywhere, a cut, a zeroed page or a mixed-up file is found. It says nothing of
who wrote the file, nor would a longer hash without a key. Formats 1 and 2 had SHA-256 for it, which
took most of the time of a read: four blocks of 11.8 MB by two threads 18 ms, with XXH3 6, and 5
without any seal.

A block holds no token ids. Its `digest` is a hash chain over the ids, and `ids_digest` a keyed
hash of its own ids whose key stands in no file, so with a tenant's salt nobody can test guesses
at a prompt against a stolen header. Both are compared with the request on each load (B33, B97).
Of a block that is used only in its beginning the keyed name of that beginning is compared.
"""

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import xxhash

from manifests.sizing.safetensors_header import DTYPE_BITS, LENGTH_BYTES, WeightsError, parse_header
from manifests.wire.prefix_chain import CUT_BYTES, CUT_TOKENS, DIGEST_BYTES, PrefixChain
from node_agent.kvcache.block import Block, BlockHeader, CutBlock, LayerRecord, TensorBytes
from node_agent.kvcache.layer_kinds import LayerKind

FORMAT_VERSION = "3"
MAX_HEADER_BYTES = 8 << 20
MAX_BLOCK_TOKENS = 1 << 24

_NOWHERE = Path("block")


class _Hasher(Protocol):
    def update(self, data: memoryview, /) -> None: ...

    def hexdigest(self) -> str: ...


# What seals a block, by the version of its format. Version 1 had no cuts: it is used whole.
_SEALS: Mapping[str, Callable[[bytes], _Hasher]] = {
    "1": hashlib.sha256,
    "2": hashlib.sha256,
    FORMAT_VERSION: xxhash.xxh3_128,
}
_SEAL_CHARS: Mapping[str, int] = {
    version: len(new(b"").hexdigest()) for version, new in _SEALS.items()
}
_NO_SEAL = "0" * _SEAL_CHARS[FORMAT_VERSION]


class BlockError(Exception):
    """A stored block cannot be used; it is a miss, and the file is not to be trusted again."""


class BlockDamagedError(BlockError):
    """The bytes are not a whole block of this format."""


class BlockMismatchError(BlockError):
    """A whole block, but not the one asked for."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What a block must be to be used for a request.

    `proof` is the block's `ids_digest`, or, for one that is used in its beginning, one of `cuts`.
    """

    digest: bytes
    parent: bytes
    index: int
    tokens: int
    fingerprint: str
    proof: bytes


def expect(chain: PrefixChain, fingerprint: str, index: int, tokens: int) -> Expected:
    """Return what block `index` of a sequence must be, in its first `tokens` tokens."""
    return Expected(
        chain.digest_at(index, tokens),
        chain.parent(index),
        index,
        tokens,
        fingerprint,
        chain.ids_digest(index, tokens),
    )


def expect_cut(chain: PrefixChain, fingerprint: str, found: CutBlock) -> Expected:
    """Return what a block must be whose first `found.tokens` tokens are a sequence's."""
    block = found.block
    return Expected(
        block.digest,
        chain.parent(block.index),
        block.index,
        block.tokens,
        fingerprint,
        chain.cuts(block.index, found.tokens)[-1],
    )


@dataclass(frozen=True, slots=True)
class EncodedBlock:
    """A block ready to be written; payload parts are the tensors' own memory, not copied."""

    head: bytes
    payload: tuple[bytes | memoryview, ...]
    size_bytes: int

    def joined(self) -> bytes:
        """Return the whole file."""
        return b"".join((self.head, *self.payload))


def encode_block(block: Block) -> EncodedBlock:
    """Return a block as a file. Raises: ValueError for tensors that are not what they state."""
    entries: dict[str, Any] = {"__metadata__": _metadata(block.header)}
    parts, offset = [], 0
    for tensor in block.tensors:
        view = memoryview(tensor.data).cast("B")
        bits = DTYPE_BITS.get(tensor.dtype, 0) * math.prod(tensor.shape)
        if tensor.name in entries or tensor.dtype not in DTYPE_BITS or bits != view.nbytes * 8:
            raise ValueError(
                f"tensor {tensor.name}: {view.nbytes} bytes are no {tensor.dtype} of shape "
                f"{tensor.shape}, or the name is used twice"
            )
        end = offset + view.nbytes
        entries[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": tensor.shape,
            "data_offsets": (offset, end),
        }
        parts.append(view)
        offset = end
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    if len(header) > MAX_HEADER_BYTES:
        raise ValueError(f"a header of {len(header)} bytes; at most {MAX_HEADER_BYTES}")
    seal = _seal(FORMAT_VERSION, header, parts)
    sealed = header.replace(_NO_SEAL.encode(), seal.encode(), 1)
    head = len(sealed).to_bytes(LENGTH_BYTES, "little") + sealed
    return EncodedBlock(head, tuple(parts), len(head) + offset)


def decode_block(data: bytes | memoryview, expected: Expected) -> Block:
    """Return the block in these bytes; its tensors are views into them.

    Raises: BlockDamagedError when the bytes are not a whole, unchanged block; BlockMismatchError
    when they are another block than the one expected.
    """
    view = memoryview(data).cast("B")
    length = header_bytes(view[:LENGTH_BYTES], view.nbytes)
    raw = bytes(view[LENGTH_BYTES : LENGTH_BYTES + length])
    payload = view[LENGTH_BYTES + length :]
    header, tensors, (version, seal) = _parse(raw, payload)
    if raw.count(seal.encode()) != 1:
        raise BlockDamagedError("the seal stands in the header more than once")
    if _seal(version, raw.replace(seal.encode(), b"0" * len(seal)), [payload]) != seal:
        raise BlockDamagedError("the content is not what was sealed")
    for name in ("digest", "parent", "index", "tokens", "fingerprint"):
        if getattr(header, name) != getattr(expected, name):
            raise BlockMismatchError(f"the block's {name} is not the one asked for")
    if expected.proof not in (header.ids_digest, *header.cuts):
        raise BlockMismatchError("the block's ids are not those asked for")
    return Block(header, tensors)


def header_bytes(prefix: bytes | bytearray | memoryview, file_bytes: int) -> int:
    """Return the header's length from the first bytes of a file. Raises: BlockDamagedError."""
    if len(prefix) < LENGTH_BYTES:
        raise BlockDamagedError(f"{file_bytes} bytes are too few for a block")
    length = int.from_bytes(prefix, "little")
    if length > min(MAX_HEADER_BYTES, file_bytes - LENGTH_BYTES):
        raise BlockDamagedError(f"a header of {length} bytes in a file of {file_bytes}")
    return length


def decode_header(raw: bytes, payload_bytes: int) -> BlockHeader:
    """Return what a header says, checked against the size of the file but not against the seal.

    For rebuilding an index: whatever is wrong beyond this is found when the block is loaded.
    Raises: BlockDamagedError.
    """
    entries = _tensor_entries(raw)
    stated_bytes = sum(entry.size_bytes for entry in entries)
    if stated_bytes != payload_bytes:
        raise BlockDamagedError(f"{payload_bytes} bytes of tensors instead of {stated_bytes}")
    return _header(_stated(raw))


def _parse(
    raw: bytes, payload: memoryview
) -> tuple[BlockHeader, tuple[TensorBytes, ...], tuple[str, str]]:
    """Return header, tensors, and the format's version with the seal that is stated."""
    header = decode_header(raw, payload.nbytes)
    tensors = tuple(
        TensorBytes(x.name, x.dtype, x.shape, payload[x.start : x.start + x.size_bytes])
        for x in _tensor_entries(raw)
    )
    stated = _stated(raw)
    version, seal = stated["mlxfleet_block"], stated.get("seal")
    if not isinstance(seal, str) or len(seal) != _SEAL_CHARS[version]:
        raise BlockDamagedError("the header has no seal")
    return header, tensors, (version, seal)


def _tensor_entries(raw: bytes) -> Any:
    try:
        return parse_header(_NOWHERE, raw)
    except WeightsError as error:
        raise BlockDamagedError(str(error)) from error


def _stated(raw: bytes) -> Mapping[str, Any]:
    metadata = json.loads(raw).get("__metadata__")
    if isinstance(metadata, dict):
        version = metadata.get("mlxfleet_block")
        if isinstance(version, str) and version in _SEALS:
            return metadata
    raise BlockDamagedError(f"not a block of format {FORMAT_VERSION}")


def _metadata(header: BlockHeader) -> dict[str, str]:
    """Return the header as strings; the seal comes first so that its place is found at once."""
    return {
        "seal": _NO_SEAL,
        "mlxfleet_block": FORMAT_VERSION,
        "digest": header.digest.hex(),
        "parent": header.parent.hex(),
        "index": str(header.index),
        "tokens": str(header.tokens),
        "ids_digest": header.ids_digest.hex(),
        "fingerprint": header.fingerprint,
        "cuts": b"".join(header.cuts).hex(),
        "marks": header.marks.hex(),
        "layers": json.dumps([asdict(layer) for layer in header.layers], separators=(",", ":")),
    }


def _header(metadata: Mapping[str, Any]) -> BlockHeader:
    try:
        header = BlockHeader(
            digest=_digest(metadata["digest"]),
            parent=_digest(metadata["parent"]),
            index=_number(metadata["index"]),
            tokens=_number(metadata["tokens"]),
            ids_digest=_digest(metadata["ids_digest"]),
            fingerprint=_text(metadata["fingerprint"]),
            layers=tuple(_layer(entry) for entry in json.loads(metadata["layers"])),
            cuts=_cuts(metadata.get("cuts", "")),
            marks=bytes.fromhex(_text(metadata.get("marks", ""))),
        )
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise BlockDamagedError(f"the header does not say what the block is ({error})") from error
    if not 0 < header.tokens <= MAX_BLOCK_TOKENS:
        raise BlockDamagedError(f"a block of {header.tokens} tokens")
    if header.cuts and len(header.cuts) != (header.tokens - 1) // CUT_TOKENS:
        raise BlockDamagedError(f"{len(header.cuts)} cuts in {header.tokens} tokens")
    if header.marks and len(header.marks) != (header.tokens - 1) * CUT_BYTES:
        raise BlockDamagedError(f"{len(header.marks)} bytes of marks in {header.tokens} tokens")
    return header


def _layer(entry: Mapping[str, Any]) -> LayerRecord:
    present = entry["present"]
    if not isinstance(present, bool):
        raise TypeError("present is true or false")
    return LayerRecord(
        LayerKind(entry["kind"]), _text(entry["cache_class"]), present, _text(entry["skeleton"])
    )


def _digest(value: Any) -> bytes:
    raw = bytes.fromhex(_text(value))
    if len(raw) != DIGEST_BYTES:
        raise ValueError(f"a digest of {len(raw)} bytes")
    return raw


def _cuts(value: Any) -> tuple[bytes, ...]:
    raw = bytes.fromhex(_text(value))
    if len(raw) % CUT_BYTES:
        raise ValueError(f"{len(raw)} bytes of cuts")
    return tuple(raw[start : start + CUT_BYTES] for start in range(0, len(raw), CUT_BYTES))


def _number(value: Any) -> int:
    text = _text(value)
    if not text.isascii() or not text.isdigit() or len(text) > 12:
        raise ValueError(f"{text[:20]!r} is not a number")
    return int(text)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"a {type(value).__name__} where a text belongs")
    return value


def _seal(version: str, header: bytes, parts: Sequence[memoryview]) -> str:
    hasher = _SEALS[version](header)
    for part in parts:
        hasher.update(part)
    return hasher.hexdigest()
