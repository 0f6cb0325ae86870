"""What a model directory weighs and which weights it holds, without loading them.

Reads `config.json`, the headers of the safetensors files and small samples of their data.
"""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from manifests.sizing.architecture import read_shape
from manifests.sizing.safetensors_header import Header, WeightsError, read_header
from manifests.sizing.shape import ModelShape

__all__ = [
    "WEIGHTS_PATTERN",
    "Weights",
    "WeightsError",
    "dominant_dtype_bytes",
    "inspect_directory",
    "read_config",
    "read_weights",
]

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"

# mlx-lm loads the files of this form and no others.
WEIGHTS_PATTERN = "model*.safetensors"

FLOAT_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}

# One memory page from the middle of each tensor. See `_fingerprint`.
SAMPLE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights of one model directory.

    Units: `bytes` in memory once loaded; `dtype_bytes` is one element of what mlx-lm computes in,
    which also is the KV cache's: the dominant float type, so the scales' of a quantised model
    and never its packed integers. None when there is no float tensor at all.
    """

    bytes: int
    tensors: int
    dtype_bytes: int | None
    fingerprint: str


def inspect_directory(directory: Path) -> tuple[ModelShape, Weights]:
    """Return a model's shape, in the dtype of its weights, and its weights.

    Raises: ValueError saying what is missing or damaged; OSError when a file cannot be read.
    """
    weights = read_weights(directory)
    shape = read_shape(read_config(directory), dtype_bytes=weights.dtype_bytes)
    return shape, weights


def read_config(directory: Path) -> Mapping[str, Any]:
    """Return the parsed `config.json`. Raises: WeightsError, OSError."""
    path = directory / CONFIG
    try:
        config = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise WeightsError(f"{directory}: has no {CONFIG}; it is not a model directory") from None
    except ValueError as error:
        raise WeightsError(f"{path}: is not JSON ({error})") from error
    if not isinstance(config, dict):
        raise WeightsError(f"{path}: is not a JSON object")
    return config


def read_weights(directory: Path) -> Weights:
    """Return what the safetensors headers say.

    Raises: WeightsError saying what is missing or damaged; OSError when a file cannot be read.
    """
    read_config(directory)
    headers = {path: read_header(path) for path in _weight_files(directory)}
    sizes: Counter[str] = Counter()
    for header in headers.values():
        for tensor in header.tensors:
            sizes[tensor.dtype] += tensor.size_bytes
    return Weights(
        bytes=sizes.total(),
        tensors=sum(len(header.tensors) for header in headers.values()),
        dtype_bytes=dominant_dtype_bytes(sizes),
        fingerprint=_fingerprint(directory, headers),
    )


def dominant_dtype_bytes(sizes: Mapping[str, int]) -> int | None:
    """Return the element size of the float type with the most bytes, None without floats.

    Units: `sizes` are the bytes stored in each safetensors dtype.
    """
    floats = [dtype for dtype in sizes if dtype in FLOAT_BYTES]
    dominant = max(floats, key=lambda dtype: (sizes[dtype], dtype), default=None)
    return FLOAT_BYTES[dominant] if dominant else None


def _weight_files(directory: Path) -> list[Path]:
    present = {path.name for path in directory.glob(WEIGHTS_PATTERN)}
    missing = sorted(_indexed_files(directory) - present)
    if missing:
        raise WeightsError(
            f"{directory}: {INDEX} names files that are missing: {', '.join(missing)}"
        )
    if not present:
        raise WeightsError(f"{directory}: has no {WEIGHTS_PATTERN}; convert the model to MLX first")
    return [directory / name for name in sorted(present)]


def _indexed_files(directory: Path) -> set[str]:
    path = directory / INDEX
    try:
        files = json.loads(path.read_bytes())["weight_map"].values()
        return {str(name) for name in files}
    except FileNotFoundError:
        return set()
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise WeightsError(f"{path}: is not a safetensors index ({error!r})") from error


def _fingerprint(directory: Path, headers: Mapping[Path, Header]) -> str:
    """Return a SHA-256 of the config, every header and a sample of every tensor.

    Hashing all of 30 GB would take half a minute on every start. A sample of each tensor sees
    any training, merging, requantisation or conversion, because they change whole tensors; it
    misses an edit of single elements elsewhere in a tensor, which nobody does by accident.
    """
    digest = hashlib.sha256((directory / CONFIG).read_bytes())
    for path, header in headers.items():
        digest.update(f"\n{path.name} {header.file_bytes}\n".encode())
        digest.update(header.raw)
        with path.open("rb") as file:
            descriptor = file.fileno()
            for tensor in header.tensors:
                size_bytes = min(SAMPLE_BYTES, tensor.size_bytes)
                middle = tensor.start + (tensor.size_bytes - size_bytes) // 2
                digest.update(os.pread(descriptor, size_bytes, header.data_start + middle))
    return digest.hexdigest()
