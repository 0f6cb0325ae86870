"""Which rows run now, and the events of each step.

Owns the requests of one engine, keyed by request id and by uid from the moment a row is
inserted. It holds no array and imports no MLX. The MLX thread calls it.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from manifests.errors import Code, Retryable
from node_agent.engine.mailbox import RowCounts
from node_agent.engine.messages import (
    Abort,
    Answer,
    Event,
    Failed,
    Finished,
    Generate,
    Limits,
    Reclaim,
    Tokens,
)
from node_agent.engine.rows import Memory, Prefixes, RowRunner, TokenStep
from node_agent.engine.scheduling.deadlines import Deadlines
from node_agent.engine.scheduling.feeder import FedRow
from node_agent.engine.scheduling.feeding import FeedingLine
from node_agent.engine.scheduling.forecast import Forecast
from node_agent.engine.scheduling.gatekeeper import Gatekeeper
from node_agent.engine.scheduling.sharing import NoPrefixes, Sharing
from node_agent.engine.scheduling.waiting import WaitingLine, find_fault


@dataclass(slots=True)
class Row:
    """One request inside the runner."""

    command: Generate
    uid: int
    fed: FedRow | None = None
    completion_tokens: int = 0


class Scheduler:
    """The requests of one engine."""

    def __init__(
        self,
        runner: RowRunner,
        vocab_size: int,
        memory: Memory,
        forecast: Forecast | None = None,
        clock: Callable[[], float] = time.monotonic,
        prefixes: Prefixes | None = None,
    ) -> None:
        self._runner, self._vocab_size, self._memory = runner, vocab_size, memory
        self._clock = clock
        self._gatekeeper = Gatekeeper(memory, forecast, clock)
        self._line = FeedingLine(runner, memory, self._gatekeeper, clock)
        self._waiting = WaitingLine()
        self._sharing = Sharing(prefixes or NoPrefixes(), clock)
        self._deadlines = Deadlines()
        self._by_id: dict[str, Row] = {}
        self._by_uid: dict[int, Row] = {}

    @property
    def counts(self) -> RowCounts:
        """How many rows are where."""
        return RowCounts(
            running=len(self._by_id),
            waiting=len(self._waiting) + len(self._sharing),
            prefilling=len(self._line),
            held=self._line.held,
            prefill_turn=self._gatekeeper.limits.prefill_turn,
            over_budget_bytes=self._gatekeeper.over_budget_bytes,
            drafted_tokens=self._runner.draft_tally.drafted_tokens,
            accepted_tokens=self._runner.draft_tally.accepted_tokens,
        )

    @property
    def busy(self) -> bool:
        """Whether there is any request."""
        return bool(self._by_id or len(self._waiting) or len(self._sharing))

    @property
    def runnable(self) -> bool:
        """Whether a step would do anything before a command arrives or time passes."""
        if len(self._by_id) > len(self._line) or self._line.runnable:
            return True
        turn = self._gatekeeper.limits.prefill_turn
        ready = len(self._waiting) > 0 or self._sharing.has_freed
        return turn and ready and not self._by_id

    def submit(self, command: Generate) -> list[Event]:
        """Queue a request; a request that can never run fails alone, at once."""
        waiting_ids = (*self._waiting.request_ids, *self._sharing.request_ids)
        if command.request_id in self._by_id or command.request_id in waiting_ids:
            # Answering would end the stream of the request that rightly owns the id.
            return []
        fault = find_fault(command, self._vocab_size)
        if fault:
            return [_failed(command.request_id, Code.INVALID_VALUE, fault, Retryable.NO)]
        self._waiting.append(command, self._sharing.cached_tokens(command))
        self._deadlines.start(command, self._clock())
        return []

    def steer(self, command: Limits | Answer | Reclaim) -> None:
        """Take a new budget, turn or answer, or give freed buffers back, between steps."""
        match command:
            case Limits():
                self._gatekeeper.limits = command
            case Answer():
                self._line.answer(command)
            case Reclaim():
                self._runner.compact()
                self._gatekeeper.reclaim()

    def cancel(self, request_id: str) -> list[Event]:
        """Drop a request, waiting or running; an unknown id changes nothing."""
        row = self._take(request_id, keep=True)
        return [] if row is None else [_finished(row, "cancelled")]

    def abort(self, command: Abort) -> list[Event]:
        """Fail a request with the agent's words, waiting or running, and free what it held."""
        if self._take(command.request_id) is None:
            return []
        self._memory.clear()
        return [
            Failed(
                request_id=command.request_id,
                code=command.code,
                message=command.message,
                retryable=command.retryable,
            )
        ]

    def step(self, between: Callable[[list[Event]], None] | None = None) -> list[Event]:
        """Decode once, then feed at most one chunk; return what it did, in order.

        What was decoded is handed to `between` instead, before anything is fed: a chunk takes a
        while. It may submit, steer, cancel and abort.
        """
        self._gatekeeper.watch()
        events: list[Event] = []
        for overdue in self._deadlines.overdue(self._clock()):
            events += self.abort(overdue)
        for freed in reversed(self._sharing.free()):
            self._waiting.put_back(freed)
        self._admit()
        started_seconds, drafted_tokens = self._clock(), self._runner.draft_tally.drafted_tokens
        tokens = self._runner.decode(self._gatekeeper.has_room)
        # A pass over drafts says nothing of what one token for each row takes.
        if tokens and self._runner.draft_tally.drafted_tokens == drafted_tokens:
            self._line.note_decode(self._clock() - started_seconds)
        for token in tokens:
            events.extend(self._note_token(token))
        if between is not None:
            between(events)
            events = []
            self._admit()
        fed = self._line.feed(len(self._by_id) - len(self._line))
        events += fed.events
        for joined in fed.joined:
            self._sharing.leave(joined.command.request_id)
        for token in self._runner.first_tokens():
            events.extend(self._note_token(token))
        for refused in fed.refused:
            self._deadlines.forget(refused.command.request_id)
        for gone in (*fed.refused, *fed.requeued):
            self._forget(self._by_uid[gone.uid])
        for requeued in reversed(fed.requeued):
            self._waiting.requeue(requeued.command, requeued.tries)
        if not self._by_id:
            self._gatekeeper.rest()
        return events

    def fail_all(self, code: Code, message: str, retryable: Retryable) -> list[Event]:
        """End every request without an answer."""
        ids = [*self._by_id, *self._waiting.request_ids, *self._sharing.request_ids]
        self._by_id.clear()
        self._by_uid.clear()
        self._waiting.clear()
        self._sharing.clear()
        self._line.clear()
        self._deadlines.clear()
        return [_failed(request_id, code, message, retryable) for request_id in ids]

    def _admit(self) -> None:
        """Insert what may be fed now; without the turn nothing would be fed anyway."""
        if not self._gatekeeper.limits.prefill_turn:
            return
        while len(self._by_id) < self._runner.max_rows:
            decoding_rows = len(self._by_id) - len(self._line)
            beside = self._line.beside(decoding_rows)
            waiting = self._waiting.next_row(beside, idle=not self._by_id)
            if waiting is None:
                return
            if not self._sharing.admits(waiting):
                continue
            command = waiting.command
            uid = self._runner.insert(command)
            fed = FedRow(command, uid, waiting.tries, waiting.cached_tokens)
            row = Row(command, uid, fed)
            self._by_id[command.request_id] = self._by_uid[uid] = row
            self._line.add(fed)

    def _note_token(self, step: TokenStep) -> Iterable[Event]:
        row = self._by_uid[step.uid]
        if step.finish != "stop":
            # A token that stops the row is neither sent nor counted, as OpenAI counts.
            row.completion_tokens += 1
            yield Tokens(
                request_id=row.command.request_id,
                ids=[step.token],
                logprobs=[] if step.logprobs is None else [step.logprobs],
            )
        if step.finish is not None:
            self._deadlines.forget(row.command.request_id)
            self._forget(row)
            yield _finished(row, step.finish)

    def _take(self, request_id: str, *, keep: bool = False) -> Row | None:
        """Take a request out, wherever it is; with `keep` what it computed is stored first."""
        self._deadlines.forget(request_id)
        row = self._by_id.get(request_id)
        if row is None:
            waiting = self._waiting.take(request_id) or self._sharing.take(request_id)
            self._sharing.leave(request_id)
            return None if waiting is None else Row(waiting.command, uid=-1)
        self._runner.remove(row.uid, keep=keep)
        self._forget(row)
        if not self._by_id:
            self._gatekeeper.rest()
        return row

    def _forget(self, row: Row) -> None:
        self._waiting.note_end()
        self._line.remove(row.uid)
        self._sharing.leave(row.command.request_id)
        del self._by_id[row.command.request_id]
        del self._by_uid[row.uid]


def _finished(row: Row, reason: str) -> Finished:
    return Finished(
        request_id=row.command.request_id,
        reason=reason,
        prompt_tokens=len(row.command.prompt),
        completion_tokens=row.completion_tokens,
        cached_tokens=0 if row.fed is None else row.fed.cached_tokens,
    )


def _failed(request_id: str, code: Code, message: str, retryable: Retryable) -> Failed:
    return Failed(
        request_id=request_id, code=code.value, message=message, retryable=retryable.value
    )
