"""A batch whose places outlive their rows for a few steps, so that the next rows can take them.

To take a row out, the caches of all that stay are copied, and to take one in once more. Where rows
end, others mostly begin: a chat's next turn, the next in line. So a row that ends leaves its place
behind. It is decoded along, heard by nobody, until a row takes it, and nothing but that row's cache
is copied. Nobody needs it for longer than a few steps, and it goes at once when memory is short.
Owns the reach into GenerationBatch that this takes. Called by `row_batch.py` on the MLX thread.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx_lm.generate import GenerationBatch, StopSequences
from mlx_lm.models.cache import BatchKVCache, CacheList
from mlx_lm.sample_utils import greedy_sampler

from node_agent.engine.batching.chunking import STEP_TOKENS

# A chat's next turn is there within a step or two; a place costs the others a little each step.
MOST_VACANT_STEPS = 8
VACANT = -1
_NO_STOPS = StopSequences([])


@dataclass(frozen=True, slots=True)
class OnlyRow:
    """A row by itself: what it says next, and what GenerationBatch knows of it besides."""

    values: list[Any]
    next_token: mx.array


class SeatedBatch(GenerationBatch):  # type: ignore[misc]
    """Rows decoded together, some of whose places may be vacant. Its `uids` are then `VACANT`."""

    _next_tokens: mx.array
    _vacant_steps = 0

    @property
    def rows(self) -> list[int]:
        """The places that are taken, in order."""
        return [at for at, uid in enumerate(self.uids) if uid != VACANT]

    def next(self) -> list[GenerationBatch.Response]:
        """Say the next token of each row, and begin the pass for the one after."""
        if VACANT in self.uids:
            self._vacant_steps += 1
            # Buffers about to grow would grow for nobody.
            if self._vacant_steps > MOST_VACANT_STEPS or self._is_full():
                self.compact()
        return [one for one in super().next() if one.uid != VACANT]

    def filter(self, keep: Sequence[int]) -> None:
        """Keep these rows. The places of others stay for now, if a row could take them."""
        kept = [at for at in keep if self.uids[at] != VACANT]
        if len(kept) < 2 or not can_trim(self.prompt_cache) or self._padding_tokens(kept):
            super().filter(kept)
            return
        for at in set(range(len(self.uids))) - set(keep):
            self._vacate(at)
        self._vacant_steps = 0

    def drop(self, at: int) -> None:
        """Take a row out, its place too."""
        super().filter([one for one in self.rows if one != at])

    def compact(self) -> bool:
        """Give vacant places back, layer by layer; False when there are none."""
        if VACANT not in self.uids:
            return False
        super().filter(self.rows)
        for layer in self.prompt_cache:
            mx.eval(layer.state)
        return True

    def seat(self, other: "SeatedBatch") -> bool:
        """Let the only row of another batch take a vacant place; False if there is none.

        Mutates: the other batch has no cache afterwards.
        """
        if VACANT not in self.uids:
            return False
        at, theirs = self.uids.index(VACANT), plain_layers(other.prompt_cache)
        # What a pass under way still reads would be copied before it is written over.
        mx.synchronize()
        row, other.prompt_cache = other.only_row(), []
        for layer in plain_layers(self.prompt_cache):
            _write(layer, theirs.pop(0), at)
        for mine, its in zip(self._lists(), row.values, strict=True):
            mine[at] = its
        tokens = self._next_tokens
        self._next_tokens = mx.concatenate([tokens[:at], row.next_token, tokens[at + 1 :]])
        return True

    def only_row(self) -> "OnlyRow":
        """Return what there is of the only row besides its cache."""
        return OnlyRow([values[0] for values in self._lists()], self._next_tokens)

    def _lists(self) -> tuple[list[Any], ...]:
        """Return all that there is of each row but its token and its cache."""
        told = (self.uids, self.tokens, self.samplers, self.logits_processors, self.max_tokens)
        own = (self._next_logprobs, self._token_context, self._num_tokens, self._matchers)
        return (*told, self.stop_sequences, *own)

    def _vacate(self, at: int) -> None:
        self.uids[at], self.tokens[at] = VACANT, []
        # Nothing ends it, and it draws from nobody's generator.
        self.samplers[at], self.logits_processors[at] = greedy_sampler, ()
        self.max_tokens[at], self.stop_sequences[at] = sys.maxsize, _NO_STOPS
        self._matchers[at] = _NO_STOPS.matcher()

    def _is_full(self) -> bool:
        """Return whether the next token makes the buffers grow; all layers are alike there."""
        first = plain_layers(self.prompt_cache)[0]
        return bool(first.size() >= first.keys.shape[2])

    def _padding_tokens(self, kept: Sequence[int]) -> int:
        """Return what all of these rows are padded with, in whole steps of the buffers."""
        longest_tokens = max(len(self.tokens[at]) for at in kept)
        padding_tokens = plain_layers(self.prompt_cache)[0].size() - longest_tokens
        return int(padding_tokens // STEP_TOKENS)


def plain_layers(caches: Sequence[Any]) -> list[Any]:
    """Return caches with those of lists in their place."""
    flat: list[Any] = []
    for cache in caches:
        flat += plain_layers(cache.caches) if isinstance(cache, CacheList) else [cache]
    return flat


def can_trim(caches: Sequence[Any]) -> bool:
    """Return whether every layer is plain KV: it can take back, or write over, any tokens.

    Windows cannot once they are full, recurrent states never.
    """
    return all(type(layer) is BatchKVCache for layer in plain_layers(caches))


def _write(layer: BatchKVCache, row: BatchKVCache, at: int) -> None:
    """Write the only row of one layer over a row of another, in place where that can be.

    All rows end where the longest ends, so one that holds more than that moves the others.
    """
    held_tokens = row.size()
    if (more_tokens := held_tokens - layer.size()) > 0:
        _move(layer, more_tokens)
    end = layer.size()
    start = end - held_tokens
    for ours, theirs in ((layer.keys, row.keys), (layer.values, row.values)):
        # The row of a prompt of one token holds nothing yet, not even buffers.
        if held_tokens:
            ours[at : at + 1, :, start:end] = theirs[..., :held_tokens, :]
        # What was there is masked, but a NaN spoils a sum even then.
        ours[at : at + 1, :, :start] = 0
    layer.offset[at : at + 1] = row.offset
    layer.left_padding[at : at + 1] = row.left_padding + start
    mx.eval(layer.state)


def _move(layer: BatchKVCache, by_tokens: int) -> None:
    """Have all rows of a layer end so many tokens later, in buffers of whole steps."""
    keys, values, offset, left_padding, end = layer.state
    spare_tokens = -(end + by_tokens) % STEP_TOKENS
    width = [(0, 0), (0, 0), (by_tokens, spare_tokens), (0, 0)]
    moved = [mx.pad(array[..., :end, :], width) for array in (keys, values)]
    layer.state = (*moved, offset, left_padding + by_tokens, end + by_tokens)
