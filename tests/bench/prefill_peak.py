"""Measures what prompts take, in a process of its own; the truth behind the estimator.

`python -m tests.bench.prefill_peak MODEL` reads cases as JSON lines on standard input (`{"rows":
.., "prompt_tokens": .., "cached_tokens": .., "chunk_tokens": .., "max_tokens": ..}`), runs each
from nothing through the parts that engines are made of, and writes one JSON line a case: the peak
above what was active before, and every chunk and join with its own. Only this module of the bench
imports MLX.
"""

import ctypes
import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

with suppress(OSError):  # must come before MLX; the Linux wheel's own BLAS is forty times slower
    ctypes.CDLL("libopenblas.so.0", mode=ctypes.RTLD_GLOBAL)

import mlx.core as mx
import numpy
from mlx_lm.models.cache import CacheList, KVCache, make_prompt_cache
from mlx_lm.sample_utils import greedy_sampler
from mlx_lm.utils import load_model

from node_agent.engine.batching.decode_group import DecodeGroup
from node_agent.engine.batching.lanes import Lanes, find_lanes
from node_agent.engine.batching.prefill import RowPrefill
from node_agent.engine.batching.row_batch import Newcomer
from node_agent.engine.meter import MemoryMeter

# Restored caches come in blocks of this many tokens.
BLOCK_TOKENS = 256


def main(arguments: list[str]) -> None:
    """Load the model, then measure every case on standard input."""
    model, _ = load_model(Path(arguments[0]))
    mx.eval(model.parameters())
    lanes = find_lanes(model)
    Run(lanes, {"prompt_tokens": 9, "chunk_tokens": 4, "rows": 1, "max_tokens": 2}).measure()
    for line in sys.stdin:
        case = json.loads(line)
        print(json.dumps(case | Run(lanes, case).measure()), flush=True)


