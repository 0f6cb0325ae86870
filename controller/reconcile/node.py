"""Noticing nodes that fall silent and those that come back.

Owns the lease book, the Ready condition of silent nodes, and letting go of engines whose node
will not answer. It never deletes a Node: that is a person's decision.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from controller.reconcile.leases import (
    LeaseBook,
    LeaseRules,
    NodeHealth,
    advance_leases,
    judge_nodes,
    silent_seconds,
)
from controller.reconcile.node_plan import NodeNews, plan_node, plan_releases
from controller.reconcile.observe import FleetObserver
from controller.runtime.events import EventRecorder
from controller.runtime.loop import Result
from controller.runtime.objects import Objects
from manifests.kinds.node import Node
from manifests.times import format_time
from manifests.wire.status import ApiError


@dataclass(frozen=True, slots=True)
class Clocks:
    """Now, for measuring and for writing down. Units: seconds."""

    monotonic: Callable[[], float] = time.monotonic
    epoch: Callable[[], float] = time.time


class LeaseWatch:
    """Looks at every lease once a tick and tells the observer how each node is."""

    def __init__(
        self,
        fleet: FleetObserver,
        rules: LeaseRules,
        changed: Callable[[frozenset[str]], None],
        clocks: Clocks | None = None,
    ) -> None:
        """`changed` gets the names of nodes whose health changed."""
        self._fleet, self._rules, self._changed = fleet, rules, changed
        self._clocks = clocks or Clocks()
        self._book = LeaseBook()

    def silence_seconds(self, name: str) -> float:
        """Return for how long a node has been silent while we listened."""
        return silent_seconds(self._book, name)

    def tick(self) -> None:
        """Look once."""
        self._book = advance_leases(
            self._book,
            self._fleet.leases(),
            self._clocks.monotonic(),
            listening=self._fleet.informers.connected,
            rules=self._rules,
        )
        before, after = self._fleet.health, judge_nodes(self._book, self._rules)
        self._fleet.health = after
        names = frozenset(
            name for name in before.keys() | after.keys() if before.get(name) != after.get(name)
        )
        if names:
            self._changed(names)

    async def run(self) -> None:
        """Look for ever."""
        while True:
            self.tick()
            await asyncio.sleep(self._rules.tick_seconds)


class NodeReconciler:
    """One node at a time; also nodes whose object is gone but which engines still name."""

    def __init__(
        self,
        objects: Objects,
        fleet: FleetObserver,
        events: EventRecorder,
        watch: LeaseWatch,
        clocks: Clocks | None = None,
    ) -> None:
        """Write down what the lease watch found."""
        self._objects, self._fleet, self._events = objects, fleet, events
        self._watch, self._clocks = watch, clocks or Clocks()

    async def reconcile(self, name: str) -> Result:
        """Write a silent or returned node's condition and let go of what it cannot stop."""
        health = self._fleet.health.get(name, NodeHealth.UNPROVEN)
        node = self._fleet.node(name)
        if node is not None:
            now = format_time(self._clocks.epoch())
            news = plan_node(node, health, self._watch.silence_seconds(name), now)
            if news is not None:
                await self._write(node, news)
        bound = [item for item in self._fleet.engines() if item.spec.node == name]
        stopped = node is not None and node.agent_stopped
        for release in plan_releases(bound, health, agent_stopped=stopped):
            await self._release(release.name, list(release.finalizers), release.resource_version)
        return Result()

    async def _write(self, node: Node, news: NodeNews) -> None:
        conditions = [
            item.model_dump(mode="json", by_alias=True, exclude_none=True)
            for item in news.conditions
        ]
        # The version makes the agent win: if it reported meanwhile, its word is newer.
        patch = {
            "metadata": {"resourceVersion": node.metadata.resource_version},
            "status": {"conditions": conditions},
        }
        await self._objects.patch("nodes", str(node.metadata.name), patch, subresource="status")
        await self._events.record(node, news.reason, news.message, warning=news.warning)

    async def _release(self, name: str, finalizers: list[str], version: str) -> None:
        patch = {"metadata": {"resourceVersion": version, "finalizers": finalizers}}
        try:
            await self._objects.patch("engines", name, patch)
        except ApiError as fault:
            if fault.code != 404:
                raise
