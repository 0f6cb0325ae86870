"""One row's prompt on its way into a cache of its own, chunk by chunk.

Owns the row's cache until it is taken over by a decode batch. Every token but the last is fed
here; the last one gives the first logits, and comes along with a short last chunk or is left to
decode. Called on the MLX thread.
"""

import time
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx_lm.models.cache import make_prompt_cache

from node_agent.engine.chunking import cut_chunk, takes_last
from node_agent.engine.prefix_cache import RowPrefix
from node_agent.engine.rows import PrefillStep, RestoreStep


class RowPrefill:
    """The feeding of one prompt."""

    def __init__(
        self,
        model: nn.Module,
        prompt: Sequence[int],
        *,
        cache: list[Any] | None = None,
        fed_tokens: int = 0,
        prefix: RowPrefix | None = None,
    ) -> None:
        """Start with an empty cache, or with one that holds the first `fed_tokens` of the prompt.

        `prefix` may restore more, and stores what is fed.
        """
        self._model = model
        self._prompt = prompt
        self._cache = make_prompt_cache(model) if cache is None else cache
        self._fed_tokens = fed_tokens
        self._prefix = prefix
        self._logits: mx.array | None = None

    @property
    def fed_tokens(self) -> int:
        """How many tokens the cache holds."""
        return self._fed_tokens

    @property
    def cache(self) -> list[Any]:
        """The row's cache, one entry for each layer."""
        return self._cache

    def next_chunk_tokens(self, limit_tokens: int) -> int:
        """Return how many tokens the next chunk feeds; 0 when at most the last one is left."""
        stops = () if self._prefix is None else self._prefix.stops
        last_tokens = len(self._prompt) - 1
        chunk_tokens = cut_chunk(self._fed_tokens, last_tokens, limit_tokens, stops)
        ends = self._fed_tokens + chunk_tokens == last_tokens
        return chunk_tokens + (ends and takes_last(chunk_tokens, last_tokens, limit_tokens, stops))

    def restore_bytes(self) -> int:
        """Return what starting from stored blocks still takes; 0 when there is no need."""
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
            self._prefix.begin(0)

    def feed(self, uid: int, chunk_tokens: int) -> PrefillStep:
        """Run the next tokens through the model and evaluate the cache."""
        started_seconds = time.perf_counter()
        end = self._fed_tokens + chunk_tokens
        chunk = list(self._prompt[self._fed_tokens : end])
        logits = self._model(mx.array([chunk]), cache=self._cache)
        if end == len(self._prompt):
            self._logits = logits[:, -1:, :]
        # Unless they are wanted, logits are never computed.
        mx.eval([layer.state for layer in self._cache], self._logits)
        self._fed_tokens = end
        if self._prefix is not None:
            self._prefix.note_fed(self._cache, end)
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
        cache, self._cache = self._cache, []
        return cache