class Run:
    """One case. Units: tokens in, bytes out."""

    def __init__(self, lanes: Lanes, case: dict[str, int]) -> None:
        self._lanes, self._model = lanes, lanes.model
        self._case = {"cached_tokens": 0} | case
        self._meter = MemoryMeter()
        self._peaks: list[int] = []
        self._chunks: list[tuple[int, int, int]] = []
        self._joins: list[tuple[int, int]] = []

    def measure(self) -> dict[str, Any]:
        """Run the case: feed the rows in turn, let each join, decode them to their end."""
        saved = self._save_prefixes()
        mx.synchronize()
        mx.clear_cache()
        before_bytes = mx.get_active_memory()
        mx.reset_peak_memory()
        rows = [self._start(row, prefix) for row, prefix in enumerate(saved)]
        decoding: DecodeGroup | None = None
        for row, prefill in self._feed_in_turn(rows):
            decoding = self._join(decoding, row, prefill)
        while decoding is not None and decoding.uids:
            decoding.decode()
        mx.synchronize()
        peak_bytes = max(mx.get_peak_memory(), *self._peaks, 0)
        return {
            "measured_bytes": peak_bytes - before_bytes,
            "chunks": self._chunks,
            "joins": self._joins,
        }

    def _prompt(self, row: int) -> list[int]:
        """Return tokens that differ from row to row and avoid the special ones."""
        return [10 + (7 * index + 31 * row) % 1000 for index in range(self._case["prompt_tokens"])]

    def _start(self, row: int, prefix: list[Any]) -> RowPrefill:
        if not prefix:
            return RowPrefill(self._lanes, self._prompt(row))
        cache = restore(make_prompt_cache(self._model), prefix)
        self._note_peak()
        cached_tokens = self._case["cached_tokens"]
        return RowPrefill(self._lanes, self._prompt(row), cache=cache, fed_tokens=cached_tokens)

    def _save_prefixes(self) -> list[list[Any]]:
        """Compute what is to be restored, and keep it where MLX does not count it."""
        cached_tokens, rows = self._case["cached_tokens"], self._case["rows"]
        if not cached_tokens:
            return [[] for _ in range(rows)]
        saved = []
        for row in range(rows):
            prefix = self._prompt(row)[: cached_tokens + 1]
            prefill = RowPrefill(self._lanes, prefix)
            while chunk_tokens := prefill.next_chunk_tokens(BLOCK_TOKENS):
                prefill.feed(row, chunk_tokens)
            saved.append([save(layer) for layer in prefill.cache])
        return saved

    def _feed_in_turn(self, rows: list[RowPrefill]) -> Iterator[tuple[int, RowPrefill]]:
        """Feed one chunk of one row at a time; yield each row that is fed to its end."""
        line = list(enumerate(rows))
        rows.clear()
        while line:
            row, prefill = line.pop(0)
            chunk_tokens = prefill.next_chunk_tokens(self._case["chunk_tokens"])
            if not chunk_tokens:
                yield row, prefill
                continue
            held_tokens = prefill.fed_tokens
            self._begin()
            prefill.feed(row, chunk_tokens)
            self._chunks.append((held_tokens, chunk_tokens, self._end()))
            line.append((row, prefill))

    def _join(
        self, decoding: DecodeGroup | None, row: int, prefill: RowPrefill
    ) -> DecodeGroup | None:
        self._begin()
        cache = prefill.hand_over()
        rows = 1 if decoding is None else len(decoding.uids) + 1
        if not all(hasattr(layer, "merge") for layer in cache):
            self._decode_alone(row, cache)
        else:
            prompt = self._prompt(row)
            newcomer = Newcomer(row, prompt, self._case["max_tokens"], greedy_sampler)
            if decoding is None:
                decoding = DecodeGroup(self._model, newcomer, cache)
            else:
                decoding.add(newcomer, cache)
        self._joins.append((rows, self._end()))
        return decoding

    def _decode_alone(self, row: int, cache: list[Any]) -> None:
        """Decode a row whose cache cannot be batched, as the engine's serial runner does."""
        last = self._prompt(row)[-1]
        for _ in range(self._case["max_tokens"]):
            logits = self._model(mx.array([[last]]), cache=cache)[:, -1, :]
            logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
            last = int(mx.argmax(logprobs).item())

    def _begin(self) -> None:
        self._note_peak()
        self._meter.begin_chunk()

    def _end(self) -> int:
        mx.synchronize()
        self._note_peak()
        actual_bytes = self._meter.end_chunk()
        self._meter.clear()
        return actual_bytes

    def _note_peak(self) -> None:
        mx.synchronize()
        self._peaks.append(mx.get_peak_memory())


def save(layer: Any) -> Any:
    """Return one layer's cache as arrays that MLX does not count, cut into blocks."""
    if isinstance(layer, CacheList):
        return [save(member) for member in layer.caches]
    if type(layer) is not KVCache:
        return to_host(layer.state)
    ends = range(0, layer.offset, BLOCK_TOKENS)
    return [
        [to_host(array[..., at : min(at + BLOCK_TOKENS, layer.offset), :]) for at in ends]
        for array in (layer.keys, layer.values)
    ]


def restore(cache: list[Any], saved: list[Any]) -> list[Any]:
    """Fill an empty cache with what was saved, one layer at a time."""
    for layer, state in zip(cache, saved, strict=True):
        if isinstance(layer, CacheList):
            restore(list(layer.caches), state)
        elif type(layer) is KVCache:
            keys, values = (mx.concatenate(to_device(blocks), axis=2) for blocks in state)
            layer.state = (keys, values, keys.shape[2])
        else:
            layer.state = to_device(state)
        mx.eval(layer.state)
    return cache


def to_host(value: Any) -> Any:
    """Return a copy outside MLX; what is no array stays as it is."""
    if isinstance(value, list | tuple):
        return [to_host(item) for item in value]
    return numpy.array(value) if isinstance(value, mx.array) else value


def to_device(value: Any) -> Any:
    """Return the MLX arrays of what `to_host` gave."""
    if isinstance(value, list):
        return [to_device(item) for item in value]
    return mx.array(value) if isinstance(value, numpy.ndarray) else value


if __name__ == "__main__":
    main(sys.argv[1:])
