"""Rows that share a prefix with one being fed, and wait for its blocks instead of feeding them.

Owns who waits for whom; the transitions are `kvcache.inflight`'s. It holds no array and imports
no MLX. The scheduler calls it: before a row goes in, after every step, and when a row has joined
or is gone.
"""

from collections.abc import Callable, Sequence

from node_agent.engine.messages import Generate
from node_agent.engine.rows import Prefixes, PrefixPlan
from node_agent.engine.scheduling.waiting import WaitingRow
from node_agent.kvcache.inflight import Inflight, Turn, Verdict, block_done, join, leave, overdue


class NoPrefixes:
    """An engine without a prefix cache."""

    def plan(self, command: Generate) -> PrefixPlan:  # noqa: ARG002 - nothing is ever stored
        """Return an empty plan."""
        return PrefixPlan()

    def take_done(self) -> tuple[tuple[str, bytes], ...]:
        """Return nothing."""
        return ()


class Sharing:
    """The rows held back for blocks in flight."""

    def __init__(self, prefixes: Prefixes, clock: Callable[[], float]) -> None:
        self._prefixes, self._clock = prefixes, clock
        self._state = Inflight()
        self._held: dict[str, WaitingRow] = {}
        # Told to compute; asking again could make them wait for ever.
        self._cleared: set[str] = set()
        self._freed: list[WaitingRow] = []

    def __len__(self) -> int:
        return len(self._held) + len(self._freed)

    @property
    def has_freed(self) -> bool:
        """Whether `free` has rows to return."""
        return bool(self._freed)

    @property
    def request_ids(self) -> list[str]:
        """Who is here."""
        return [*self._held, *(row.command.request_id for row in self._freed)]

    def cached_tokens(self, command: Generate) -> int:
        """Return how much of a request's prompt is stored now."""
        return self._prefixes.plan(command).cached_tokens

    def admits(self, row: WaitingRow) -> bool:
        """Return whether a row may go in now; one that may not stays here until it is freed."""
        request_id = row.command.request_id
        if request_id in self._cleared:
            return True
        plan = self._prefixes.plan(row.command)
        row.cached_tokens = plan.cached_tokens
        if not plan.missing:
            return True
        self._state, verdicts = join(self._state, request_id, plan.missing, self._clock())
        if all(verdict.turn is Turn.COMPUTE for verdict in verdicts):
            return True
        self._held[request_id] = row
        return False

    def free(self) -> list[WaitingRow]:
        """Return the rows that need not wait any more, in order of arrival."""
        self._note_done()
        if self._held:
            self._state, verdicts = overdue(self._state, self._clock())
            self._follow(verdicts)
        freed, self._freed = self._freed, []
        for row in freed:
            row.cached_tokens = self.cached_tokens(row.command)
        return freed

    def take(self, request_id: str) -> WaitingRow | None:
        """Take a row out that waits here; None when it is elsewhere."""
        row = self._held.pop(request_id, None)
        for other in self._freed:
            if other.command.request_id == request_id:
                row = other
                self._freed.remove(other)
                break
        return row

    def leave(self, request_id: str) -> None:
        """Note that a row computes no more: it has joined, or it is gone."""
        self._note_done()
        self._cleared.discard(request_id)
        self._state, verdicts = leave(self._state, request_id, self._clock())
        self._follow(verdicts)

    def clear(self) -> None:
        """Let every row go."""
        self._state = Inflight()
        self._held.clear()
        self._cleared.clear()
        self._freed.clear()

    def _note_done(self) -> None:
        for request_id, digest in self._prefixes.take_done():
            self._state, verdicts = block_done(self._state, request_id, digest, self._clock())
            self._follow(verdicts)

    def _follow(self, verdicts: Sequence[Verdict]) -> None:
        for verdict in verdicts:
            if verdict.turn is Turn.COMPUTE and verdict.request_id in self._held:
                self._cleared.add(verdict.request_id)
                self._freed.append(self._held.pop(verdict.request_id))
