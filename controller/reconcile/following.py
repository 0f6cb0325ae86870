"""Showing on each MemoryGuard and CacheBudget which nodes follow it.

Owns the status of both kinds, and which changes of nodes and engines matter to it. Decisions are
in `following_plan`. Wired up by the reconcilers' app.
"""

import time
from collections.abc import Callable, Iterable
from typing import cast

from controller.reconcile.following_plan import (
    Following,
    observe_budget,
    observe_guard,
    plan_following,
)
from controller.reconcile.observe import FleetObserver
from controller.runtime.loop import Controller, Result
from controller.runtime.objects import Objects
from manifests.kinds.cache_budget import CacheBudget
from manifests.kinds.engine import Engine
from manifests.kinds.node import Node
from manifests.times import format_time
from manifests.wire.informer import Informer
from manifests.wire.status import ApiError

Observe = Callable[[str, Iterable[Node], Iterable[Engine]], Following]


class FollowingReconciler:
    """One guard, or one budget, at a time."""

    def __init__(
        self,
        objects: Objects,
        informer: Informer,
        fleet: FleetObserver,
        observe: Observe,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`observe` finds who follows one of the informer's kind; `clock` is the epoch's."""
        self._objects, self._informer, self._fleet = objects, informer, fleet
        self._observe, self._clock = observe, clock

    async def reconcile(self, name: str) -> Result:
        """Write who follows it, if that changed."""
        found = self._informer.objects.get(name)
        if found is None or found.metadata.deletion_timestamp is not None:
            return Result()
        # Both kinds have a status of the same form.
        policy = cast(CacheBudget, found)
        following = self._observe(name, self._fleet.nodes(), self._fleet.engines())
        status = plan_following(policy, following, format_time(self._clock())).status
        if status == policy.status:
            return Result()
        patch = {
            # The generation in it must be that of the spec it was judged by.
            "metadata": {"resourceVersion": policy.metadata.resource_version},
            "status": status.model_dump(mode="json", by_alias=True, exclude_none=True),
        }
        try:
            await self._objects.patch(self._informer.plural, name, patch, subresource="status")
        except ApiError as fault:
            if fault.code != 404:
                raise
        return Result()


class FollowingWatch:
    """Wakes the loops of both kinds when what a node or an engine follows has changed."""

    def __init__(self, guards: Controller, budgets: Controller) -> None:
        self._guards, self._budgets = guards, budgets
        self._nodes: dict[str, tuple[object, ...]] = {}
        self._engines: dict[str, tuple[object, ...]] = {}

    def node_changed(self, name: str, node: Node | None) -> None:
        """Take in a node as it is now; None when it is gone."""
        news = () if node is None else _node_news(node)
        if self._nodes.get(name, ()) != news:
            self._wake()
        _keep(self._nodes, name, news)

    def engine_changed(self, name: str, engine: Engine | None) -> None:
        """Take in an engine as it is now; None when it is gone."""
        news = () if engine is None else _engine_news(engine)
        if self._engines.get(name, ()) != news:
            self._wake()
        _keep(self._engines, name, news)

    def _wake(self) -> None:
        self._guards.enqueue_all()
        self._budgets.enqueue_all()


def build_following(
    objects: Objects,
    informers: dict[str, Informer],
    fleet: FleetObserver,
    resync_seconds: float,
) -> tuple[Controller, Controller]:
    """Return the loops of guards and of budgets."""

    def loop(name: str, informer: Informer, observe: Observe) -> Controller:
        return Controller(
            name,
            FollowingReconciler(objects, informer, fleet, observe).reconcile,
            keys=lambda: list(informer.objects),
            resync_seconds=resync_seconds,
        )

    return (
        loop("memoryguard", informers["memoryguards"], observe_guard),
        loop("cachebudget", informers["cachebudgets"], observe_budget),
    )


def _keep(known: dict[str, tuple[object, ...]], name: str, news: tuple[object, ...]) -> None:
    if news:
        known[name] = news
    else:
        known.pop(name, None)


def _node_news(node: Node) -> tuple[object, ...]:
    guard, cache = node.status.guard, node.status.cache
    return (guard.name, guard.generation, cache.name, cache.generation, node.agent_stopped)


def _engine_news(engine: Engine) -> tuple[object, ...]:
    spec, cache = engine.spec, engine.status.cache
    told = () if cache is None else (cache.budget, cache.message, cache.reason)
    return (spec.memory_guard, spec.cache_budget, told)
