"""Who of those that wait at the gateway goes next; pure.

A higher priority goes first. Within one, keys share by tokens: the key that was given least goes
next, and its own requests in the order they came. Only what is served is charged, so leaving
costs nothing. Called by `queueing`.

Source: start-time fair queueing with the virtual clock of GPS (Goyal, Vin and Cheng 1996), counted
in tokens as in Sheng et al. 2024, "Fairness in Serving Large Language Models".
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

_Flow = tuple[int, str]


@dataclass(frozen=True, slots=True)
class Ticket:
    """One request in the line, and the Models any of which will do.

    Units: estimated tokens, prompt and answer.
    """

    number: int
    priority: int
    tenant: str
    tokens: int
    models: tuple[str, ...] = ()

    @property
    def flow(self) -> _Flow:
        """Whom it is counted for."""
        return (self.priority, self.tenant)


@dataclass(frozen=True, slots=True)
class Line:
    """Everybody who waits, in order of arrival, and what each key was given.

    `given` is a key's virtual tokens; `clock` is, for each priority, what a key that comes now
    starts from: it gains nothing by having been away.
    """

    waiting: tuple[Ticket, ...] = ()
    given: Mapping[_Flow, float] = field(default_factory=dict)
    clock: Mapping[int, float] = field(default_factory=dict)


def enter(line: Line, ticket: Ticket, most_waiting: int) -> Line | None:
    """Return the line with one more at its end, or None when it is full."""
    if len(line.waiting) >= most_waiting:
        return None
    given = dict(line.given)
    if not any(item.flow == ticket.flow for item in line.waiting):
        start = line.clock.get(ticket.priority, 0.0)
        given[ticket.flow] = max(given.get(ticket.flow, 0.0), start)
    return replace(line, waiting=(*line.waiting, ticket), given=given)


def order(line: Line) -> tuple[Ticket, ...]:
    """Return those who wait, the one who goes next first."""
    tags: dict[int, float] = {}
    given = dict(line.given)
    for ticket in line.waiting:
        tags[ticket.number] = given.get(ticket.flow, 0.0)
        given[ticket.flow] = tags[ticket.number] + ticket.tokens
    return tuple(
        sorted(line.waiting, key=lambda item: (-item.priority, tags[item.number], item.number))
    )


def serve(line: Line, number: int) -> Line:
    """Return the line after one was served: it is gone, and its key has been given its tokens."""
    ticket = next(item for item in line.waiting if item.number == number)
    flows = {item.flow for item in line.waiting if item.priority == ticket.priority}
    given, clock = dict(line.given), dict(line.clock)
    given[ticket.flow] = given.get(ticket.flow, 0.0) + ticket.tokens
    clock[ticket.priority] = clock.get(ticket.priority, 0.0) + ticket.tokens / len(flows)
    return leave(replace(line, given=given, clock=clock), number)


def leave(line: Line, number: int) -> Line:
    """Return the line without one that was not served; what no longer matters is forgotten."""
    waiting = tuple(item for item in line.waiting if item.number != number)
    flows = {item.flow for item in waiting}
    priorities = {item.priority for item in waiting}
    clock = {level: now for level, now in line.clock.items() if level in priorities}
    given = {
        flow: tokens
        for flow, tokens in line.given.items()
        if flow in flows or (flow[0] in priorities and tokens > clock.get(flow[0], 0.0))
    }
    return Line(waiting, given, clock)
