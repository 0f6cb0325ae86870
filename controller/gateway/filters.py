"""Which endpoints may take a request, and which of these it fits; pure.

Hard filters drop what must not be used. Soft filters sort out what would probably not fit;
since the estimate is rough, they never leave a request without an endpoint: the agent's
exact preflight has the last word. Called by `selection`.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from controller.gateway.endpoints import EndpointKey, EndpointView


@dataclass(frozen=True, slots=True)
class Demand:
    """What one request asks for. Units: tokens."""

    prompt_tokens: int
    output_tokens: int

    @property
    def total_tokens(self) -> int:
        """Tokens held at the end of the request."""
        return self.prompt_tokens + self.output_tokens


@dataclass(frozen=True, slots=True)
class Hold:
    """What this gateway has in flight on one endpoint.

    `requests` are all of them; `unseen_*` are those too young to be in the last load report.
    """

    requests: int = 0
    unseen_requests: int = 0
    unseen_tokens: int = 0


Holds = Mapping[EndpointKey, Hold]
NOTHING_HELD = Hold()


def filter_open(
    endpoints: Sequence[EndpointView], tried: Collection[EndpointKey]
) -> tuple[EndpointView, ...]:
    """Return the endpoints that accept requests and were not tried for this one."""
    return tuple(item for item in endpoints if item.accepting and item.key not in tried)


def filter_waking(
    endpoints: Sequence[EndpointView], tried: Collection[EndpointKey]
) -> tuple[EndpointView, ...]:
    """Return the endpoints whose engine a request would bring back, not tried for this one."""
    return tuple(item for item in endpoints if item.wakes and item.key not in tried)


def filter_healthy(
    endpoints: Sequence[EndpointView], blocked: Collection[EndpointKey]
) -> tuple[EndpointView, ...]:
    """Return the endpoints whose breaker is closed; all of them when every breaker is open.

    The breaker alone never takes the last endpoint away.
    """
    healthy = tuple(item for item in endpoints if item.key not in blocked)
    return healthy or tuple(endpoints)


def filter_fitting(
    endpoints: Sequence[EndpointView], demand: Demand, holds: Holds
) -> tuple[EndpointView, ...]:
    """Return the endpoints that the request fits by estimate: context, memory and queue."""
    return tuple(item for item in endpoints if _fits(item, demand, holds))


def find_roomiest(endpoints: Sequence[EndpointView], holds: Holds) -> tuple[EndpointView, ...]:
    """Return the endpoints with the most free tokens within their context limit; ties stay."""
    if not endpoints:
        return ()
    rooms = [min(free_tokens(item, holds), _context(item)) for item in endpoints]
    most = max(rooms)
    return tuple(item for item, room in zip(endpoints, rooms, strict=True) if room == most)


def free_tokens(endpoint: EndpointView, holds: Holds) -> int:
    """Return the tokens that fit now, less what this gateway just sent there.

    For an engine that has yet to come back it is what its node gives on its best day: its load
    makes room, and what is free before it says nothing.
    """
    fit = endpoint.tokens_fit_now
    if endpoint.wakes:
        fit = endpoint.tokens_fit_ever or _context(endpoint)
    return fit - holds.get(endpoint.key, NOTHING_HELD).unseen_tokens


def _fits(endpoint: EndpointView, demand: Demand, holds: Holds) -> bool:
    hold = holds.get(endpoint.key, NOTHING_HELD)
    places = endpoint.max_running + endpoint.max_waiting
    taken = endpoint.running + endpoint.waiting + hold.unseen_requests
    return (
        demand.prompt_tokens < _context(endpoint)
        and demand.total_tokens <= free_tokens(endpoint, holds)
        and (places == 0 or taken < places)
    )


def _context(endpoint: EndpointView) -> int:
    """Return the context limit; an unreported one does not limit."""
    return endpoint.context_tokens or 2**62
