"""Rows decoded in one batch by mlx-lm's GenerationBatch.

Owns the batch's caches, and the way a row's cache becomes part of them: one layer at a time, so
that only one layer exists twice. BatchGenerator is not used: prompts are fed elsewhere, and its
constructor raises Metal's wired limit to the maximum, which with cache churn is tied to kernel
panics in public reports. Called on the MLX thread.
"""

from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx_lm.generate import GenerationBatch, StopSequences
from mlx_lm.models.cache import BatchKVCache, CacheList, KVCache, TokenBuffer
from mlx_lm.sample_utils import greedy_sampler

from node_agent.engine.batching.sampling import Processor, Sampler
from node_agent.engine.rows import JoinCost


@dataclass(slots=True)
class Newcomer:
    """A row whose prompt is fed, all but its last token, or that one too.

    `logits` are then what the last token said. Shapes: (1, 1, vocabulary). It ends with any of
    `stop_token_ids`.
    """

    uid: int
    prompt: Sequence[int]
    max_tokens: int
    sampler: Sampler
    stop_token_ids: frozenset[int] = frozenset()
    processors: list[Processor] = field(default_factory=list)
    logits: mx.array | None = None

    @property
    def stops(self) -> StopSequences:
        """What ends it, as mlx-lm wants it."""
        return StopSequences([[token] for token in sorted(self.stop_token_ids)])

    def ends_with(self, token: int) -> bool:
        """Return whether it ends with this first token."""
        return self.max_tokens <= 1 or token in self.stop_token_ids


class DecodeGroup:
    """One batch.

    A newcomer's last token, when it is not fed yet, goes through the model with the next step of
    the others: a pass of its own would read all weights once more.
    """

    def __init__(self, model: nn.Module, newcomer: Newcomer, cache: list[Any]) -> None:
        """Start with one row. Mutates: empties `cache`."""
        self._model = model
        self._batch = self._begin(newcomer, cache)
        # Rows whose last prompt token is still to be fed, those whose first token is drawn, and
        # those of which it was told before `decode` could say how they go on.
        self._unfed: dict[int, Newcomer] = {}
        self._drawn: dict[int, Newcomer] = {}
        self._told: set[int] = set()
        self._note(newcomer)

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
        return self._batch.prompt_cache

    def add(self, newcomer: Newcomer, cache: list[Any]) -> None:
        """Take a row in. Mutates: empties `cache`."""
        other = self._begin(newcomer, cache)
        self._note(newcomer)
        theirs, other.prompt_cache = other.prompt_cache, []
        for layer in self._batch.prompt_cache:
            layer.extend(theirs.pop(0))
            mx.eval(layer.state)
        self._batch.extend(other)

    def take_first(self) -> list[GenerationBatch.Response]:
        """Return first tokens that are drawn and end no row; `decode` does not return them again.

        How a row ends is for `decode` to say.
        """
        drawn, self._drawn = self._drawn, {}
        if not drawn:
            return []
        told = [
            one for one in self._batch.next_of(drawn) if not drawn[one.uid].ends_with(one.token)
        ]
        self._told |= {one.uid for one in told}
        return told

    def remove(self, uid: int) -> None:
        """Drop a row."""
        self._unfed.pop(uid, None)
        self._drawn.pop(uid, None)
        self._told.discard(uid)
        self._batch.filter([at for at, other in enumerate(self._batch.uids) if other != uid])

    def decode(self) -> list[GenerationBatch.Response]:
        """Decode one token of each row; rows that end leave the batch."""
        told, self._told = self._told, set()
        unfed, self._unfed = self._unfed, {}
        responses = self._batch.next()
        self._drawn |= unfed
        # What an unfed row had "said" was the last token of its prompt.
        return [one for one in responses if one.uid not in told and one.uid not in unfed]

    def tokens(self, uid: int) -> list[int]:
        """Return the tokens a row holds."""
        return list(self._batch.tokens[self._batch.uids.index(uid)])

    def view(self, uid: int) -> list[Any]:
        """Return a row's cache; it must be let go before the next step, or that has to copy."""
        return self._batch.extract_cache(self._batch.uids.index(uid))

    def _note(self, newcomer: Newcomer) -> None:
        (self._unfed if newcomer.logits is None else self._drawn)[newcomer.uid] = newcomer

    def _begin(self, newcomer: Newcomer, cache: list[Any]) -> "_Batch":
        merged = []
        while cache:
            layer = adopt(cache.pop(0))
            mx.eval(layer.state)
            merged.append(layer)
        if newcomer.logits is None:
            return _Batch.unfed(self._model, newcomer, merged)
        return _Batch.fed(self._model, newcomer, merged)


class _Batch(GenerationBatch):  # type: ignore[misc]
    """A batch that shows a row's cache without copying it, and what it has drawn already."""

    @classmethod
    def fed(cls, model: nn.Module, newcomer: Newcomer, cache: list[Any]) -> "_Batch":
        """Return a batch of one row, whose last token was fed; its first token is drawn."""
        prompt, logits = list(newcomer.prompt), newcomer.logits
        batch = cls(
            # The first step would feed the last token.
            lambda _inputs, cache: logits,  # noqa: ARG005
            [newcomer.uid],
            mx.array(prompt[-1:]),
            cache,
            [prompt[:-1]],
            [newcomer.sampler],
            greedy_sampler,
            [tuple(newcomer.processors)],
            [newcomer.stops],
            [newcomer.max_tokens],
        )
        batch.model = model
        return batch

    @classmethod
    def unfed(cls, model: nn.Module, newcomer: Newcomer, cache: list[Any]) -> "_Batch":
        """Return a batch of one row, whose last token the next step feeds as if it were drawn."""
        batch: _Batch = cls.empty(model, greedy_sampler)
        batch.begin(newcomer, cache)
        return batch

    def begin(self, newcomer: Newcomer, cache: list[Any]) -> None:
        """Take a row in whose prompt is fed but for its last token. The batch is empty."""
        prompt = list(newcomer.prompt)
        self.uids, self.prompt_cache, self.tokens = [newcomer.uid], cache, [prompt[:-1]]
        self.samplers, self.max_tokens = [newcomer.sampler], [newcomer.max_tokens]
        self.logits_processors = [tuple(newcomer.processors)]
        self.stop_sequences = [newcomer.stops]
        self._next_tokens, self._next_logprobs = mx.array(prompt[-1:]), [mx.array(0.0)]
        self._token_context = [TokenBuffer(prompt[:-1])]
        self._num_tokens = [-1]
        self._matchers = [_DeafOnce(newcomer.stops)]

    def next_of(self, uids: Container[int]) -> list[GenerationBatch.Response]:
        """Return the tokens that were drawn for these rows; the step after is not begun yet."""
        tokens: list[int] = self._next_tokens.tolist()  # type: ignore[assignment]
        return [
            self.Response(uid, token, logprobs, None, None, None)
            for uid, token, logprobs in zip(self.uids, tokens, self._next_logprobs, strict=True)
            if uid in uids
        ]

    def extract_cache(self, idx: int) -> list[Any]:
        """Return one row's cache."""
        return [view_row(layer, idx) for layer in self.prompt_cache]


class _DeafOnce:
    """A row's stop matcher that does not hear the first token: it is the prompt's last."""

    def __init__(self, stops: StopSequences) -> None:
        self._matcher, self._deaf = stops.matcher(), True

    def advance(self, token: int) -> bool:
        """Return whether the row stops with this token."""
        if self._deaf:
            self._deaf = False
            return False
        return bool(self._matcher.advance(token))


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
