"""The line for memory: who waits, who may go next, and who may slip past.

Pure values and decisions; the arbiter owns the one line of a node and wakes its waiters. Units:
bytes, seconds of the agent's monotonic clock.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class DemandKind(StrEnum):
    """What the bytes are for."""

    PREFILL = "prefill"
    LOAD = "load"


@dataclass(frozen=True, slots=True)
class LineRules:
    """How long the line may be and how patient its head must be.

    Others may pass a head that does not fit yet for `pass_seconds` after it came to the front,
    because small requests should not wait for a large one; after that nobody passes it, so it
    is served as soon as its bytes are free.
    """

    most_waiting: int = 64
    pass_seconds: float = 2.0
    room_every_seconds: float = 1.0


@dataclass(frozen=True, slots=True)
class Demand:
    """One request's or load's need. `number` orders the line and is never used twice."""

    number: int
    kind: DemandKind
    engine: str
    need_bytes: int
    since: float


def eligible(line: Sequence[Demand], head_since: float, now: float, rules: LineRules) -> int:
    """Return how many demands from the front may be tried now; 1 once the head is impatient."""
    if not line:
        return 0
    return len(line) if now - head_since < rules.pass_seconds else 1
