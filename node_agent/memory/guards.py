"""Which guard a node follows.

Pure; called by the sync when guards or the node's labels change.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from manifests.guard import MemoryGuard, MemoryGuardSpec
from manifests.times import parse_time


def _precedence(guard: MemoryGuard) -> tuple[int, float, str]:
    """Order guards: those that name labels first, then the newest, then by name."""
    created = parse_time(guard.metadata.creation_timestamp or "") or 0.0
    return (len(guard.spec.node_selector), created, guard.metadata.name or "")


@dataclass(frozen=True, slots=True)
class FollowedGuard:
    """The guard a node follows; without a name it is the agent's own default."""

    name: str
    spec: MemoryGuardSpec


def choose_guard(
    guards: Iterable[MemoryGuard], labels: Mapping[str, str], default: MemoryGuardSpec
) -> FollowedGuard:
    """Return the guard that selects a node by its labels, or the default.

    A selector without labels selects every node; one that names more labels stands before it,
    and among equals the newest counts.
    """
    matching = [
        guard
        for guard in guards
        if guard.metadata.deletion_timestamp is None
        and all(labels.get(key) == value for key, value in guard.spec.node_selector.items())
    ]
    if not matching:
        return FollowedGuard("", default)
    chosen = max(matching, key=_precedence)
    return FollowedGuard(chosen.metadata.name or "", chosen.spec)
