"""Which endpoints may take a request at all; pure.

Hard filters drop what must not be used. Whether a request fits is `fit`'s. Called by the decision.
"""

from collections.abc import Collection, Sequence

from controller.gateway.choice.demand import NOTHING_HELD, Holds
from controller.gateway.choice.fit import context_of, free_tokens
from controller.gateway.nodes.endpoints import EndpointKey, EndpointView


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


def find_roomiest(endpoints: Sequence[EndpointView], holds: Holds) -> tuple[EndpointView, ...]:
    """Return the endpoints with the most free tokens within their context limit; ties stay."""
    if not endpoints:
        return ()
    rooms = [
        min(free_tokens(item, holds.get(item.key, NOTHING_HELD)), context_of(item))
        for item in endpoints
    ]
    most = max(rooms)
    return tuple(item for item, room in zip(endpoints, rooms, strict=True) if room == most)
