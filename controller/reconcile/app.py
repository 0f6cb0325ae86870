"""The reconcilers of one controller, wired together.

Owns which change wakes which reconciler. It decides nothing itself. Called by the
controller's app, in the process that leads.
"""

import asyncio
from collections.abc import Sequence
from functools import partial

import aiohttp

from controller.placement.fleet import NodeView
from controller.reconcile.api_key import ApiKeyReconciler
from controller.reconcile.event_pruner import EventPruner
from controller.reconcile.following import FollowingWatch, build_following
from controller.reconcile.garbage import GarbageCollector
from controller.reconcile.inspect import HttpInspector
from controller.reconcile.leases import LeaseRules, NodeHealth
from controller.reconcile.model import ModelReconciler
from controller.reconcile.node import LeaseWatch, NodeReconciler
from controller.reconcile.observe import FleetObserver, Informers, observe_node
from controller.reconcile.plan_report import plan_report
from controller.reconcile.route import RouteReconciler
from controller.reconcile.settings import ReconcileSettings
from controller.runtime.events import EventRecorder
from controller.runtime.loop import Controller
from controller.runtime.objects import Objects
from manifests.kinds.model import Model
from manifests.kinds.scheme import KINDS
from manifests.units import MIB
from manifests.wire.informer import Informer
from manifests.wire.plan import PlanReport

_NEWS_BYTES = 256 * MIB


