"""The caches of one row as blocks of bytes, and back.

Owns the layout of a block's layers and tensors, and the checks that a block fits the model. What
a cache is made of is in `kv_layers.py`. Called by `prefix_cache.py` on the MLX thread.

What can be cut by token is: plain, quantized and MLA's KV caches, also as members of lists.
Everything else is stored whole, through `state`, as mlx-lm's own prompt caches are: the arrays
as tensors and the rest of the nested state as JSON.
"""

import json
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx_lm.models.cache import make_prompt_cache

from node_agent.engine.prefix.kv_bytes import (
    BlockArrays,
    RestoreError,
    TokenJoiner,
    dress,
    strip,
    to_bytes,
    token_kind,
)
from node_agent.engine.prefix.kv_layers import (
    array_count,
    counted_state,
    describe,
    flatten,
    room_tokens,
    set_tokens,
    token_arrays,
)
from node_agent.kvcache.block import LayerRecord, TensorBytes
from node_agent.kvcache.layer_kinds import CacheLayout, LayerDescriptor, LayerKind
from node_agent.kvcache.tiers import LoadedBlock

__all__ = ["KvCodec", "RestoreError", "describe_layers"]


def describe_layers(model: nn.Module) -> CacheLayout:
    """Return what a model's layers keep, after one token; members of lists count as layers.

    Raises: RestoreError when a layer's state cannot be stored.
    """
    caches = make_prompt_cache(model)
    mx.eval(model(mx.array([[0]]), cache=caches))
    return CacheLayout(tuple(describe(one) for one in flatten(caches)))


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
        flat = flatten(cache)
        if len(flat) != len(self.layout.layers):
            raise RestoreError(f"there are {len(flat)} caches, not {len(self.layout.layers)}")
        records, tensors = [], []
        for number, (layer, known) in enumerate(zip(flat, self.layout.layers, strict=True)):
            if type(layer).__name__ != known.cache_class:
                what = f"a {type(layer).__name__}, not a {known.cache_class}"
                raise RestoreError(f"layer {number} is {what}")
            if known.kind is LayerKind.SLICEABLE:
                arrays = _cut_tokens(layer, start_tokens, end_tokens)
                record = LayerRecord(known.kind, known.cache_class)
            elif snapshot:
                arrays, skeleton = _cut_state(layer, end_tokens)
                record = LayerRecord(known.kind, known.cache_class, skeleton=skeleton)
            else:
                arrays = {}
                record = LayerRecord(known.kind, known.cache_class, present=False)
            records.append(record)
            # Layer by layer, so that only one is copied at a time.
            mx.eval(list(arrays.values()))
            tensors += [to_bytes(f"{number}.{name}", array) for name, array in arrays.items()]
        return tuple(records), tuple(tensors)

    def build(self, blocks: Sequence[LoadedBlock], tokens: int) -> list[Any]:
        """Return a fresh cache of one row that stands at `tokens`.

        Raises: RestoreError when a block does not fit the model.
        """
        building = self.begin(blocks, tokens)
        while not building.step():
            pass
        return building.caches

    def begin(self, blocks: Sequence[LoadedBlock], tokens: int) -> "Building":
        """Return a fresh cache of one row in the making."""
        return Building(make_prompt_cache(self._model), self.layout, blocks, tokens)


