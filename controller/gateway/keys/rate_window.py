"""How much was taken within the last minute, and whether more may be taken now; pure.

A sliding window, not a bucket that refills while it is drawn from: within no 60 seconds is more
taken than the limit, and a client that was quiet may use the whole limit at once. Amounts are
kept by slots of one second, so a window is small however busy its key; an amount comes back when
its whole slot is over, which is at most a second late and never early. Called by `quotas`.
"""

import math
from dataclasses import dataclass

WINDOW_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Window:
    """What was taken, as (slot, amount), oldest first; a slot is a second of the clock."""

    slots: tuple[tuple[int, int], ...] = ()

    @property
    def total(self) -> int:
        """All amounts; call `current` first."""
        return sum(amount for _, amount in self.slots)


EMPTY = Window()


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a window stands against its limit. Units: seconds until all of it is back."""

    limit: int
    remaining: int
    reset_seconds: float


def current(window: Window, now: float) -> Window:
    """Return the window without what has come back."""
    oldest = math.floor(now) - WINDOW_SECONDS
    if not window.slots or window.slots[0][0] >= oldest:
        return window
    return Window(tuple(item for item in window.slots if item[0] >= oldest))


def take(window: Window, now: float, amount: int) -> Window:
    """Return the window with an amount taken now, whether or not it is within the limit."""
    slots, slot = current(window, now).slots, math.floor(now)
    if slots and slots[-1][0] >= slot:
        # A clock that stands or steps back adds to the newest slot, which comes back last.
        return Window((*slots[:-1], (slots[-1][0], slots[-1][1] + amount)))
    return Window((*slots, (slot, amount)))


def amend(window: Window, taken_at: float, change: int) -> Window:
    """Return the window with an earlier amount changed; one that has come back stays so.

    No slot falls below nothing.
    """
    slot = math.floor(taken_at)
    return Window(
        tuple(
            (item, max(0, amount + change)) if item == slot else (item, amount)
            for item, amount in window.slots
        )
    )


def wait_seconds(window: Window, limit: int, now: float, amount: int) -> float | None:
    """Return how long until an amount fits the limit: 0 is now, None is never."""
    if amount > limit:
        return None
    live = current(window, now)
    excess = live.total + amount - limit
    for slot, taken in live.slots:
        if excess <= 0:
            break
        excess -= taken
        if excess <= 0:
            return slot + 1 + WINDOW_SECONDS - now
    return 0.0


def standing(window: Window, limit: int, now: float) -> Standing:
    """Return what is left of a limit, never less than nothing."""
    live = current(window, now)
    used = [slot for slot, amount in live.slots if amount]
    reset = used[-1] + 1 + WINDOW_SECONDS - now if used else 0.0
    return Standing(limit, max(0, limit - live.total), reset)
