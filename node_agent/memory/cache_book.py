"""Which cache budgets are in force here; who follows which, and where its blocks go.

Owns nothing but that. The keeper turns it into limits, the sync writes it. Called on the event
loop.
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from manifests.kinds.cache_budget import CacheBudgetSpec
from node_agent.engine.messages import CacheLimits
from node_agent.memory.cache_budgets import (
    CachePlaces,
    FollowedBudget,
    plan_directory,
    plan_disk_limits,
    plan_terms,
)
from node_agent.pool.cache_side import CacheTerms


class CacheBook:
    """The budgets in force; at first the agent's own default for everybody."""

    def __init__(self, places: CachePlaces, default: CacheBudgetSpec) -> None:
        self.places = places
        self._node = FollowedBudget("", default)
        self._engines: Mapping[str, FollowedBudget] = {}
        self._standing: dict[str, CacheTerms] = {}

    @property
    def node_budget(self) -> FollowedBudget:
        """The budget of engines without one of their own."""
        return self._node

    @property
    def node_directory(self) -> str:
        """Where the node's budget keeps its blocks; empty without an SSD tier."""
        return plan_directory(self._node.spec, self.places)

    def set(self, node: FollowedBudget, engines: Mapping[str, FollowedBudget]) -> bool:
        """Replace the budgets; return whether anything changed."""
        if (node, engines) == (self._node, self._engines):
            return False
        self._node, self._engines = node, dict(engines)
        self._standing.clear()
        return True

    def of(self, engine: str) -> FollowedBudget:
        """Return what an engine follows."""
        return self._engines.get(engine, self._node)

    def directory_of(self, engine: str) -> str:
        """Return where its blocks go; empty without an SSD tier."""
        return plan_directory(self.of(engine).spec, self.places)

    def disk_limits(self, engines: Iterable[str], directory: str) -> CacheLimits:
        """Return what those of these engines who share a directory are told of it."""
        return plan_disk_limits([self.of(name) for name in engines], directory, self.places)

    def standing(self, engine: str) -> CacheTerms:
        """Return an engine's terms without the sizes; for each view of it."""
        known = self._standing.get(engine)
        if known is None:
            known = plan_terms(self.of(engine), CacheLimits(), 0, self.places)
            self._standing[engine] = known
        return known

    def fault(self, engine: str) -> str:
        """Return why an engine must not start, or an empty text. Reads the disk."""
        directory = self.directory_of(engine)
        if not directory or not self.of(engine).spec.ssd.required:
            return ""
        return observe_directory_fault(Path(directory))


def observe_directory_fault(directory: Path) -> str:
    """Return why blocks cannot be kept in a directory, or an empty text."""
    place = directory if directory.exists() else directory.parent
    if not place.is_dir():
        return f"the CacheBudget requires {directory}, which is not there; attach its volume"
    if not os.access(place, os.R_OK | os.W_OK | os.X_OK):
        return f"the CacheBudget requires {directory}, which this agent cannot write to"
    return ""
