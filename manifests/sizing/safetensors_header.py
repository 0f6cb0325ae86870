"""Reads the header of a safetensors file and nothing else, trusting no number in it.

A file may come from anywhere: lengths are checked against the file before anything is read.
Source: the safetensors format, 8 bytes of little-endian header length, JSON, then the data.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

# The reference implementation refuses longer headers too.
MAX_HEADER_BYTES = 100_000_000
LENGTH_BYTES = 8
MAX_DIMENSIONS = 64

# Units: bits of one element.
DTYPE_BITS = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
    **dict.fromkeys(("I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 8),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}


class WeightsError(ValueError):
    """A model's files are missing or damaged; the message names the file and the fix."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of a file. Units: `start` and `size_bytes` count from the start of the data."""

    name: str
    dtype: str
    start: int
    size_bytes: int
    shape: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Header:
    """One file's header, as bytes and as tensors in the order of their data.

    Units: `data_start` is the offset of the data in the file.
    """

    raw: bytes
    tensors: tuple[Tensor, ...]
    data_start: int
    file_bytes: int


def read_header(path: Path) -> Header:
    """Return the checked header of a file.

    Raises: WeightsError naming the file when it is damaged; OSError when it cannot be read.
    """
    with path.open("rb") as file:
        file_bytes = os.fstat(file.fileno()).st_size
        prefix = file.read(LENGTH_BYTES)
        if len(prefix) < LENGTH_BYTES:
            raise WeightsError(f"{path}: {file_bytes} bytes are too few for a safetensors file")
        length = int.from_bytes(prefix, "little")
        if length > MAX_HEADER_BYTES:
            raise WeightsError(f"{path}: states a header of {length} bytes; not a safetensors file")
        if LENGTH_BYTES + length > file_bytes:
            raise WeightsError(f"{path}: is cut off inside its header; download it again")
        raw = file.read(length)
    tensors = parse_header(path, raw)
    data_start = LENGTH_BYTES + length
    stated_bytes = data_start + sum(tensor.size_bytes for tensor in tensors)
    if stated_bytes != file_bytes:
        problem = "is cut off" if file_bytes < stated_bytes else "has bytes past its last tensor"
        raise WeightsError(
            f"{path}: {problem}, {file_bytes} bytes instead of {stated_bytes}; download it again"
        )
    return Header(raw, tensors, data_start, file_bytes)


def parse_header(path: Path, raw: bytes) -> tuple[Tensor, ...]:
    """Return the tensors of a header in the order of their data. Raises: WeightsError."""
    try:
        entries = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise WeightsError(f"{path}: the header is not JSON ({error})") from error
    if not isinstance(entries, dict):
        raise WeightsError(f"{path}: the header is not a JSON object")
    found = [_tensor(path, n, entry) for n, entry in entries.items() if n != "__metadata__"]
    tensors = tuple(sorted(found, key=lambda tensor: (tensor.start, tensor.size_bytes)))
    end = 0
    for tensor in tensors:
        if tensor.start != end:
            raise WeightsError(f"{path}: tensor {tensor.name} overlaps another or leaves a gap")
        end = tensor.start + tensor.size_bytes
    return tensors


def _tensor(path: Path, name: str, entry: Any) -> Tensor:
    if not isinstance(entry, dict):
        raise WeightsError(f"{path}: tensor {name} is not described by a JSON object")
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise WeightsError(f"{path}: tensor {name} has the unknown dtype {dtype!r}")
    if not _whole_numbers(shape) or not _whole_numbers(offsets) or len(offsets) != 2:
        raise WeightsError(f"{path}: tensor {name} has no valid shape and data_offsets")
    if len(shape) > MAX_DIMENSIONS:  # the product below must stay cheap
        raise WeightsError(f"{path}: tensor {name} has {len(shape)} dimensions")
    bits = DTYPE_BITS[dtype]
    for size in shape:
        bits *= size
    if bits % 8 or offsets[1] - offsets[0] != bits // 8:
        raise WeightsError(f"{path}: tensor {name} has data_offsets that do not match its shape")
    return Tensor(name, dtype, offsets[0], offsets[1] - offsets[0], tuple(shape))


def _whole_numbers(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)
