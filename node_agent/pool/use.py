"""Who uses one engine, and whether it may be unloaded.

Owns the count of leases and the moment since when nobody uses it. That moment is the end of the
last request, never its start: an answer that takes longer than the idle time must not count
against its engine. Units: seconds.
"""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Occupancy:
    """What decides whether an engine may be unloaded.

    `woken` means that a request brought it back; `ready_seconds` counts from when it was ready.
    """

    ready: bool
    pinned: bool
    leases: int
    rows: int
    woken: bool
    ready_seconds: float


def can_unload(seen: Occupancy, minimum_stay_seconds: float) -> bool:
    """Return whether unloading harms no request and nobody's wish. Pure.

    An engine that was just brought back stays a while, so that two models which do not fit
    together take turns of some length and do not thrash.
    """
    settled = not seen.woken or seen.ready_seconds >= minimum_stay_seconds
    return seen.ready and not seen.pinned and not seen.leases and not seen.rows and settled


class Use:
    """The leases of one engine, and since when it has had none and no row."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._idle_since: float | None = clock()
        self.leases = 0
        self.idle_leases = 0

    def take(self) -> None:
        """Count one more lease, which has sent no row yet."""
        self.leases += 1
        self.idle_leases += 1
        self._idle_since = None

    def settle(self) -> None:
        """From a lease's first row on, its rows count and not the lease."""
        self.idle_leases -= 1

    def give_back(self) -> None:
        """Count one lease less."""
        self.leases -= 1

    def note(self, rows: int) -> None:
        """Take in how many rows the engine holds now. Mutates: since when it is idle."""
        if rows or self.leases:
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = self._clock()

    @property
    def idle_seconds(self) -> float | None:
        """How long nobody has used it; None while somebody does."""
        return None if self._idle_since is None else self._clock() - self._idle_since