class Reconcilers:
    """Everything that keeps the fleet as declared."""

    def __init__(
        self, objects: Objects, session: aiohttp.ClientSession, settings: ReconcileSettings
    ) -> None:
        """Wire it up; `run` starts it."""
        self.informers = {kind.plural: Informer(objects, kind.plural) for kind in KINDS}
        self.fleet = FleetObserver(
            Informers(self.informers["models"], self.informers["nodes"], self.informers["engines"]),
            HttpInspector(
                session,
                timeout_seconds=settings.inspect_timeout_seconds,
                fresh_seconds=settings.inspect_fresh_seconds,
            ),
        )
        events = EventRecorder(objects, "controller")
        rules = LeaseRules(
            settings.missed_leases, settings.replace_grace_seconds, settings.tick_seconds
        )
        self._pruner = EventPruner(objects)
        self._watch = LeaseWatch(self.fleet, rules, self._health_changed)
        garbage = GarbageCollector(objects, self.informers)
        self._garbage = garbage
        resync_seconds = settings.resync_seconds
        self.models = Controller(
            "model",
            ModelReconciler(
                objects, self.fleet, events, retry_seconds=settings.unplaced_retry_seconds
            ).reconcile,
            keys=lambda: list(self.informers["models"].objects),
            resync_seconds=resync_seconds,
        )
        self.nodes = Controller(
            "node",
            NodeReconciler(objects, self.fleet, events, self._watch).reconcile,
            keys=lambda: list(self.fleet.leases()),
            resync_seconds=resync_seconds,
        )
        self.collector = Controller(
            "garbage", garbage.reconcile, keys=garbage.keys, resync_seconds=resync_seconds
        )
        self.guards, self.budgets = build_following(
            objects, self.informers, self.fleet, resync_seconds
        )
        keys, routes = self.informers["apikeys"], self.informers["routes"]
        self.routes = Controller(
            "route",
            RouteReconciler(objects, routes, self.informers["models"]).reconcile,
            keys=lambda: list(routes.objects),
            resync_seconds=resync_seconds,
        )
        self.keys = Controller(
            "apikey",
            ApiKeyReconciler(objects, keys).reconcile,
            keys=lambda: list(keys.objects),
            resync_seconds=resync_seconds,
        )
        self._following = FollowingWatch(self.guards, self.budgets)
        self._uids: dict[tuple[str, str], str] = {}
        self._node_news: dict[str, NodeView | None] = {}
        self._subscribe()

    @property
    def synced(self) -> bool:
        """Whether every kind has been listed once."""
        return all(informer.synced for informer in self.informers.values())

    @property
    def controllers(self) -> tuple[Controller, ...]:
        """The loops, for metrics."""
        policies = (self.guards, self.budgets, self.routes, self.keys)
        return (self.models, self.nodes, self.collector, *policies)

    async def run(self) -> None:
        """Reconcile until cancelled; no decision is made before everything is known once."""
        async with asyncio.TaskGroup() as group:
            for plural, informer in self.informers.items():
                group.create_task(informer.run(), name=f"informer-{plural}")
            for informer in self.informers.values():
                await informer.wait_synced()
            group.create_task(self._watch.run(), name="lease-watch")
            group.create_task(self._pruner.run(), name="event-pruner")
            for controller in self.controllers:
                group.create_task(controller.run(), name=f"reconcile-{controller.name}")

    async def plan_models(self, models: Sequence[Model]) -> PlanReport:
        """Return where these models would go now; nothing is stored."""
        await self.fleet.inspect_bound()
        for model in models:
            await self.fleet.inspect(model.spec.source)
        return plan_report(models, self.fleet.engines(), self.fleet.fleet())

    def _subscribe(self) -> None:
        self.informers["models"].subscribe(self.models.enqueue)
        self.informers["memoryguards"].subscribe(self.guards.enqueue)
        self.informers["cachebudgets"].subscribe(self.budgets.enqueue)
        self.informers["apikeys"].subscribe(self._key_changed)
        for plural in ("routes", "models"):
            # A name may pass from one route to another.
            self.informers[plural].subscribe(lambda _name: self.routes.enqueue_all())
        self.informers["engines"].subscribe(self._engine_changed)
        self.informers["nodes"].subscribe(self._node_changed)
        for plural, informer in self.informers.items():
            informer.subscribe(partial(self._maybe_garbage, plural))

    def _engine_changed(self, name: str) -> None:
        engine = self.fleet.engine(name)
        self._following.engine_changed(name, engine)
        if engine is not None:
            self.models.enqueue(engine.spec.model)
            self.nodes.enqueue(engine.spec.node)
            return
        # Its memory is free now, and any model may be waiting for it.
        self.models.enqueue_all()

    def _node_changed(self, name: str) -> None:
        self.nodes.enqueue(name)
        if self.fleet.health.get(name) in {NodeHealth.EXPIRED, NodeHealth.LOST}:
            # A return is worth knowing before the next tick: work may be waiting for the node.
            self._watch.tick()
        node = self.fleet.node(name)
        self._following.node_changed(name, node)
        view = None if node is None else _coarse(observe_node(node, NodeHealth.FRESH))
        if view != self._node_news.get(name):
            self._node_news[name] = view
            self.models.enqueue_all()

    def _key_changed(self, name: str) -> None:
        self.keys.enqueue(name)
        if name not in self.informers["apikeys"].objects:
            # Another key may have had the same secret.
            self.keys.enqueue_all()

    def _health_changed(self, names: frozenset[str]) -> None:
        for name in names:
            self.nodes.enqueue(name)
        self.models.enqueue_all()

    def _maybe_garbage(self, plural: str, name: str) -> None:
        obj = self.informers[plural].objects.get(name)
        uid = None if obj is None else obj.metadata.uid
        known = self._uids.get((plural, name))
        if uid is None:
            self._uids.pop((plural, name), None)
        else:
            self._uids[plural, name] = uid
        # Gone, or gone and made anew under the same name while we could not look.
        if known is not None and known != uid:
            for key in self._garbage.dependents(plural, name):
                self.collector.enqueue(key)
        if obj is None:
            return
        if obj.metadata.owner_references:
            self.collector.enqueue(f"{plural}/{name}")


def _coarse(view: NodeView) -> NodeView:
    """Return the node without the small change in its ceilings that every report brings."""
    steps = view.ceilings.hard_bytes // _NEWS_BYTES
    ceilings = view.ceilings.model_copy(
        update={
            "hard_bytes": steps * _NEWS_BYTES,
            "static_bytes": 0,
            "dynamic_bytes": 0,
            "metal_bytes": None,
            "abort_bytes": 0,
        }
    )
    return NodeView(
        name=view.name,
        ready=view.ready,
        schedulable=view.schedulable,
        labels=view.labels,
        taints=view.taints,
        ceilings=ceilings,
        address=view.address,
        instance=view.instance,
        fused=view.fused,
    )


def build_controllers(
    objects: Objects, session: aiohttp.ClientSession, settings: ReconcileSettings
) -> Reconcilers:
    """Return the reconcilers over an API and a session for asking agents."""
    return Reconcilers(objects, session, settings)
