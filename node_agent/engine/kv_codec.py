"""The caches of one row as blocks of bytes, and back.

Owns what a layer's cache is made of: which of its arrays can be cut by token, and what else must
be remembered. It knows mlx-lm's classes and no tier. Called by `prefix_cache.py` on the MLX
thread.

A KV cache is cut by token; a list of nothing but those too. Everything else is stored whole,
through `state`, as mlx-lm's own prompt caches are: the arrays as tensors and the rest of the
nested state as JSON.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx_lm.models import cache as mlx_caches
from mlx_lm.models.cache import CacheList, KVCache, make_prompt_cache

from node_agent.kvcache.block import Block, LayerRecord, TensorBytes
from node_agent.kvcache.layer_kinds import CacheLayout, LayerDescriptor, LayerKind
from node_agent.kvcache.tiers import LoadedBlock

# mlx-lm's KV caches grow by whole steps of this many tokens.
STEP_TOKENS = 256

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


def describe_layers(model: nn.Module) -> CacheLayout:
    """Return what a model's layers keep, after one token.

    Raises: RestoreError when a layer's state cannot be stored.
    """
    caches = make_prompt_cache(model)
    mx.eval(model(mx.array([[0]]), cache=caches))
    return CacheLayout(tuple(_describe(one) for one in caches))


class KvCodec:
    """Cuts and builds the caches of one model's rows."""

    def __init__(self, model: nn.Module, layout: CacheLayout) -> None:
        self._model = model
        self.layout = layout

    def cut(
        self, cache: list[Any], start_tokens: int, end_tokens: int, *, snapshot: bool
    ) -> tuple[tuple[LayerRecord, ...], tuple[TensorBytes, ...]]:
        """Return one block of a row's cache; with `snapshot` the cache stands at its end.

        Raises: RestoreError when the cache does not hold what is wanted.
        """
        records, tensors = [], []
        for number, (layer, known) in enumerate(zip(cache, self.layout.layers, strict=True)):
            record, arrays = _cut_layer(layer, known, (start_tokens, end_tokens), snapshot)
            records.append(record)
            # Layer by layer, so that only one is copied at a time.
            mx.eval(list(arrays.values()))
            tensors += [_to_bytes(f"{number}.{name}", array) for name, array in arrays.items()]
        return tuple(records), tuple(tensors)

    def build(self, blocks: Sequence[LoadedBlock], tokens: int) -> list[Any]:
        """Return a fresh cache of one row that stands at `tokens`.

        Raises: RestoreError when a block does not fit the model.
        """
        caches: list[Any] = make_prompt_cache(self._model)
        try:
            for number, known in enumerate(self.layout.layers):
                if known.kind is LayerKind.SLICEABLE:
                    _fill(caches[number], number, blocks, tokens)
                else:
                    caches[number] = _whole(blocks[-1].block, number, known)
                mx.eval(_arrays(caches[number]))
        except (KeyError, ValueError, TypeError, IndexError) as error:
            raise RestoreError(f"layer {number}: {error}") from error
        return caches


def _members(cache: Any) -> list[Any]:
    return list(cache.caches) if isinstance(cache, CacheList) else [cache]


def _arrays(cache: Any) -> list[mx.array]:
    arrays: list[mx.array] = []
    _strip(cache.state, arrays)
    return arrays


