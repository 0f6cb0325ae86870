"""Which requests are under way, whether new ones may start, and how each one ended.

Owns the drain flag and the in-flight count. Every request gets one ticket and ends it once.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from manifests.errors import Code, Refusal, RequestError, Retryable
from node_agent.serving.completion import Timing
from node_agent.serving.responses import Usage


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a request ended: `ok`, `cancelled` or an error code; figures when it had started."""

    word: str
    usage: Usage | None = None
    timing: Timing | None = None


@dataclass(slots=True)
class Ticket:
    """One request under way. `model` is the declared model's name once it is known."""

    _end: Callable[["Ticket", Outcome], None]
    model: str | None = None
    ended: bool = False

    def end(self, outcome: Outcome) -> None:
        """Tell how it ended; a second call does nothing."""
        if not self.ended:
            self.ended = True
            self._end(self, outcome)


class Traffic:
    """The agent's open requests."""

    def __init__(self, record: Callable[[str | None, Outcome], None]) -> None:
        self._record = record
        self._idle = asyncio.Event()
        self._idle.set()
        self.in_flight = 0
        self.draining = False

    def begin(self) -> Ticket:
        """Open a request. Raises RequestError when the agent drains."""
        if self.draining:
            raise RequestError(
                Refusal(
                    Code.SHUTTING_DOWN,
                    "This node is shutting down.",
                    Retryable.ELSEWHERE,
                    hint="Send the request to another node.",
                )
            )
        self.in_flight += 1
        self._idle.clear()
        return Ticket(self._ended)

    def drain(self) -> None:
        """Refuse new requests from now on; those under way go on."""
        self.draining = True

    async def wait_idle(self, timeout_seconds: float) -> bool:
        """Wait until no request is under way, for so long at most; tell whether it came."""
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    def _ended(self, ticket: Ticket, outcome: Outcome) -> None:
        self.in_flight -= 1
        self._record(ticket.model, outcome)
        if not self.in_flight:
            self._idle.set()
