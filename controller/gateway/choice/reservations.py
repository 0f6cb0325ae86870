"""The gateway's own requests in flight, per endpoint.

Owns the counters. A reservation is taken in the same step that picks the endpoint, so a burst
cannot pile onto one node before its load report shows it, and is released on every way out.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType

from controller.gateway.choice.demand import Hold
from controller.gateway.nodes.endpoints import EndpointKey, EndpointView


@dataclass(frozen=True, slots=True)
class Amount:
    """What one request takes: tokens to hold and to compute first, and memory in bytes."""

    tokens: int
    prefill_tokens: int = 0
    need_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Reserved:
    """One request on one endpoint. Units: seconds on the gateway's monotonic clock."""

    amount: Amount
    since_seconds: float


class HeldPlace:
    """One reservation; releasing twice is harmless. As a context it is released at the end."""

    def __init__(self, release: Callable[[], None]) -> None:
        self._release: Callable[[], None] | None = release

    def release(self) -> None:
        """Give the place back."""
        release, self._release = self._release, None
        if release is not None:
            release()

    def __enter__(self) -> "HeldPlace":
        """Hold it while the block runs."""
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _value: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        """Give it back."""
        self.release()


class Reservations:
    """Counters of what is in flight; all methods belong to one event loop."""

    def __init__(
        self, settle_seconds: float, on_release: Callable[[], None] = lambda: None
    ) -> None:
        """Start with nothing held; `settle_seconds` is how late a load report may be."""
        self._settle_seconds, self._on_release = settle_seconds, on_release
        self._held: dict[EndpointKey, dict[int, Reserved]] = {}
        self._used: dict[EndpointKey, float] = {}
        self._passed: dict[EndpointKey, int] = {}
        self._ids = itertools.count()

    def reserve(self, key: EndpointKey, amount: Amount, now: float) -> HeldPlace:
        """Take a place on an endpoint."""
        ticket = next(self._ids)
        self._held.setdefault(key, {})[ticket] = Reserved(amount, now)
        self._used[key] = now
        self._passed.pop(key, None)

        def release() -> None:
            mine = self._held[key]
            del mine[ticket]
            if not mine:
                del self._held[key]
            self._on_release()

        return HeldPlace(release)

    def holds(self, endpoints: Sequence[EndpointView]) -> dict[EndpointKey, Hold]:
        """Return what is held on each of these endpoints, against their last reports.

        Bytes are of the whole node: its engines share one memory.
        """
        busy = {key.node for key in self._held}
        found = {}
        for item in endpoints:
            if item.key.node not in busy:
                continue
            until = item.reported_seconds - self._settle_seconds
            own = plan_hold(tuple(self._held.get(item.key, {}).values()), until)
            others_bytes = sum(
                one.amount.need_bytes
                for key, mine in self._held.items()
                if key.node == item.key.node and key != item.key
                for one in mine.values()
                if one.since_seconds > until
            )
            if others_bytes:
                own = replace(own, unseen_bytes=own.unseen_bytes + others_bytes)
            found[item.key] = own
        return found

    @property
    def last_used(self) -> Mapping[EndpointKey, float]:
        """When each endpoint last got a request from here."""
        return self._used

    @property
    def passed(self) -> Mapping[EndpointKey, int]:
        """How many requests each endpoint could have had since its last, and others got."""
        return self._passed

    def note_passed(self, keys: Sequence[EndpointKey]) -> None:
        """Count one more request that these did not get."""
        for key in keys:
            self._passed[key] = self._passed.get(key, 0) + 1

    def forget(self, kept: Sequence[EndpointView]) -> None:
        """Forget endpoints that are gone."""
        keys = {item.key for item in kept}
        self._passed = {key: count for key, count in self._passed.items() if key in keys}
        self._used = {key: when for key, when in self._used.items() if key in keys}

    @property
    def total(self) -> int:
        """Requests in flight on all endpoints."""
        return sum(len(mine) for mine in self._held.values())


def plan_hold(reserved: Sequence[Reserved], counted_until_seconds: float) -> Hold:
    """Return the sums; a reservation later than `counted_until_seconds` is in no report yet."""
    unseen = [item.amount for item in reserved if item.since_seconds > counted_until_seconds]
    return Hold(
        requests=len(reserved),
        unseen_requests=len(unseen),
        unseen_tokens=sum(item.tokens for item in unseen),
        unseen_bytes=sum(item.need_bytes for item in unseen),
        feeding=tuple((item.amount.prefill_tokens, item.since_seconds) for item in reserved),
    )
