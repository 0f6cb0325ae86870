"""Prompts on their way into caches, chunk by chunk, each alone or several in lockstep.

Owns a row's cache until it is taken over by a decode batch. Every token but the last is fed
here; the last one gives the first logits, and comes along with a short last chunk or is left to
decode. Rows in lockstep stand at the same token and share one forward pass for each chunk; what
they hold is one cache meanwhile. Called on the MLX thread.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

from node_agent.engine.batching.chunking import cut_chunk, takes_last
from node_agent.engine.batching.lanes import Lanes
from node_agent.engine.batching.row_stack import can_stack, stack, unstack, view, widest_layer_bytes
from node_agent.engine.prefix.prefix_cache import RowPrefix
from node_agent.engine.rows import PrefillStep, RestoreStep


class RowPrefill:
    """The feeding of one prompt."""

    def __init__(
        self,
        lanes: Lanes,
        prompt: Sequence[int],
        *,
        cache: list[Any] | None = None,
        fed_tokens: int = 0,
        prefix: RowPrefix | None = None,
    ) -> None:
        """Start with an empty cache, or with one that holds the first `fed_tokens` of the prompt.

        `prefix` may restore more, and stores what is fed.
        """
        self._lanes = lanes
        self._prompt = prompt
        self._cache = make_prompt_cache(lanes.model) if cache is None else cache
        self._fed_tokens = fed_tokens
        self._prefix = prefix
        self._logits: mx.array | None = None
        # The rows that are fed together with this one; they hold its cache.
        self.lockstep: Lockstep | None = None

    @property
    def fed_tokens(self) -> int:
        """How many tokens the cache holds."""
        return self._fed_tokens

    @property
    def prompt(self) -> Sequence[int]:
        """The tokens to feed."""
        return self._prompt

    @property
    def cache(self) -> list[Any]:
        """The row's cache, one entry for each layer. Mutates: ends the row's lockstep."""
        if self.lockstep is not None:
            self.lockstep.end()
        return self._cache

    def next_chunk_tokens(self, limit_tokens: int) -> int:
        """Return how many tokens the next chunk feeds; 0 when at most the last one is left."""
        stops = () if self._prefix is None else self._prefix.stops
        last_tokens = len(self._prompt) - 1
        chunk_tokens = cut_chunk(self._fed_tokens, last_tokens, limit_tokens, stops)
        ends = self._fed_tokens + chunk_tokens == last_tokens
        return chunk_tokens + (ends and takes_last(chunk_tokens, last_tokens, limit_tokens, stops))

    def restore_bytes(self) -> int | None:
        """Return what starting from stored blocks still takes; None while that is not known."""
        return 0 if self._prefix is None else self._prefix.restore_bytes()

    def restore(self, uid: int, wait_seconds: float) -> RestoreStep | None:
        """Start from stored blocks instead of an empty cache; None while there is more to do."""
        if self._prefix is None:
            return RestoreStep(uid)
        done = self._prefix.restore(uid, wait_seconds)
        if done is None:
            return None
        cache, step = done
        if cache is not None:
            self._cache, self._fed_tokens = cache, step.tokens
        return step

    def start_cold(self) -> None:
        """Start from nothing, though there are stored blocks."""
        if self._prefix is not None:
            self._prefix.start_cold()

    def feed(self, uid: int, chunk_tokens: int) -> PrefillStep:
        """Run the next tokens through the model and evaluate the cache.

        With the last token among them, what can be stored later is left to the runner, so that the
        row's first token does not wait for it.
        """
        started_seconds = time.perf_counter()
        end = self._fed_tokens + chunk_tokens
        chunk = [self._prompt[self._fed_tokens : end]]
        cache, said = self.cache, end == len(self._prompt)
        self._logits = self._lanes.feed(chunk, cache, said=said)
        self._fed_tokens = end
        if self._prefix is not None:
            self._prefix.note_fed(lambda: cache, end, urgent=said)
        seconds = time.perf_counter() - started_seconds
        return PrefillStep(uid, end, len(self._prompt), chunk_tokens, seconds)

    def take_logits(self) -> mx.array | None:
        """Give away what the last token said, if it was fed. Shapes: (1, 1, vocabulary)."""
        logits, self._logits = self._logits, None
        return logits

    def hand_over(self) -> list[Any]:
        """Give the cache away, so the taker can free each layer as it takes it.

        Mutates: the row has no cache afterwards.
        """
        cache, self._cache = self.cache, []
        return cache

    def note_fed(self, end_tokens: int, view: Callable[[], list[Any]]) -> None:
        """Note that the cache holds so many tokens now; `view` shows it."""
        self._fed_tokens = end_tokens
        if self._prefix is not None:
            self._prefix.note_fed(view, end_tokens)

    def take_back(self, cache: list[Any]) -> None:
        """Take the cache again, as it has become."""
        self._cache = cache


class Lockstep:
    """Rows that stand at the same token, fed together."""

    def __init__(self, lanes: Lanes, rows: dict[int, RowPrefill]) -> None:
        """Take the rows' caches until `end`. Mutates: the rows."""
        self._lanes, self._rows = lanes, rows
        self._cache = stack([row.hand_over() for row in rows.values()])
        for row in rows.values():
            row.lockstep = self

    @property
    def uids(self) -> tuple[int, ...]:
        """The rows, in order."""
        return tuple(self._rows)

    @property
    def widest_layer_bytes(self) -> int:
        """What the largest layer takes."""
        return widest_layer_bytes([self._cache])

    def feed(self, chunk_tokens: int) -> tuple[PrefillStep, ...]:
        """Run the next tokens of each row, none of them its last, and evaluate the cache.

        Each step has an equal share of the time.
        """
        started_seconds = time.perf_counter()
        rows = self._rows.values()
        chunks = [row.prompt[row.fed_tokens : row.fed_tokens + chunk_tokens] for row in rows]
        self._lanes.feed(chunks, self._cache, said=False)
        for at, row in enumerate(rows):
            row.note_fed(row.fed_tokens + chunk_tokens, partial(view, self._cache, at))
        seconds = (time.perf_counter() - started_seconds) / len(rows)
        return tuple(
            PrefillStep(uid, row.fed_tokens, len(row.prompt), chunk_tokens, seconds)
            for uid, row in self._rows.items()
        )

    def end(self) -> None:
        """Give every row its cache again. Mutates: the rows."""
        rows, self._rows = self._rows, {}
        caches = unstack(self._cache, len(rows))
        for row, cache in zip(rows.values(), caches, strict=True):
            row.lockstep = None
            row.take_back(cache)


def lockstep_bytes(rows: Sequence[RowPrefill]) -> int | None:
    """Return what putting rows together or apart takes meanwhile; None when they do not match.

    Mutates: ends the lockstep of rows that walked with others than these.
    """
    if (lockstep := rows[0].lockstep) is not None and all(one.lockstep is lockstep for one in rows):
        return lockstep.widest_layer_bytes
    caches = [row.cache for row in rows]
    return widest_layer_bytes(caches) if can_stack(caches) else None
