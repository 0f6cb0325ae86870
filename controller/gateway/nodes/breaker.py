"""When to leave an endpoint alone after faults: a pure transition and its table.

Only faults count: refused connections, lost answers, 5xx without a reason of ours. What a
client did wrong, a refusal for memory and a client that left never count. Called by the proxy.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from controller.gateway.nodes.endpoints import EndpointKey

FAULTS_TO_OPEN = 3
OPEN_SECONDS = 1.0
OPEN_SECONDS_MAX = 30.0


class Verdict(StrEnum):
    """What an attempt says about the endpoint."""

    ALIVE = "alive"
    FAULT = "fault"
    UNREACHABLE = "unreachable"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Breaker:
    """One endpoint's record. `opened` counts openings in a row; `probing` is a trial under way."""

    faults: int = 0
    opened: int = 0
    open_until_seconds: float = 0.0
    probing: bool = False


CLOSED = Breaker()


def is_blocked(breaker: Breaker, now: float) -> bool:
    """Whether to leave the endpoint alone; half-open lets one trial through."""
    return breaker.opened > 0 and (now < breaker.open_until_seconds or breaker.probing)


def begin(breaker: Breaker) -> Breaker:
    """Return the record once an attempt is under way."""
    return replace(breaker, probing=True) if breaker.opened else breaker


def transition(breaker: Breaker, verdict: Verdict, now: float) -> Breaker:
    """Return the record after an attempt.

    The third fault in a row opens it, an unreachable endpoint at once, a failed trial again
    and for twice as long.
    """
    if verdict is Verdict.ALIVE:
        return CLOSED
    if verdict is Verdict.NOTHING:
        return replace(breaker, probing=False)
    faults = breaker.faults + 1
    opens = breaker.opened or verdict is Verdict.UNREACHABLE or faults >= FAULTS_TO_OPEN
    if not opens:
        return replace(breaker, faults=faults)
    wait_seconds = min(OPEN_SECONDS * 2.0**breaker.opened, OPEN_SECONDS_MAX)
    return Breaker(faults, min(breaker.opened + 1, 16), now + wait_seconds)


class Breakers:
    """The records of all endpoints; all methods belong to one event loop."""

    def __init__(self) -> None:
        self._by_key: dict[EndpointKey, Breaker] = {}

    def blocked(self, now: float) -> frozenset[EndpointKey]:
        """Return the endpoints to leave alone."""
        return frozenset(key for key, item in self._by_key.items() if is_blocked(item, now))

    def begin(self, key: EndpointKey) -> None:
        """Note that an attempt starts."""
        if key in self._by_key:
            self._by_key[key] = begin(self._by_key[key])

    def record(self, key: EndpointKey, verdict: Verdict, now: float) -> None:
        """Note how an attempt ended."""
        after = transition(self._by_key.get(key, CLOSED), verdict, now)
        if after == CLOSED:
            self._by_key.pop(key, None)
        else:
            self._by_key[key] = after

    def forget(self, keep: Iterable[EndpointKey]) -> None:
        """Drop the records of endpoints that exist no more."""
        kept = set(keep)
        self._by_key = {key: item for key, item in self._by_key.items() if key in kept}
