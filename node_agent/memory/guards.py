"""Which guard a node follows.

Pure; called by the sync when guards or the node's labels change.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from manifests.kinds.guard import MemoryGuard, MemoryGuardSpec
from node_agent.memory.selecting import select_by_labels


@dataclass(frozen=True, slots=True)
class FollowedGuard:
    """The guard a node follows; without a name it is the agent's own default."""

    name: str
    spec: MemoryGuardSpec
    generation: int = 0


def choose_guard(
    guards: Iterable[MemoryGuard], labels: Mapping[str, str], default: MemoryGuardSpec
) -> FollowedGuard:
    """Return the guard that selects a node by its labels, or the default."""
    chosen = select_by_labels(guards, labels)
    if chosen is None:
        return FollowedGuard("", default)
    meta = chosen.metadata
    return FollowedGuard(meta.name or "", chosen.spec, meta.generation or 0)
