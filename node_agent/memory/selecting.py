"""Which declared object of a kind a node follows, by its labels.

Pure; the one rule for memory guards and cache budgets.
"""

from collections.abc import Iterable, Mapping
from typing import TypeVar

from manifests.kinds.cache_budget import CacheBudget
from manifests.kinds.guard import MemoryGuard
from manifests.times import parse_time

_T = TypeVar("_T", MemoryGuard, CacheBudget)


def select_by_labels(objects: Iterable[_T], labels: Mapping[str, str]) -> _T | None:
    """Return the object whose selector fits a node, or None; one on its way out does not count.

    A selector without labels selects every node; one that names more labels stands before it,
    among equals the newest counts, and then the name.
    """
    matching = [
        item
        for item in objects
        if item.metadata.deletion_timestamp is None
        and all(labels.get(key) == value for key, value in item.spec.node_selector.items())
    ]
    return max(matching, key=_precedence, default=None)


def _precedence(item: MemoryGuard | CacheBudget) -> tuple[int, float, str]:
    created = parse_time(item.metadata.creation_timestamp or "") or 0.0
    return (len(item.spec.node_selector), created, item.metadata.name or "")
