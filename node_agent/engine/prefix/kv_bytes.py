"""Arrays and nested cache states as bytes and text, and back.

Owns the translation bit by bit, without numpy, so bf16 survives. It knows no cache. Called by
`kv_layers.py` and `kv_codec.py` on the MLX thread.
"""

from collections.abc import Iterable
from typing import Any

import mlx.core as mx

from node_agent.kvcache.block import Block, TensorBytes

_NAMES = {
    mx.bfloat16: "BF16",
    mx.float16: "F16",
    mx.float32: "F32",
    mx.int8: "I8",
    mx.uint8: "U8",
    mx.int16: "I16",
    mx.uint16: "U16",
    mx.int32: "I32",
    mx.uint32: "U32",
    mx.int64: "I64",
    mx.uint64: "U64",
    mx.bool_: "BOOL",
}
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}


class RestoreError(Exception):
    """Stored blocks do not fit the model, or it keeps state that nobody can store."""


def dtype_name(array: mx.array) -> str:
    """Return what safetensors calls an array's dtype. Raises: RestoreError when it has no name."""
    if array.dtype not in _NAMES:
        raise RestoreError(f"arrays of {array.dtype} cannot be stored")
    return _NAMES[array.dtype]


def to_bytes(name: str, array: mx.array) -> TensorBytes:
    """Return an array as it lies in memory; contiguous ones are copied once."""
    flat = array.reshape(-1)
    raw = bytes(memoryview(flat.view(mx.uint8)))  # type: ignore[arg-type]
    return TensorBytes(name, dtype_name(array), tuple(array.shape), raw)


class BlockArrays:
    """One block's tensors by name, each made an array when it is asked for."""

    def __init__(self, block: Block) -> None:
        self._tensors = {tensor.name: tensor for tensor in block.tensors}

    def get(self, name: str) -> mx.array:
        """Return a tensor as an array of its own. Raises: RestoreError, ValueError."""
        found = self._tensors.get(name)
        if found is None:
            raise RestoreError(f"there is no tensor {name}")
        if found.dtype not in _DTYPES:
            raise RestoreError(f"tensor {name} is of unknown type {found.dtype}")
        dtype = _DTYPES[found.dtype]
        raw = mx.array(memoryview(found.data).cast("B"))  # type: ignore[arg-type]
        return raw.view(dtype).reshape(found.shape)


def strip(state: Any, found: list[mx.array]) -> Any:
    """Return a nested state as JSON can say it, with marks for arrays.

    Mutates: appends the arrays to `found`. Raises: RestoreError for anything else.
    """
    if isinstance(state, mx.array):
        found.append(state)
        return {"array": len(found) - 1}
    if isinstance(state, list | tuple):
        return [strip(one, found) for one in state]
    if state is None or isinstance(state, bool | int | float | str):
        return state
    raise RestoreError(f"{type(state).__name__} in a cache's state cannot be stored")


def dress(state: Any, arrays: BlockArrays, prefix: str) -> Any:
    """Return a nested state with its arrays again; array 2 is the tensor `prefix` + "2"."""
    if isinstance(state, dict):
        return arrays.get(f"{prefix}{state['array']}")
    if isinstance(state, list):
        return [dress(one, arrays, prefix) for one in state]
    return state


def signature(arrays: Iterable[mx.array]) -> str:
    """Return what arrays of (row, head, token, width) have in common at any length.

    Quantized ones tell their bits by the first width and their groups by that of the scales.
    """
    return ",".join(f"{dtype_name(one)}:{one.shape[1]}x{one.shape[3]}" for one in arrays)