class Building:
    """A cache that is built layer by layer. Of no use before the last `step`."""

    def __init__(
        self, caches: list[Any], layout: CacheLayout, blocks: Sequence[LoadedBlock], tokens: int
    ) -> None:
        """Mutates: fills the empty `caches`, later."""
        self.caches = caches
        self.built_bytes = 0
        self._tokens = tokens
        self._joiner = TokenJoiner()
        self._opened = [(one, BlockArrays(one.block)) for one in blocks]
        self._left = deque(enumerate(zip(flatten(caches), layout.layers, strict=True)))

    def step(self) -> bool:
        """Build one layer; True when all are built.

        Raises: RestoreError when a block does not fit the model.
        """
        number, (cache, known) = self._left.popleft()
        try:
            parts = [_part(one, arrays, number) for one, arrays in self._opened]
            if known.kind is LayerKind.SLICEABLE:
                self._fill(cache, known, parts)
            else:
                _set_state(cache, known, parts[-1], self._tokens)
            mx.eval(cache.state)
        except (RestoreError, KeyError, ValueError, TypeError, IndexError) as error:
            raise RestoreError(f"layer {number}: {error}") from error
        self.built_bytes += cache.nbytes
        return not self._left

    def _fill(self, cache: Any, known: LayerDescriptor, parts: Sequence["_Part"]) -> None:
        """Join the tokens of all blocks in a layer's empty cache. Mutates: `cache`."""
        taken_tokens = [part.take_tokens for part in parts]
        if sum(taken_tokens) != self._tokens:
            raise RestoreError(f"the blocks hold {sum(taken_tokens)} tokens, not {self._tokens}")
        names = [f"t{at}" for at in range(array_count(cache))]
        for part in parts:
            tensors = [part.tensor(name) for name in names]
            found = ",".join(token_kind(one.dtype, one.shape) for one in tensors)
            if found != known.detail or part.record.cache_class != known.cache_class:
                what = f"a {part.record.cache_class} of {found}"
                raise RestoreError(
                    f"a block holds {what}, not a {known.cache_class} of {known.detail}"
                )
            held_tokens = min(one.shape[2] for one in tensors)
            if held_tokens < part.take_tokens:
                raise RestoreError(f"a block holds {held_tokens} of {part.take_tokens} tokens")
        room = room_tokens(cache, self._tokens)
        sides = [
            self._joiner.join([part.tensor(name) for part in parts], taken_tokens, room)
            for name in names
        ]
        set_tokens(cache, sides, self._tokens)


@dataclass(frozen=True, slots=True)
class _Part:
    """What one block holds of one layer."""

    number: int
    record: LayerRecord
    arrays: BlockArrays
    take_tokens: int

    def tensor(self, name: str) -> TensorBytes:
        return self.arrays.tensor(f"{self.number}.{name}")


def _part(loaded: LoadedBlock, arrays: BlockArrays, number: int) -> _Part:
    return _Part(number, loaded.block.header.layers[number], arrays, loaded.use.take_tokens)


def _cut_tokens(cache: Any, start_tokens: int, end_tokens: int) -> dict[str, mx.array]:
    arrays = token_arrays(cache)
    if cache.offset < end_tokens:
        what = f"up to {end_tokens}"
        raise RestoreError(f"a cache at {cache.offset} tokens holds no block {what}")
    span = slice(start_tokens, end_tokens)
    return {f"t{at}": mx.contiguous(one[:, :, span]) for at, one in enumerate(arrays)}


def _cut_state(cache: Any, end_tokens: int) -> tuple[dict[str, mx.array], str]:
    _check_offset(cache, end_tokens)
    arrays: list[mx.array] = []
    skeleton = json.dumps(strip(counted_state(cache), arrays), separators=(",", ":"))
    if any(one.ndim > 1 and one.shape[0] != 1 for one in arrays):
        raise RestoreError(f"a {type(cache).__name__} of several rows is no row's cache")
    return {f"s{at}": mx.contiguous(one) for at, one in enumerate(arrays)}, skeleton


def _set_state(cache: Any, known: LayerDescriptor, part: _Part, tokens: int) -> None:
    """Set a layer's cache to what a block stored of it whole. Mutates: `cache`."""
    if part.record.cache_class != known.cache_class or not part.record.present:
        raise RestoreError(f"the last block holds no {known.cache_class}")
    state = json.loads(part.record.skeleton)
    cache.state = dress(state, part.arrays, f"{part.number}.s")
    _check_offset(cache, tokens)


def _check_offset(cache: Any, tokens: int) -> None:
    """All layers stand at one length; recurrent states know theirs not (B30)."""
    offset = getattr(cache, "offset", tokens)
    if offset != tokens:
        raise RestoreError(f"a {type(cache).__name__} stands at {offset}, not at {tokens}")
