"""Requests that fit nowhere now and wait for room: the line as it runs.

Owns the line and the futures of those in it; who goes next is `queue_plan`'s, where to is the
`attempt` that each brings. Whoever waits has a claim on the endpoints that could hold it: nobody
behind may take their room, so small requests cannot starve a large one. Called by the proxy.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field

from controller.gateway.choice.queue_plan import Line, Ticket, enter, leave, order, serve
from controller.gateway.choice.reservations import HeldPlace
from controller.gateway.choice.selection import Decision, Excluded, Outcome
from controller.gateway.nodes.endpoints import EndpointKey

Claims = frozenset[EndpointKey]
_NO_CLAIMS: Claims = frozenset()


@dataclass(frozen=True, slots=True)
class Seat:
    """A decision and, where it says to send, the place that is held for it."""

    decision: Decision
    place: HeldPlace | None = None

    def release(self) -> None:
        """Give the place back, if there is one."""
        if self.place is not None:
            self.place.release()


Attempt = Callable[[Claims], Seat]


@dataclass(frozen=True, slots=True)
class Wait:
    """One request's terms. Units: tokens; seconds from now.

    `models` are all that will do, more than one behind a Route: the request goes where room comes
    first. `tick` is called `first_tick_seconds` from now and then every `tick_seconds`.
    """

    models: tuple[str, ...]
    priority: int
    tenant: str
    tokens: int
    seconds: float
    tick: Callable[[], Awaitable[None]]
    first_tick_seconds: float
    tick_seconds: float


class Ended(Exception):  # noqa: N818 - no fault: how waiting can end without a seat
    """Base of the ways in which nobody got a seat."""


class LineFullError(Ended):
    """As many wait already as may."""


class WaitOverError(Ended):
    """The time is over; `decision` is the last one made."""

    def __init__(self, decision: Decision | None) -> None:
        super().__init__("no room in time")
        self.decision = decision


@dataclass(slots=True)
class _Entry:
    ticket: Ticket
    attempt: Attempt
    seat: asyncio.Future[Seat]
    claims: Claims = _NO_CLAIMS
    last: Decision | None = field(default=None, repr=False)


class WaitingQueue:
    """The line of one gateway; all methods belong to one event loop."""

    def __init__(
        self,
        most_waiting: int,
        clock: Callable[[], float],
        on_depth: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Start empty; `on_depth` is told how many wait whenever that changes."""
        self._most_waiting, self._clock, self._on_depth = most_waiting, clock, on_depth
        self._line = Line()
        self._entries: dict[int, _Entry] = {}
        self._numbers = itertools.count()
        self._poked = False

    def __len__(self) -> int:
        """How many wait."""
        return len(self._entries)

    def claims(self, models: Collection[str], priority: int) -> Claims:
        """Return the endpoints that a newcomer must leave to those who wait already."""
        return _NO_CLAIMS.union(
            *(
                item.claims
                for item in self._entries.values()
                if item.ticket.priority >= priority
                and any(model in models for model in item.ticket.models)
            )
        )

    def poke(self) -> None:
        """Look soon whether somebody can go: room may have come. Many calls are one look."""
        if not self._entries or self._poked:
            return
        self._poked = True
        asyncio.get_running_loop().call_soon(self._look)

    async def wait(self, terms: Wait, attempt: Attempt) -> Seat:
        """Return a seat once there is one.

        Raises: Ended. Cancelled, it leaves the line at once and holds nothing.
        """
        number = next(self._numbers)
        ticket = Ticket(number, terms.priority, terms.tenant, terms.tokens, terms.models)
        line = enter(self._line, ticket, self._most_waiting)
        if line is None:
            raise LineFullError
        entry = _Entry(ticket, attempt, asyncio.get_running_loop().create_future())
        self._line, self._entries[number] = line, entry
        self._on_depth(len(self))
        taken = False
        try:
            self._look()
            await self._await_seat(entry, terms)
            taken = entry.seat.done()
        finally:
            self._drop(number)
            if entry.seat.done() and not taken:
                entry.seat.result().release()
        if not taken:
            raise WaitOverError(entry.last)
        return entry.seat.result()

    async def _await_seat(self, entry: _Entry, terms: Wait) -> None:
        now = self._clock()
        until, tick_at = now + terms.seconds, now + terms.first_tick_seconds
        while not entry.seat.done() and now < until:
            await asyncio.wait({entry.seat}, timeout=max(0.0, min(until, tick_at) - now))
            now = self._clock()
            if now >= tick_at and now < until and not entry.seat.done():
                await terms.tick()
                tick_at = now + terms.tick_seconds

    def _look(self) -> None:
        """Seat everybody who can go, in their order."""
        self._poked = False
        # Endpoints are of one Model each, so claims of other Models keep nobody out.
        claimed = _NO_CLAIMS
        exhausted: set[tuple[str, ...]] = set()
        for ticket in order(self._line):
            entry = self._entries[ticket.number]
            if ticket.models in exhausted:
                continue
            seat = entry.attempt(claimed)
            entry.last = seat.decision
            if seat.decision.outcome in {Outcome.SEND, Outcome.NEVER}:
                self._seat(entry, seat)
                continue
            entry.claims = seat.decision.could_hold
            claimed |= entry.claims
            if all(
                item.endpoint.key in claimed or item.excluded is Excluded.CLOSED
                for item in seat.decision.candidates
            ):
                exhausted.add(ticket.models)

    def _seat(self, entry: _Entry, seat: Seat) -> None:
        take = serve if seat.decision.outcome is Outcome.SEND else leave
        self._line = take(self._line, entry.ticket.number)
        del self._entries[entry.ticket.number]
        self._on_depth(len(self))
        entry.seat.set_result(seat)

    def _drop(self, number: int) -> None:
        """Leave the line, if still in it; those behind may go now."""
        if self._entries.pop(number, None) is not None:
            self._line = leave(self._line, number)
            self._on_depth(len(self))
            self.poke()
