"""Rows decoded in one batch by mlx-lm's GenerationBatch.

Owns the batch's caches, and the way a row's cache becomes part of them: one layer at a time, so
that only one layer exists twice. BatchGenerator is not used: prompts are fed elsewhere, and its
constructor raises Metal's wired limit to the maximum, which with cache churn is tied to kernel
panics in public reports. Called on the MLX thread.
"""

from typing import Any

import mlx.core as mx
from mlx import nn
from mlx_lm.generate import GenerationBatch
from mlx_lm.models.cache import BatchKVCache, CacheList, KVCache

from node_agent.engine.batching.drafts import DraftBook
from node_agent.engine.batching.lone_row import LoneRow
from node_agent.engine.batching.row_batch import Newcomer, RowBatch
from node_agent.engine.batching.seats import can_trim, plain_layers
from node_agent.engine.rows import HasRoom, JoinCost, never


class DecodeGroup:
    """One batch.

    A newcomer's last token, when it is not fed yet, goes through the model with the next step of
    the others: a pass of its own would read all weights once more.
    """

    def __init__(
        self, model: nn.Module, newcomer: Newcomer, cache: list[Any], book: DraftBook | None = None
    ) -> None:
        """Start with one row; without a book nothing is drafted. Mutates: empties `cache`."""
        self._model = model
        self._batch = self._begin(newcomer, cache)
        # Rows whose last prompt token is still to be fed, those whose next token is drawn, and
        # those of which it was told before `decode` could say how they go on.
        self._unfed: set[int] = set()
        self._drawn: set[int] = set()
        self._told: set[int] = set()
        self._lone = LoneRow(self._batch, book if can_trim(self._batch.prompt_cache) else None)
        self._note(newcomer)

    @property
    def uids(self) -> list[int]:
        """The rows in it."""
        return [self._batch.uids[at] for at in self._batch.rows]

    @property
    def places(self) -> int:
        """How many rows a pass has, those included whose row has ended."""
        return len(self._batch.uids)

    @property
    def lengths_tokens(self) -> list[int]:
        """How many tokens each row holds."""
        return [len(self._batch.tokens[at]) for at in self._batch.rows]

    @property
    def cache(self) -> list[Any]:
        """The caches of all rows, one entry for each layer."""
        return self._batch.prompt_cache

    def add(self, newcomer: Newcomer, cache: list[Any]) -> None:
        """Take a row in, where one has left if that can be. Mutates: empties `cache`."""
        other = self._begin(newcomer, cache)
        self._note(newcomer)
        if self._batch.seat(other):
            return
        theirs, other.prompt_cache = other.prompt_cache, []
        for layer in self._batch.prompt_cache:
            layer.extend(theirs.pop(0))
            mx.eval(layer.state)
        self._batch.extend(other)

    def take_first(self) -> list[GenerationBatch.Response]:
        """Return tokens that are drawn and end no row; `decode` does not return them again.

        How a row ends is for `decode` to say.
        """
        drawn, self._drawn = self._drawn, set()
        if not drawn:
            return []
        told = self._batch.next_of(drawn)
        self._told |= {one.uid for one in told}
        return told

    def remove(self, uid: int) -> None:
        """Drop a row."""
        for rows in (self._unfed, self._drawn, self._told):
            rows.discard(uid)
        self._lone.forget(uid)
        self._batch.drop(self._batch.uids.index(uid))

    def compact(self) -> bool:
        """Give back what rows that ended still hold; False when they hold nothing."""
        return self._batch.compact()

    def decode(self, has_room: HasRoom = never) -> list[GenerationBatch.Response]:
        """Decode a token of each row; rows that end leave the batch.

        A row that is alone may say more: what is drafted for it, if that has room, and comes true.
        """
        responses = [] if self._unfed else self._lone.verify(self._told, has_room)
        drawn = {one.uid for one in responses}
        if not responses:
            responses = self._lone.go_on()
        # An unfed row has now drawn its first token; what it "said" was its prompt's last.
        unfed, self._unfed = self._unfed, set()
        self._drawn |= drawn | unfed
        told, self._told = self._told, set()
        hidden = told | unfed
        fresh = []
        for one in responses:
            if one.uid in hidden:
                hidden.discard(one.uid)
            else:
                fresh.append(one)
        return fresh

    def tokens(self, uid: int) -> list[int]:
        """Return the tokens a row holds."""
        return list(self._batch.tokens[self._batch.uids.index(uid)])

    def view(self, uid: int) -> list[Any]:
        """Return a row's cache; it must be let go before the next step, or that has to copy."""
        return self._batch.extract_cache(self._batch.uids.index(uid))

    def _note(self, newcomer: Newcomer) -> None:
        (self._unfed if newcomer.logits is None else self._drawn).add(newcomer.uid)

    def _begin(self, newcomer: Newcomer, cache: list[Any]) -> RowBatch:
        merged = []
        while cache:
            layer = adopt(cache.pop(0))
            mx.eval(layer.state)
            merged.append(layer)
        if newcomer.logits is None:
            return RowBatch.unfed(self._model, newcomer, merged)
        return RowBatch.fed(self._model, newcomer, merged)


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


def plan_join(
    group: list[Any] | None, row: list[Any], rows: int, filtered_rows: int = 0
) -> JoinCost:
    """Return what a row's cache takes as part of a batch of `rows` rows, itself included.

    Pure: reads only the sizes of buffers. Layers that do not grow with the context are copied
    but take no more room than they had.
    """
    added_bytes = widest_bytes = 0
    for at, theirs in enumerate(plain_layers(row)):
        own_bytes = theirs.nbytes
        after_bytes = own_bytes
        if group is not None:
            ours = plain_layers(group)[at]
            after_bytes = ours.nbytes + own_bytes
            longest = max(_buffer_tokens(ours), _buffer_tokens(theirs))
            if longest and _buffer_tokens(theirs):
                after_bytes = rows * longest * (own_bytes // _buffer_tokens(theirs))
            added_bytes += after_bytes - ours.nbytes - own_bytes
        widest_bytes = max(widest_bytes, after_bytes)
    # A place that a row left may be more than this one takes.
    return JoinCost(
        rows=rows,
        added_bytes=max(0, added_bytes),
        copied_bytes=widest_bytes,
        filtered_rows=filtered_rows,
    )


def _buffer_tokens(cache: Any) -> int:
    """Return how many tokens a cache has room for; 0 for one that is not by token."""
    keys = getattr(cache, "keys", None)
    return 0 if keys is None else int(keys.shape[2])