def _describe(cache: Any) -> LayerDescriptor:
    members = _members(cache)
    names = "+".join(type(one).__name__ for one in members)
    arrays = _arrays(cache)
    if not arrays:
        raise RestoreError(f"{names} shows no state that could be stored")
    shapes = ",".join(f"{_name(one)}{list(one.shape)}" for one in arrays)
    if all(type(one) is KVCache for one in members):
        heads = ",".join(f"{_name(one)}{one.shape[1]}x{one.shape[3]}" for one in arrays)
        one_token = sum(one.nbytes // one.shape[2] for one in arrays)
        return LayerDescriptor(LayerKind.SLICEABLE, names, heads, token_bytes=one_token)
    window = getattr(cache, "max_size", None) or getattr(cache, "chunk_size", None) or 0
    size = sum(one.nbytes for one in arrays)
    if window:
        size = sum(one.nbytes // one.shape[2] for one in arrays if one.ndim == 4) * window
        shapes = ",".join(_name(one) for one in arrays)
    return LayerDescriptor(LayerKind.SNAPSHOT, names, f"{window};{shapes}", snapshot_bytes=size)


def _name(array: mx.array) -> str:
    if array.dtype not in _NAMES:
        raise RestoreError(f"arrays of {array.dtype} cannot be stored")
    return _NAMES[array.dtype]


def _cut_layer(
    cache: Any, known: LayerDescriptor, span: tuple[int, int], snapshot: bool
) -> tuple[LayerRecord, dict[str, mx.array]]:
    start, end = span
    if known.kind is LayerKind.SNAPSHOT:
        if not snapshot:
            return LayerRecord(known.kind, known.cache_class, present=False), {}
        found: list[mx.array] = []
        skeleton = json.dumps(_strip(cache.state, found))
        named = {f"s{at}": mx.contiguous(one) for at, one in enumerate(found)}
        return LayerRecord(known.kind, known.cache_class, skeleton=skeleton), named
    arrays = {}
    for at, member in enumerate(_members(cache)):
        if member.keys is None or member.offset < end:
            raise RestoreError(f"a cache at {member.offset} tokens holds no block up to {end}")
        arrays[f"k{at}"] = mx.contiguous(member.keys[:, :, start:end])
        arrays[f"v{at}"] = mx.contiguous(member.values[:, :, start:end])
    return LayerRecord(known.kind, known.cache_class), arrays


def _fill(cache: Any, number: int, blocks: Sequence[LoadedBlock], tokens: int) -> None:
    """Join the tokens of all blocks into a layer's empty cache, with room up to a whole step."""
    for at, member in enumerate(_members(cache)):
        sides = []
        for side in "kv":
            parts = [
                _tensor(one.block, f"{number}.{side}{at}")[:, :, : one.use.take_tokens]
                for one in blocks
            ]
            held_tokens = sum(part.shape[2] for part in parts)
            if held_tokens != tokens:
                raise ValueError(f"the blocks hold {held_tokens} tokens, not {tokens}")
            spare = -tokens % STEP_TOKENS
            rows, heads, _, width = parts[0].shape
            parts.append(mx.zeros((rows, heads, spare, width), parts[0].dtype))
            sides.append(mx.concatenate(parts, axis=2))
        member.state = (*sides, tokens)


def _whole(block: Block, number: int, known: LayerDescriptor) -> Any:
    record = block.header.layers[number]
    if record.cache_class != known.cache_class or not record.present:
        raise ValueError(f"there is no {known.cache_class}")
    prefix = f"{number}.s"
    count = sum(tensor.name.startswith(prefix) for tensor in block.tensors)
    arrays = iter([_tensor(block, f"{prefix}{at}") for at in range(count)])
    state = _dress(json.loads(record.skeleton), arrays)
    names = known.cache_class.split("+")
    if len(names) > 1:
        return CacheList.from_state(state)
    return getattr(mlx_caches, names[0]).from_state(state)


def _strip(state: Any, found: list[mx.array]) -> Any:
    """Return a nested state with its arrays replaced by marks. Mutates: appends them to `found`."""
    if isinstance(state, mx.array):
        found.append(state)
        return {"array": len(found) - 1}
    if isinstance(state, list | tuple):
        return [_strip(one, found) for one in state]
    if state is None or isinstance(state, bool | int | float | str):
        return state
    raise RestoreError(f"{type(state).__name__} in a cache's state cannot be stored")


def _dress(state: Any, arrays: Iterator[mx.array]) -> Any:
    if isinstance(state, dict):
        return next(arrays)
    if isinstance(state, list):
        return [_dress(one, arrays) for one in state]
    return state


def _to_bytes(name: str, array: mx.array) -> TensorBytes:
    flat = array.reshape(-1)
    raw = bytes(memoryview(flat.view(mx.uint8))) if flat.size else b""  # type: ignore[arg-type]
    return TensorBytes(name, _name(array), tuple(array.shape), raw)


def _tensor(block: Block, name: str) -> mx.array:
    found = next((one for one in block.tensors if one.name == name), None)
    if found is None:
        raise KeyError(f"there is no {name}")
    raw = mx.array(memoryview(found.data).cast("B"))  # type: ignore[arg-type]
    return raw.view(_DTYPES[found.dtype]).reshape(found.shape)
