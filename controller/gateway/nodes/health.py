"""Whether a node may be routed to, from its load stream; pure.

Silence takes a node out at once: it already means several missed reports. A lost connection
gets one immediate second try, so that a hiccup does not take a node out; the way back needs
two reports. Called by `load_stream`.
"""

from dataclasses import dataclass
from enum import StrEnum

LOSSES_TO_DOWN = 2
"""Connections lost in a row, without a report between them, that take a node out."""
REPORTS_TO_RETURN = 2
"""Reports in a row that bring it back."""


class StreamEvent(StrEnum):
    """What the load stream did."""

    REPORT = "report"
    LOST = "lost"
    SILENT = "silent"


class Phase(StrEnum):
    """What the gateway believes of a node."""

    UNSEEN = "unseen"
    LIVE = "live"
    DOWN = "down"


@dataclass(frozen=True, slots=True)
class Health:
    """One node's record; `down_since_seconds` is on the gateway's monotonic clock."""

    phase: Phase = Phase.UNSEEN
    losses: int = 0
    reports: int = 0
    down_since_seconds: float | None = None

    @property
    def routable(self) -> bool:
        """Whether requests may go there."""
        return self.phase is Phase.LIVE

    def down_for(self, now: float) -> float:
        """Return how many seconds the node has been down; 0 when it is not."""
        return 0.0 if self.down_since_seconds is None else now - self.down_since_seconds


def transition(health: Health, event: StreamEvent, now: float) -> Health:
    """Return the record after one event of the stream."""
    if event is StreamEvent.REPORT:
        return _after_report(health)
    losses = health.losses + 1
    if event is StreamEvent.LOST and health.phase is Phase.LIVE and losses < LOSSES_TO_DOWN:
        return Health(Phase.LIVE, losses)
    since = now if health.down_since_seconds is None else health.down_since_seconds
    # A node that never reported has not failed: its server may come up after its registration.
    phase = Phase.UNSEEN if health.phase is Phase.UNSEEN else Phase.DOWN
    return Health(phase, losses, 0, since)


def _after_report(health: Health) -> Health:
    reports = health.reports + 1
    if health.phase is Phase.DOWN and reports < REPORTS_TO_RETURN:
        return Health(Phase.DOWN, 0, reports, health.down_since_seconds)
    return Health(Phase.LIVE, 0, reports)
