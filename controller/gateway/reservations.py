"""The gateway's own requests in flight, per endpoint.

Owns the counters. A reservation is taken in the same step that picks the endpoint, so a burst
cannot pile onto one node before its load report shows it, and is released on every way out.
"""

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from controller.gateway.endpoints import EndpointKey, EndpointView
from controller.gateway.filters import Hold


@dataclass(frozen=True, slots=True)
class Reserved:
    """One request on one endpoint. Units: tokens; seconds on the gateway's monotonic clock."""

    tokens: int
    since_seconds: float


class Reservations:
    """Counters of what is in flight; all methods belong to one event loop."""

    def __init__(self, settle_seconds: float) -> None:
        """Start with nothing held; `settle_seconds` is how late a load report may be."""
        self._settle_seconds = settle_seconds
        self._held: dict[EndpointKey, dict[int, Reserved]] = {}
        self._ids = itertools.count()

    @contextmanager
    def reserve(self, key: EndpointKey, tokens: int, now: float) -> Iterator[None]:
        """Hold a place on an endpoint while the block runs."""
        ticket = next(self._ids)
        self._held.setdefault(key, {})[ticket] = Reserved(tokens, now)
        try:
            yield
        finally:
            mine = self._held[key]
            del mine[ticket]
            if not mine:
                del self._held[key]

    def holds(self, endpoints: Sequence[EndpointView]) -> dict[EndpointKey, Hold]:
        """Return what is held on each of these endpoints, against their last reports."""
        return {
            item.key: plan_hold(
                tuple(self._held[item.key].values()), item.reported_seconds - self._settle_seconds
            )
            for item in endpoints
            if item.key in self._held
        }

    @property
    def total(self) -> int:
        """Requests in flight on all endpoints."""
        return sum(len(mine) for mine in self._held.values())


def plan_hold(reserved: Sequence[Reserved], counted_until_seconds: float) -> Hold:
    """Return the sums; a reservation later than `counted_until_seconds` is in no report yet."""
    unseen = [item for item in reserved if item.since_seconds > counted_until_seconds]
    return Hold(len(reserved), len(unseen), sum(item.tokens for item in unseen))
