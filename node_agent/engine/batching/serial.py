"""Rows run one at a time, for models whose caches mlx-lm cannot merge into a batch.

Owns one row's cache at a time. Same steps and results as `batch.py`, so the scheduler does not
know the difference; the rest of the requests wait their turn.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import mlx.core as mx

from node_agent.engine.batching.lanes import Lanes
from node_agent.engine.batching.logprobs import pick_logprobs
from node_agent.engine.batching.prefill import RowPrefill
from node_agent.engine.batching.sampling import (
    Processor,
    Sampler,
    Samplers,
    is_filtered,
    processors_for,
)
from node_agent.engine.messages import Generate
from node_agent.engine.prefix.prefix_cache import PrefixCache, RowPrefix
from node_agent.engine.rows import DraftTally, HasRoom, JoinCost, PrefillStep, TokenStep, never


@dataclass(slots=True)
class _Row:
    uid: int
    command: Generate
    prefill: RowPrefill
    sampler: Sampler
    processors: list[Processor]
    stops: frozenset[int]
    prefix: RowPrefix | None = None
    joined: bool = False
    output: list[int] = field(default_factory=list)


class SerialRunner:
    """One row at a time over one model."""

    def __init__(self, lanes: Lanes, chunk_tokens: int) -> None:
        self._lanes = lanes
        self._chunk_tokens = chunk_tokens
        self._samplers = Samplers()
        self._rows: dict[int, _Row] = {}
        self._next_uid = 0
        self.draft_tally = DraftTally()
        # As in `batch.py`.
        self.prefixes: PrefixCache | None = None

    @property
    def max_rows(self) -> int:
        """Always one."""
        return 1

    @property
    def chunk_tokens(self) -> int:
        """The most prompt tokens one step feeds."""
        return self._chunk_tokens

    def insert(self, command: Generate) -> int:
        """Take the only row and return its uid."""
        uid, self._next_uid = self._next_uid, self._next_uid + 1
        prefix = None if self.prefixes is None else self.prefixes.row(command)
        self._rows[uid] = _Row(
            uid=uid,
            command=command,
            prefill=RowPrefill(self._lanes, command.prompt, prefix=prefix),
            prefix=prefix,
            sampler=self._samplers.sampler_for(command.sampling, command.said_tokens),
            processors=processors_for(command.sampling, len(command.prompt) - command.said_tokens),
            stops=frozenset(() if command.ignore_eos else command.stop_token_ids),
        )
        return uid

    def remove(self, uid: int, *, keep: bool = False) -> None:
        """Drop the row; with `keep` what it decoded is stored first."""
        row = self._rows.pop(uid)
        if row.prefix is not None:
            row.prefix.close()
        if keep and row.joined:
            _keep(row, finished=True)

    def prompt(self, uid: int) -> RowPrefill:
        """Return the row's prompt."""
        return self._rows[uid].prefill

    def lockstep_bytes(self, uids: Sequence[int]) -> int | None:  # noqa: ARG002 - there is one row
        """Return None: one row is fed at a time."""
        return None

    def feed_together(self, uids: Sequence[int], chunk_tokens: int) -> tuple[PrefillStep, ...]:
        """Feed the only row."""
        return tuple(self._rows[uid].prefill.feed(uid, chunk_tokens) for uid in uids)

    def compact(self) -> bool:
        """Return False: a row that ended holds nothing."""
        return False

    def part(self) -> None:
        """Do nothing: a row always has a cache of its own."""

    def join_cost(self, uid: int, *, apart: bool) -> JoinCost:  # noqa: ARG002 - always apart
        """Return what decoding takes: the widest layer may have to grow."""
        row = self._rows[uid]
        copied_bytes = max((layer.nbytes for layer in row.prefill.cache), default=0)
        return JoinCost(
            copied_bytes=copied_bytes, filtered_rows=int(is_filtered(row.command.sampling))
        )

    def join(self, uid: int, *, apart: bool) -> PrefillStep:  # noqa: ARG002 - always apart
        """Decode the row from the next step on; its last token is fed there, if it is not yet."""
        row = self._rows[uid]
        row.joined = True
        if row.prefix is not None:
            row.prefix.note_fed(lambda: row.prefill.cache, row.prefill.fed_tokens)
        total_tokens = len(row.command.prompt)
        last_tokens = total_tokens - row.prefill.fed_tokens
        return PrefillStep(uid, total_tokens, total_tokens, last_tokens, 0.0)

    def first_tokens(self) -> tuple[TokenStep, ...]:
        """Return nothing: the first token is drawn in `decode`."""
        return ()

    def decode(self, has_room: HasRoom = never) -> tuple[TokenStep, ...]:  # noqa: ARG002
        """Decode one token of the row, if it has joined; few of these caches take drafts back."""
        steps = tuple(_decode(self._lanes, row) for row in self._rows.values() if row.joined)
        for step in steps:
            if step.finish is not None:
                del self._rows[step.uid]
        return steps


def _decode(lanes: Lanes, row: _Row) -> TokenStep:
    command = row.command
    said = row.prefill.take_logits()
    if said is None:
        last = row.output[-1] if row.output else command.prompt[-1]
        said = lanes.model(mx.array([[last]]), cache=row.prefill.cache)
    logits = said[:, -1, :]
    if row.processors:
        context = mx.array(command.prompt + row.output, dtype=mx.int32)
        for process in row.processors:
            logits = process(context, logits)
    logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    token = cast(int, row.sampler(logprobs).item())
    row.output.append(token)
    finish = "length" if len(row.output) >= command.max_tokens else None
    if token in row.stops:
        finish = "stop"
    _keep(row, finished=finish is not None)
    top = command.sampling.top_logprobs
    picked = None if top is None else pick_logprobs([(logprobs[0], token, top)])[0]
    return TokenStep(row.uid, token, finish, picked)


def _keep(row: _Row, *, finished: bool) -> None:
    """Store the prefix of a row that ended or filled a block; its newest token is not fed yet."""
    held_tokens = len(row.command.prompt) + max(0, len(row.output) - 1)
    if row.prefix is None or not row.output or not (finished or row.prefix.is_due(held_tokens)):
        return
    tokens = [*row.command.prompt, *row.output[:-1]]
    row.prefix.note_decoded(tokens, lambda: row.prefill.cache, finished=finished)
