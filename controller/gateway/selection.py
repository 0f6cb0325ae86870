"""Candidates to one endpoint: filter, score, pick; pure. Called by the proxy."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from controller.gateway.endpoints import EndpointKey, EndpointView
from controller.gateway.filters import (
    Demand,
    Holds,
    filter_fitting,
    filter_healthy,
    filter_open,
    filter_waking,
    find_roomiest,
)
from controller.gateway.picker import pick
from controller.gateway.scorers import score_endpoints


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What else decides beside the request: our reservations, breakers, and what was tried."""

    holds: Holds
    blocked: Collection[EndpointKey] = frozenset()
    tried: Collection[EndpointKey] = frozenset()


def select_endpoint(
    candidates: Sequence[EndpointView], demand: Demand, around: Circumstances, draw: float
) -> EndpointView | None:
    """Return where to send a request, or None when no endpoint is open.

    First among those that take it now and have room; then among those whose engine was unloaded
    and would have room once back; then, as the estimate is rough, the roomiest of either kind.
    `draw` in [0, 1) breaks ties.
    """
    healthy = filter_healthy(filter_open(candidates, around.tried), around.blocked)
    waking = filter_healthy(filter_waking(candidates, around.tried), around.blocked)
    usable = (
        filter_fitting(healthy, demand, around.holds)
        or filter_fitting(waking, demand, around.holds)
        or find_roomiest(healthy, around.holds)
        or find_roomiest(waking, around.holds)
    )
    return pick(score_endpoints(usable, demand, around.holds), draw)
