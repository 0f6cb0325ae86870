"""What the reconcilers may be told, parsed once by the controller's app."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReconcileSettings:
    """Timings of the reconcilers. Units: seconds.

    `missed_leases` times a node's own lease makes it Unknown; `replace_grace_seconds` later its
    engines are replaced elsewhere.
    """

    missed_leases: int = 3
    replace_grace_seconds: float = 60.0
    tick_seconds: float = 1.0
    resync_seconds: float = 300.0
    unplaced_retry_seconds: float = 15.0
    inspect_timeout_seconds: float = 5.0
    inspect_fresh_seconds: float = 30.0
