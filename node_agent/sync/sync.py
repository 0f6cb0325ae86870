"""The agent against the controller: watch what is bound here, run it, tell how it goes.

The shell around `plan`: one loop converges the pool on the declared engines, another writes
reports, so a slow controller never delays a start or a stop. Until the first list arrives
nothing is stopped; when none arrives, the engines last wanted are served from disk.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import structlog

from manifests.kinds.cache_budget import CacheBudget
from manifests.kinds.engine import Engine, EnginePhase
from manifests.kinds.guard import MemoryGuard, MemoryGuardSpec
from manifests.kinds.meta import FleetObject
from manifests.kinds.node import CacheInForce, Node
from manifests.wire.informer import Informer
from manifests.wire.status import ApiError
from node_agent.memory.arbiter import Arbiter
from node_agent.pool.base import EngineWant, Pool
from node_agent.sync.cache_follower import CacheFollower
from node_agent.sync.cached_wants import SavedEngines
from node_agent.sync.client import ApiClient
from node_agent.sync.conditions import HealthNow, NodeNow
from node_agent.sync.figures import observe_figures
from node_agent.sync.guard_follower import GuardFollower
from node_agent.sync.lease import LeaseKeeper, NodeSources, NodeTakenError
from node_agent.sync.news import News
from node_agent.sync.occurrences import Occurrence
from node_agent.sync.panics_plan import CLEAR_ANNOTATION
from node_agent.sync.plan import SyncPlan, plan_stopped, plan_sync, plan_wanted
from node_agent.sync.register import NodeFacts
from node_agent.sync.reporter import Reporter, ReportRules

_LOG = structlog.get_logger(__name__)
_T = TypeVar("_T", bound=FleetObject)


@dataclass(frozen=True, slots=True)
class SyncSettings:
    """Units: seconds. `tick_seconds` is how often figures are looked at."""

    wants_file: Path
    default_guard: MemoryGuardSpec = field(default_factory=MemoryGuardSpec)
    first_list_seconds: float = 5.0
    tick_seconds: float = 1.0
    retry_seconds: float = 2.0
    rules: ReportRules = field(default_factory=ReportRules)


@dataclass(frozen=True, slots=True)
class SyncHooks:
    """What the sync is told and tells beside the pool and the arbiter.

    `health` is asked for each status; `cleared` gets the annotation by which a person clears the
    panic history, empty without one; `guard_changed` is called when the node follows another
    guard or an edited one. `caches` follows cache budgets; None where nothing is cached.
    """

    health: Callable[[], HealthNow] = HealthNow
    cleared: Callable[[str], None] = lambda _: None
    guard_changed: Callable[[], None] = lambda: None
    caches: CacheFollower | None = None


class Sync:
    """Keeps this node and the declared engines the same."""

    def __init__(
        self,
        client: ApiClient,
        facts: NodeFacts,
        pool: Pool,
        arbiter: Arbiter,
        settings: SyncSettings,
        hooks: SyncHooks | None = None,
    ) -> None:
        self._facts, self._pool, self._arbiter = facts, pool, arbiter
        self._settings, self._hooks = settings, hooks or SyncHooks()
        self._guard = GuardFollower(arbiter, settings.default_guard, self._hooks.health)
        self.guard_in_force = self._guard.in_force
        node = facts.name
        self._engines = Informer(client, "engines", field_selector=f"spec.node={node}")
        self._nodes = Informer(client, "nodes", field_selector=f"metadata.name={node}")
        self._guards = Informer(client, "memoryguards")
        self._budgets = Informer(client, "cachebudgets")
        self._reporter = Reporter(client, node, settings.rules)
        self.news = News(node, lambda: self.lease.node_uid, pool, arbiter, self._post)
        self.lease = LeaseKeeper(
            client,
            facts,
            NodeSources(self._node_now, self._newest_node, self.news.note_conditions),
        )
        self._changed, self._to_report = asyncio.Event(), asyncio.Event()
        self._disk = SavedEngines(settings.wants_file, node)
        self._saved: Mapping[str, Engine] = {}
        self._wanted: Mapping[str, EngineWant] | None = None
        self._stopping = False
        self._ready: frozenset[str] = frozenset()
        self._caches: frozenset[str] = frozenset()

    async def run(self) -> None:
        """Work until cancelled. Raises NodeTakenError, alone, when the name is another's."""
        informers = (self._engines, self._guards, self._budgets, self._nodes)
        for informer in informers:
            informer.subscribe(lambda _name: self._changed.set())
        self._pool.on_change(self._pool_changed)
        loops = (
            *(informer.run() for informer in informers),
            self.lease.run(),
            self._converge_loop(),
            _ring_on_first_lists(informers, self._changed),
            self._report_loop(),
        )
        tasks = [asyncio.create_task(loop) for loop in loops]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def begin_stop(self) -> None:
        """Say from now on that this node takes no work. Mutates: the lease's words."""
        self._stopping = True
        self.lease.hurry()

    async def say_stopped(self, seconds: float = 3.0) -> None:
        """Tell the fleet that node and engines are stopped; best effort, for a moment."""
        if not self.lease.registered:
            return
        reports = plan_stopped(self._declared(), self._facts.name, time.time())
        self._stopping = True
        try:
            async with asyncio.timeout(seconds):
                await self.lease.renew()
                await self._reporter.write_last(SyncPlan(reports=reports), time.time())
        except (ApiError, OSError, NodeTakenError) as fault:
            _LOG.info("could not tell the controller of the stop", fault=str(fault))

    def _post(self, occurrences: tuple[Occurrence, ...]) -> None:
        self._reporter.note(occurrences)
        if occurrences:
            self._to_report.set()

    def _pool_changed(self) -> None:
        self.news.look_at_pool()
        self._to_report.set()
        views = self._pool.views()
        ready = frozenset(view.want.name for view in views if view.phase is EnginePhase.READY)
        caches = frozenset(view.cache.report.state_reason for view in views if view.cache.report)
        if (ready, caches) != (self._ready, self._caches):
            # What the node holds has changed by a whole model, or its cache's disk came or went;
            # people should not wait to see it.
            self._ready, self._caches = ready, caches
            self.lease.hurry()

    async def _converge_loop(self) -> None:
        await self._start_from_disk_unless_listed()
        while True:
            self._changed.clear()
            self._converge()
            await self._changed.wait()

    async def _start_from_disk_unless_listed(self) -> None:
        """Give the controller a moment to say what runs here, else go on as before."""
        try:
            async with asyncio.timeout(self._settings.first_list_seconds):
                await self._engines.wait_synced()
        except TimeoutError:
            self._saved = self._disk.load()
            _LOG.warning(
                "no answer from the controller; serving what ran last", engines=sorted(self._saved)
            )

    def _converge(self) -> None:
        """Hand the pool what is declared, the arbiter the guards, the caches their budgets."""
        node = self._newest_node()
        if node is not None:
            self._hooks.cleared(node.metadata.annotations.get(CLEAR_ANNOTATION, ""))
        labels = self._facts.all_labels if node is None else node.metadata.labels
        if self._guards.synced:
            guards = _only(self._guards.objects, MemoryGuard)
            if self._guard.follow(guards, labels, self._declared()):
                self._hooks.guard_changed()
                self.lease.hurry()
        if self._budgets.synced and self._hooks.caches is not None:
            budgets = _only(self._budgets.objects, CacheBudget)
            if self._hooks.caches.follow(budgets, labels, self._declared()):
                self.lease.hurry()
        # An engine keeps its cache's directory for as long as it runs, so budgets come first.
        listed = self._engines.synced and self._budgets.synced
        if not listed and not self._saved:
            return
        engines = self._declared()
        wanted = plan_wanted(engines.values(), self._facts.name)
        if wanted != self._wanted:
            _LOG.info("engines wanted here", engines=sorted(wanted))
            self._wanted = wanted
            self._pool.set_wanted(wanted)
        if self._engines.synced:
            self._disk.keep(engines[name] for name in sorted(wanted))
        self._to_report.set()

    def _declared(self) -> Mapping[str, Engine]:
        if not self._engines.synced:
            return self._saved
        return _only(self._engines.objects, Engine)

    async def _report_loop(self) -> None:
        while True:
            await _wait(self._to_report, self._settings.tick_seconds)
            self._to_report.clear()
            if not self._engines.synced:
                continue
            try:
                await self._reporter.write(self._plan(), time.time())
            except (ApiError, OSError) as fault:
                _LOG.warning("could not report", fault=str(fault))
                await asyncio.sleep(self._settings.retry_seconds)

    def _plan(self) -> SyncPlan:
        views = self._pool.views()
        figures = {view.want.name: observe_figures(self._arbiter, view) for view in views}
        return plan_sync(self._declared(), views, figures, self._facts.name, time.time())

    def _node_now(self) -> NodeNow:
        views, caches = self._pool.views(), self._hooks.caches
        return NodeNow(
            memory=self._arbiter.state(),
            engines=len(views),
            cache=CacheInForce() if caches is None else caches.in_force(views),
            stopped=self._stopping,
            guard=self.guard_in_force(),
            health=self._hooks.health(),
        )

    def _newest_node(self) -> Node | None:
        found = self._nodes.objects.get(self._facts.name)
        return found if isinstance(found, Node) else None


def _only(objects: Mapping[str, FleetObject], kind: type[_T]) -> Mapping[str, _T]:
    return {name: item for name, item in objects.items() if isinstance(item, kind)}


async def _wait(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass


async def _ring_on_first_lists(informers: tuple[Informer, ...], bell: asyncio.Event) -> None:
    """Ring after each first list; an empty one changes no object and tells nobody."""
    for informer in informers:
        await informer.wait_synced()
        bell.set()
    await asyncio.Event().wait()
