"""A block's bytes: whole and the one asked for, or not used."""

import hashlib
import json
from dataclasses import replace

import pytest
from safetensors import deserialize

from node_agent.kvcache.block import Block, TensorBytes
from node_agent.kvcache.block_format import (
    BlockDamagedError,
    BlockError,
    BlockMismatchError,
    decode_block,
    encode_block,
)
from tests.support.kv_blocks import HYBRID, block, chain, same_content, wanted

SEQUENCE = chain(*range(10))
BLOCK = block(SEQUENCE, 1, layout=HYBRID, payload=64)
WHOLE = encode_block(BLOCK).joined()
EXPECTED = wanted(SEQUENCE, 1)
HEADER_END = 8 + int.from_bytes(WHOLE[:8], "little")


def test_a_block_comes_back_as_it_was() -> None:
    assert same_content(decode_block(WHOLE, EXPECTED), BLOCK)
    assert len(WHOLE) == encode_block(BLOCK).size_bytes


def test_a_block_without_a_snapshot_says_so() -> None:
    plain = block(SEQUENCE, 1, layout=HYBRID, snapshot=False, payload=64)
    header = decode_block(encode_block(plain).joined(), EXPECTED).header
    assert (header.snapshot_mask, BLOCK.header.snapshot_mask) == (0, 0b10)


def test_any_safetensors_reader_can_open_it() -> None:
    tensors = dict(deserialize(WHOLE))
    assert tensors["0.keys"]["dtype"] == "BF16"
    assert bytes(tensors["0.keys"]["data"]) == BLOCK.tensors[0].data


def test_a_scalar_and_an_empty_array_survive() -> None:
    odd = (TensorBytes("0.n", "I32", (), b"\1\0\0\0"), TensorBytes("0.e", "F32", (0, 3), b""))
    made = replace(BLOCK, tensors=odd)
    assert same_content(decode_block(encode_block(made).joined(), EXPECTED), made)


def sealed_as(version: object, whole: bytes = WHOLE) -> bytes:
    """Return a block as an older version had it, whose seal is SHA-256."""
    entries = json.loads(whole[8:HEADER_END])
    entries["__metadata__"] |= {"mlxfleet_block": version, "seal": "0" * 64}
    header = json.dumps(entries).encode()
    payload = whole[HEADER_END:]
    seal = hashlib.sha256(header + payload).hexdigest()
    header = header.replace(b"0" * 64, seal.encode())
    return len(header).to_bytes(8, "little") + header + payload


def test_a_block_of_an_older_version_is_proven_as_it_was_sealed() -> None:
    old = sealed_as("2")
    assert same_content(decode_block(old, EXPECTED), BLOCK)
    flipped = bytearray(old)
    flipped[-1] ^= 0x01
    with pytest.raises(BlockDamagedError, match="not what was sealed"):
        decode_block(bytes(flipped), EXPECTED)


@pytest.mark.parametrize("version", ["3", "4", "", None, 2, ["2"]])
def test_a_block_with_a_seal_of_another_version_is_damaged(version: object) -> None:
    with pytest.raises(BlockDamagedError):
        decode_block(sealed_as(version), EXPECTED)


@pytest.mark.parametrize("length", [0, 7, 8, HEADER_END // 2, HEADER_END, len(WHOLE) - 1])
def test_a_cut_block_is_damaged(length: int) -> None:
    with pytest.raises(BlockDamagedError):
        decode_block(WHOLE[:length], EXPECTED)


def test_every_flipped_byte_is_found() -> None:
    for position in range(len(WHOLE)):
        for bit in (0x01, 0x20, 0x80):
            flipped = bytearray(WHOLE)
            flipped[position] ^= bit
            with pytest.raises(BlockError):
                decode_block(bytes(flipped), EXPECTED)


@pytest.mark.parametrize("start", [0, 8, HEADER_END, len(WHOLE) - 10])
def test_zeroed_pages_are_found(start: int) -> None:
    with pytest.raises(BlockError):
        decode_block(WHOLE[:start] + bytes(len(WHOLE) - start), EXPECTED)


@pytest.mark.parametrize(
    "content",
    [
        b"<!DOCTYPE html><html><body>404 Not Found</body></html>" * 20,
        (1 << 63).to_bytes(8, "little") + b"{}" * 40,
        ((1 << 64) - 1).to_bytes(8, "little"),
        (2).to_bytes(8, "little") + b"{}",
        (2).to_bytes(8, "little") + b"[]",
        (9).to_bytes(8, "little") + b"[" * 9,
        (22).to_bytes(8, "little") + b'{"__metadata__": null}',
        WHOLE + b"more",
    ],
)
def test_what_is_no_block_is_damaged(content: bytes) -> None:
    with pytest.raises(BlockDamagedError):
        decode_block(content, EXPECTED)


def test_deep_json_is_damaged_and_not_a_crash() -> None:
    deep = b"[" * 100_000
    with pytest.raises(BlockDamagedError):
        decode_block(len(deep).to_bytes(8, "little") + deep, EXPECTED)


@pytest.mark.parametrize(
    "other",
    [
        wanted(SEQUENCE, 0),
        wanted(chain(*range(4), 9, 9, 9, 9), 1),
        replace(EXPECTED, proof=bytes(32)),
        replace(EXPECTED, fingerprint="other"),
        replace(EXPECTED, parent=bytes(32)),
        replace(EXPECTED, tokens=3),
        replace(EXPECTED, index=2),
    ],
)
def test_another_block_than_the_one_asked_for_is_a_mismatch(other) -> None:
    with pytest.raises(BlockMismatchError):
        decode_block(WHOLE, other)


def test_a_header_holds_no_token_ids() -> None:
    ids = [123456, 123457, 123458, 123459]
    raw = encode_block(block(chain(*ids), 0, payload=8)).head[8:]
    text = json.dumps(json.loads(raw))
    assert not [i for i in ids if str(i) in text or i.to_bytes(4, "little").hex() in text]


@pytest.mark.parametrize(
    "tensors",
    [
        (TensorBytes("0.k", "BF16", (3,), b"12345"),),
        (TensorBytes("0.k", "BF17", (1,), b"12"),),
        (TensorBytes("0.k", "U8", (1,), b"1"), TensorBytes("0.k", "U8", (1,), b"1")),
        (TensorBytes("__metadata__", "U8", (1,), b"1"),),
    ],
)
def test_tensors_that_are_not_what_they_state_are_refused(tensors) -> None:
    with pytest.raises(ValueError, match="tensor"):
        encode_block(Block(BLOCK.header, tensors))
