"""Which rows run now: the waiting line, admission, cancellation, and the events of each step.

Owns the requests of one engine, keyed by request id and by uid from the moment a row is
inserted. It holds no array and imports no MLX. The MLX thread calls it.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from manifests.errors import Code, Retryable
from node_agent.engine.messages import (
    Event,
    Failed,
    Finished,
    Generate,
    PrefillProgress,
    Tokens,
)
from node_agent.engine.rows import PrefillStep, RowRunner, TokenStep

MAX_PREFILLING_ROWS = 8


@dataclass(slots=True)
class Row:
    """One request inside the runner."""

    command: Generate
    uid: int
    prefilling: bool = True
    completion_tokens: int = 0


def find_fault(command: Generate, vocab_size: int) -> str:
    """Return why a command cannot run, or an empty text. Pure."""
    if not command.prompt:
        return "the prompt has no tokens"
    if command.max_tokens < 1:
        return f"max_tokens must be at least 1, got {command.max_tokens}"
    lowest, highest = min(command.prompt), max(command.prompt)
    if lowest < 0 or highest >= vocab_size:
        wrong = lowest if lowest < 0 else highest
        return f"token id {wrong} is outside the model's vocabulary of {vocab_size}"
    return ""


def can_admit(prompt_tokens: int, prefilling_tokens: Sequence[int], chunk_tokens: int) -> bool:
    """Return whether one more prompt may be fed beside those being fed now. Pure.

    Short prompts (one chunk or less) slip in beside a long one, so they need not wait for
    its end; long ones go one after another, because sharing the chunk between them would
    only make all of them late.
    """
    if len(prefilling_tokens) >= MAX_PREFILLING_ROWS:
        return False
    if prompt_tokens <= chunk_tokens:
        return True
    return all(tokens <= chunk_tokens for tokens in prefilling_tokens)


class Scheduler:
    """The requests of one engine."""

    def __init__(self, runner: RowRunner, vocab_size: int) -> None:
        self._runner = runner
        self._vocab_size = vocab_size
        self._waiting: deque[Generate] = deque()
        self._by_id: dict[str, Row] = {}
        self._by_uid: dict[int, Row] = {}

    @property
    def running(self) -> int:
        """How many rows are inside the runner."""
        return len(self._by_id)

    @property
    def waiting(self) -> int:
        """How many requests wait outside it."""
        return len(self._waiting)

    @property
    def busy(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._by_id or self._waiting)

    def submit(self, command: Generate) -> list[Event]:
        """Queue a request; a request that can never run fails alone, at once."""
        if self._knows(command.request_id):
            # Answering would end the stream of the request that rightly owns the id.
            return []
        fault = find_fault(command, self._vocab_size)
        if fault:
            return [_failed(command.request_id, Code.INVALID_VALUE, fault, Retryable.NO)]
        self._waiting.append(command)
        return []

    def cancel(self, request_id: str) -> list[Event]:
        """Drop a request, waiting or running; an unknown id changes nothing."""
        row = self._by_id.get(request_id)
        if row is not None:
            self._runner.remove(row.uid)
            self._forget(row)
            return [_finished(row, "cancelled")]
        for command in self._waiting:
            if command.request_id == request_id:
                self._waiting.remove(command)
                return [_finished(Row(command, uid=-1), "cancelled")]
        return []

    def step(self) -> list[Event]:
        """Admit what fits, run one step and return what it did, in order."""
        self._admit()
        result = self._runner.step()
        events: list[Event] = []
        for prefill in result.prefills:
            events.extend(self._note_prefill(prefill))
        for token in result.tokens:
            events.extend(self._note_token(token))
        return events

    def fail_all(self, code: Code, message: str, retryable: Retryable) -> list[Event]:
        """End every request without an answer."""
        ids = [*self._by_id, *(command.request_id for command in self._waiting)]
        self._by_id.clear()
        self._by_uid.clear()
        self._waiting.clear()
        return [_failed(request_id, code, message, retryable) for request_id in ids]

    def _knows(self, request_id: str) -> bool:
        return request_id in self._by_id or any(
            command.request_id == request_id for command in self._waiting
        )

    def _admit(self) -> None:
        skipped: list[Generate] = []
        while self._waiting and len(self._by_id) < self._runner.max_rows:
            command = self._waiting.popleft()
            prefilling = [len(row.command.prompt) for row in self._by_id.values() if row.prefilling]
            if len(prefilling) >= MAX_PREFILLING_ROWS:
                skipped.append(command)
                break
            if not can_admit(len(command.prompt), prefilling, self._runner.chunk_tokens):
                skipped.append(command)
                continue
            row = Row(command, uid=self._runner.insert(command))
            self._by_id[command.request_id] = row
            self._by_uid[row.uid] = row
        self._waiting.extendleft(reversed(skipped))

    def _note_prefill(self, step: PrefillStep) -> Iterable[Event]:
        row = self._by_uid[step.uid]
        row.prefilling = step.done_tokens < step.total_tokens
        yield PrefillProgress(
            request_id=row.command.request_id,
            done_tokens=step.done_tokens,
            total_tokens=step.total_tokens,
            chunk_tokens=step.chunk_tokens,
            seconds=step.seconds,
        )

    def _note_token(self, step: TokenStep) -> Iterable[Event]:
        row = self._by_uid[step.uid]
        row.prefilling = False
        if step.finish != "stop":
            # A token that stops the row is neither sent nor counted, as OpenAI counts.
            row.completion_tokens += 1
            yield Tokens(
                request_id=row.command.request_id,
                ids=[step.token],
                logprobs=[] if step.logprobs is None else [step.logprobs],
            )
        if step.finish is not None:
            self._forget(row)
            yield _finished(row, step.finish)

    def _forget(self, row: Row) -> None:
        del self._by_id[row.command.request_id]
        del self._by_uid[row.uid]


def _finished(row: Row, reason: str) -> Finished:
    return Finished(
        request_id=row.command.request_id,
        reason=reason,
        prompt_tokens=len(row.command.prompt),
        completion_tokens=row.completion_tokens,
    )


def _failed(request_id: str, code: Code, message: str, retryable: Retryable) -> Failed:
    return Failed(
        request_id=request_id, code=code.value, message=message, retryable=retryable.value
    )
