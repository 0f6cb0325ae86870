"""The requests that wait outside the runner, and which of them goes in next.

Pure bookkeeping: no array, no MLX, no clock. The scheduler calls it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from node_agent.engine.messages import Generate
from node_agent.engine.scheduling.gatekeeper import Tries
from node_agent.engine.scheduling.lockstep import NOBODY, Prefilling, Reach, can_walk_together

MAX_PREFILLING_ROWS = 8


@dataclass(slots=True)
class WaitingRow:
    """One request that waits. A requeued one stays until another row has ended.

    `cached_tokens` of its prompt were stored when it came.
    """

    command: Generate
    tries: Tries = field(default_factory=Tries)
    requeued: bool = False
    retry_at_ends: int = 0
    cached_tokens: int = 0


def find_fault(command: Generate, vocab_size: int) -> str:
    """Return why a command cannot run, or an empty text. Pure."""
    if not command.prompt:
        return "the prompt has no tokens"
    if command.max_tokens < 1:
        return f"max_tokens must be at least 1, got {command.max_tokens}"
    if not 0 <= command.said_tokens < len(command.prompt):
        return f"said_tokens must be part of the prompt, got {command.said_tokens}"
    lowest, highest = min(command.prompt), max(command.prompt)
    if lowest < 0 or highest >= vocab_size:
        wrong = lowest if lowest < 0 else highest
        return f"token id {wrong} is outside the model's vocabulary of {vocab_size}"
    return ""


@dataclass(frozen=True, slots=True)
class Beside:
    """What is being fed now, a chunk's width, and who may walk together."""

    rows: Sequence[Prefilling] = ()
    chunk_tokens: int = 0
    reach: Reach = NOBODY


def can_admit(prompt: Prefilling, beside: Beside) -> bool:
    """Return whether one more prompt may be fed beside those being fed now. Pure.

    Short prompts (one chunk or less) slip in beside a long one, so they need not wait for
    its end; long ones of one priority go one after another, because sharing the chunk between
    them would only make all of them late, unless they walk together. One of a higher priority
    makes them stand still.
    """
    if len(beside.rows) >= MAX_PREFILLING_ROWS:
        return False
    if prompt.tokens <= beside.chunk_tokens:
        return True
    long = [
        one
        for one in beside.rows
        if one.tokens > beside.chunk_tokens and one.priority >= prompt.priority
    ]
    return not long or can_walk_together([*long, prompt], beside.reach)


class WaitingLine:
    """The highest priority first, in order of arrival within; but short prompts pass long ones."""

    def __init__(self) -> None:
        self._rows: list[WaitingRow] = []
        self._ends = 0

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def request_ids(self) -> list[str]:
        """Who waits, in order."""
        return [row.command.request_id for row in self._rows]

    def append(self, command: Generate, cached_tokens: int = 0) -> None:
        """Let a request in, behind those of its priority."""
        self._insert(WaitingRow(command, cached_tokens=cached_tokens), ahead=False)

    def put_back(self, row: WaitingRow) -> None:
        """Let a row that was taken out in again, before those of its priority."""
        self._insert(row, ahead=True)

    def requeue(self, command: Generate, tries: Tries) -> None:
        """Let a row that was being fed in again, before those of its priority."""
        self._insert(WaitingRow(command, tries, True, self._ends + 1), ahead=True)

    def note_end(self) -> None:
        """Note that a row ended and gave its memory back."""
        self._ends += 1

    def take(self, request_id: str) -> WaitingRow | None:
        """Take one request out, wherever it stands."""
        for row in self._rows:
            if row.command.request_id == request_id:
                self._rows.remove(row)
                return row
        return None

    def next_row(self, beside: Beside, *, idle: bool) -> WaitingRow | None:
        """Take out the first request that may be fed beside those being fed now.

        `idle` says that nothing runs, so a requeued request has nothing left to wait for.
        While one waits, no long prompt passes it: it would take the memory it waits for.
        """
        blocked = False
        for row in self._rows:
            need_tokens = len(row.command.prompt) - row.cached_tokens
            prompt = Prefilling(need_tokens, row.command.priority, row.cached_tokens)
            short = prompt.tokens <= beside.chunk_tokens
            if row.requeued and row.retry_at_ends > self._ends and not idle:
                blocked = True
                continue
            if blocked and not short:
                continue
            if can_admit(prompt, beside):
                self._rows.remove(row)
                return row
            if len(beside.rows) >= MAX_PREFILLING_ROWS:
                return None
        return None

    def clear(self) -> None:
        """Let every request go."""
        self._rows.clear()

    def _insert(self, row: WaitingRow, *, ahead: bool) -> None:
        """Put a row before or behind the others of its priority."""
        priority = row.command.priority
        for at, other in enumerate(self._rows):
            theirs = other.command.priority
            if theirs < priority or (ahead and theirs == priority):
                self._rows.insert(at, row)
                return
        self._rows.append(row)
