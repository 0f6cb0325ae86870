"""Rows decoded in one batch by mlx-lm's GenerationBatch.

Owns the batch's caches, and the way a row's cache becomes part of them: one layer at a time, so
that only one layer exists twice. BatchGenerator is not used: prompts are fed elsewhere, and its
constructor raises Metal's wired limit to the maximum, which with cache churn is tied to kernel
panics in public reports. Called on the MLX thread.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx_lm.generate import GenerationBatch, StopSequences
from mlx_lm.models.cache import BatchKVCache, CacheList, KVCache
from mlx_lm.sample_utils import greedy_sampler

from node_agent.engine.rows import JoinCost
from node_agent.engine.sampling import Processor, Sampler


@dataclass(slots=True)
class Newcomer:
    """A row whose prompt is fed, all but its last token, or that one too.

    `logits` are then what the last token said. Shapes: (1, 1, vocabulary).
    """

    uid: int
    prompt: Sequence[int]
    max_tokens: int
    sampler: Sampler
    stops: StopSequences
    processors: list[Processor] = field(default_factory=list)
    logits: mx.array | None = None


class DecodeGroup:
    """One batch."""

    def __init__(self, model: nn.Module, newcomer: Newcomer, cache: list[Any]) -> None:
        """Start with one row. Mutates: empties `cache`."""
        self._model = model
        self._batch = self._run_last_token(newcomer, cache)
        self._first = self._batch.first_token()

    @property
    def uids(self) -> list[int]:
        """The rows in it."""
        return list(self._batch.uids)

    @property
    def lengths_tokens(self) -> list[int]:
        """How many tokens each row holds."""
        return [len(tokens) for tokens in self._batch.tokens]

    @property
    def cache(self) -> list[Any]:
        """The caches of all rows, one entry for each layer."""
        return self._batch.prompt_cache  # type: ignore[no-any-return]

    def add(self, newcomer: Newcomer, cache: list[Any]) -> None:
        """Take a row in. Mutates: empties `cache`."""
        other = self._run_last_token(newcomer, cache)
        self._first = other.first_token()
        theirs, other.prompt_cache = other.prompt_cache, []
        for layer in self._batch.prompt_cache:
            layer.extend(theirs.pop(0))
            mx.eval(layer.state)
        self._batch.extend(other)

    @property
    def first_token(self) -> GenerationBatch.Response:
        """What the last newcomer says first; `decode` returns it too, with how the row goes on."""
        return self._first

    def remove(self, uid: int) -> None:
        """Drop a row."""
        self._batch.filter([at for at, other in enumerate(self._batch.uids) if other != uid])

    def decode(self) -> list[GenerationBatch.Response]:
        """Decode one token of each row; rows that end leave the batch."""
        return self._batch.next()  # type: ignore[no-any-return]

    def tokens(self, uid: int) -> list[int]:
        """Return the tokens a row holds."""
        return list(self._batch.tokens[self._batch.uids.index(uid)])

    def view(self, uid: int) -> list[Any]:
        """Return a row's cache; it must be let go before the next step, or that has to copy."""
        return self._batch.extract_cache(self._batch.uids.index(uid))  # type: ignore[no-any-return]

    def _run_last_token(self, newcomer: Newcomer, cache: list[Any]) -> GenerationBatch:
        merged = []
        while cache:
            layer = adopt(cache.pop(0))
            mx.eval(layer.state)
            merged.append(layer)
        prompt, logits = list(newcomer.prompt), newcomer.logits
        batch = _Batch(
            # Its first step would feed the last token.
            self._model if logits is None else lambda _inputs, cache: logits,  # noqa: ARG005
            [newcomer.uid],
            mx.array(prompt[-1:]),
            merged,
            [prompt[:-1]],
            [newcomer.sampler],
            greedy_sampler,
            [tuple(newcomer.processors)],
            [newcomer.stops],
            [newcomer.max_tokens],
        )
        batch.model = self._model
        return batch


class _Batch(GenerationBatch):  # type: ignore[misc]
    """A batch that shows a row's cache without copying it, and what it has drawn already."""

    def first_token(self) -> GenerationBatch.Response:
        """Return the token that was drawn for the only row; the next one is not begun yet."""
        (token,), (logprobs,) = self._next_tokens.tolist(), self._next_logprobs
        return self.Response(self.uids[0], token, logprobs, None, None, None)

    def extract_cache(self, idx: int) -> list[Any]:
        """Return one row's cache."""
        return [view_row(layer, idx) for layer in self.prompt_cache]


def view_row(cache: Any, at: int) -> Any:
    """Return one row of one layer. Plain KV stays where it is; the rest is copied, when used."""
    if isinstance(cache, CacheList):
        return CacheList(*(view_row(member, at) for member in cache.caches))
    if type(cache) is not BatchKVCache or cache.keys is None:
        return cache.extract(at)
    keys, values, _, left_padding, end = cache.state
    start = left_padding[at].item()
    row = KVCache()
    place = (slice(at, at + 1), slice(None), slice(start, end))
    row.state = (keys[place], values[place], end - start)
    return row


def adopt(cache: Any) -> Any:
    """Return one row's cache of one layer as a batch of one.

    A plain KV cache is taken over as it is: `merge` would copy it without its spare room, and
    the next token would make it grow again.
    """
    if isinstance(cache, CacheList):
        return CacheList(*(adopt(member) for member in cache.caches))
    if type(cache) is KVCache and cache.keys is not None:
        offset = mx.array([cache.offset])
        return BatchKVCache.from_state(
            (cache.keys, cache.values, offset, mx.array([0]), cache.offset)
        )
    return cache.merge([cache])


def plan_join(group: list[Any] | None, row: list[Any], rows: int) -> JoinCost:
    """Return what a row's cache takes as part of a batch of `rows` rows, itself included.

    Pure: reads only the sizes of buffers. Layers that do not grow with the context are copied
    but take no more room than they had.
    """
    added_bytes = widest_bytes = 0
    for at, theirs in enumerate(_layers(row)):
        own_bytes = theirs.nbytes
        after_bytes = own_bytes
        if group is not None:
            ours = _layers(group)[at]
            after_bytes = ours.nbytes + own_bytes
            longest = max(_buffer_tokens(ours), _buffer_tokens(theirs))
            if longest and _buffer_tokens(theirs):
                after_bytes = rows * longest * (own_bytes // _buffer_tokens(theirs))
            added_bytes += after_bytes - ours.nbytes - own_bytes
        widest_bytes = max(widest_bytes, after_bytes)
    return JoinCost(rows=rows, added_bytes=added_bytes, copied_bytes=widest_bytes)


def _layers(caches: list[Any]) -> list[Any]:
    flat: list[Any] = []
    for cache in caches:
        flat += _layers(list(cache.caches)) if isinstance(cache, CacheList) else [cache]
    return flat


def _buffer_tokens(cache: Any) -> int:
    """Return how many tokens a cache has room for; 0 for one that is not by token."""
    keys = getattr(cache, "keys", None)
    return 0 if keys is None else int(keys.shape[2])
