"""Which nodes have gone silent, judged by this process's own clock.

Pure. Owns the rule that silence counts only while someone listens: time in which the controller
was stopped, starting or cut off from the store adds nothing, and a node's wall clock is never
compared with ours. A lease is a text; only that it changes matters.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum


class NodeHealth(StrEnum):
    """What the lease says: renewed while we listened, overdue, overdue so long that engines move.

    `unproven` is neither renewed nor overdue yet: what the node last wrote still stands.
    """

    UNPROVEN = "unproven"
    FRESH = "fresh"
    EXPIRED = "expired"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Lease:
    """What a node last wrote, and how often it promises to. Units: seconds.

    `every_seconds` 0 means unknown, as for a node whose object is gone: what it last promised
    still holds, or else the default.
    """

    value: str
    every_seconds: float = 0.0


DEFAULT_LEASE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class LeaseMark:
    """A lease, when in listened time it last changed, and whether we saw it change at all."""

    lease: Lease
    changed_at_seconds: float
    renewed: bool = False


@dataclass(frozen=True, slots=True)
class LeaseRules:
    """How patient to be. Units: leases, seconds."""

    missed_leases: int = 3
    grace_seconds: float = 60.0
    tick_seconds: float = 1.0


@dataclass(frozen=True, slots=True)
class LeaseBook:
    """All leases and the time listened so far."""

    listened_seconds: float = 0.0
    ticked_at: float | None = None
    marks: Mapping[str, LeaseMark] = field(default_factory=dict)


def advance_leases(
    book: LeaseBook,
    leases: Mapping[str, Lease],
    now: float,
    *,
    listening: bool,
    rules: LeaseRules,
) -> LeaseBook:
    """Return the book after one look at all leases.

    Units: `now` in monotonic seconds. `listening` is false while the store cannot be reached.
    """
    gap = 0.0 if book.ticked_at is None else max(0.0, now - book.ticked_at)
    # After a pause the renewals of that time are still on their way; it must not count.
    heard = min(gap, 2 * rules.tick_seconds) if listening else 0.0
    listened = book.listened_seconds + heard
    marks: dict[str, LeaseMark] = {}
    for name, said in leases.items():
        lease, known = said, book.marks.get(name)
        if not lease.every_seconds:
            promised = DEFAULT_LEASE_SECONDS if known is None else known.lease.every_seconds
            lease = replace(lease, every_seconds=promised)
        if known is None:
            marks[name] = LeaseMark(lease, listened)
        elif known.lease.value == lease.value:
            marks[name] = replace(known, lease=lease)
        else:
            marks[name] = LeaseMark(lease, listened, renewed=True)
    return LeaseBook(listened, now, marks)


def silent_seconds(book: LeaseBook, name: str) -> float:
    """Return for how long a node has been silent; 0 for one never seen."""
    mark = book.marks.get(name)
    return 0.0 if mark is None else book.listened_seconds - mark.changed_at_seconds


def judge_nodes(book: LeaseBook, rules: LeaseRules) -> Mapping[str, NodeHealth]:
    """Return the health of every node in the book.

    At most half of the nodes are lost at once; each further half waits one more grace period,
    because when most nodes fall silent together the fault is more likely on our side.
    """
    overdue = sorted(
        (
            (silent_seconds(book, name) - rules.missed_leases * mark.lease.every_seconds, name)
            for name, mark in book.marks.items()
        ),
        key=lambda item: (-item[0], item[1]),
    )
    half = max(1, len(book.marks) // 2)
    health: dict[str, NodeHealth] = {}
    for rank, (over_seconds, name) in enumerate(overdue):
        if over_seconds < 0:
            renewed = book.marks[name].renewed
            health[name] = NodeHealth.FRESH if renewed else NodeHealth.UNPROVEN
        elif over_seconds < rules.grace_seconds * (1 + rank // half):
            health[name] = NodeHealth.EXPIRED
        else:
            health[name] = NodeHealth.LOST
    return health
