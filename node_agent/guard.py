"""The memory guard as one running part: monitor, enforcer, panic watch, and what they tell.

Composes and passes on; every decision is in `memory` and `sync`. The app builds it, starts it and
lets the sync, the metrics and the load stream read from it.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from manifests.kinds.node import PressureLevel
from node_agent.engine.messages import Reclaim
from node_agent.host.base import Host
from node_agent.memory.arbiter import Arbiter
from node_agent.memory.enforcer import Enforcer, EnforcerHooks, HotCache, NoHotCache
from node_agent.memory.enforcer_plan import Action, EnforcerRules
from node_agent.memory.publisher import Publisher
from node_agent.monitor import Monitor, MonitorPace
from node_agent.pool.base import Pool
from node_agent.sync.conditions import HealthNow
from node_agent.sync.panic_watch import PanicWatch

_LOG = structlog.get_logger(__name__)

QUEUE_POLL_SECONDS = 0.35


@dataclass(frozen=True, slots=True)
class GuardSettings:
    """The guard's own slice of the configuration; `clock` returns seconds."""

    panics_file: Path
    rules: EnforcerRules = field(default_factory=EnforcerRules)
    hot_cache: HotCache = field(default_factory=NoHotCache)
    clock: Callable[[], float] = time.monotonic


@dataclass(frozen=True, slots=True)
class GuardListeners:
    """Whom the guard tells, all on the loop. `sampled` comes after each reading was acted upon."""

    acted: Callable[[Action], None] = lambda _: None
    level_changed: Callable[[PressureLevel, PressureLevel], None] = lambda _, __: None
    sampled: Callable[[], None] = lambda: None
    panics_changed: Callable[[], None] = lambda: None


class Guard:
    """Watches the node's memory and acts."""

    def __init__(self, host: Host, pool: Pool, arbiter: Arbiter, settings: GuardSettings) -> None:
        self._arbiter, self._pool = arbiter, pool
        self._listeners: list[GuardListeners] = []
        self.panics = PanicWatch(host, settings.panics_file, self._panics_changed)
        self.enforcer = Enforcer(
            pool,
            arbiter,
            EnforcerHooks(
                acted=self._acted,
                level_changed=self._level_changed,
                clock=settings.clock,
                hot_cache=settings.hot_cache,
            ),
            settings.rules,
        )
        pace = MonitorPace(
            poll_seconds=lambda: self.poll_seconds,
            ceiling_ratio=lambda: self.panics.ceiling_ratio,
            missed=self.enforcer.miss,
            clock=settings.clock,
        )
        self.monitor = Monitor(host, pool, arbiter, self._sampled, pace)
        arbiter.room = self.enforcer
        self._publisher = Publisher(pool, arbiter, settings.clock)
        arbiter.changed.listen(self._publisher.publish)
        arbiter.queued.listen(self._ask_back)
        arbiter.queued.listen(self.monitor.wake)
        pool.on_change(self._publisher.publish)
        pool.on_memory_event(self._publisher.on_memory_event)

    @property
    def poll_seconds(self) -> float:
        """How long to wait until the next look; not long while somebody waits in line."""
        usual_seconds = self.enforcer.poll_seconds
        return min(usual_seconds, QUEUE_POLL_SECONDS) if self._arbiter.waiting else usual_seconds

    def tell(self, listeners: GuardListeners) -> None:
        """Tell these too, in the order they were named. Mutates: who is told."""
        self._listeners.append(listeners)

    def health(self) -> HealthNow:
        """Return what to report of this moment."""
        level = self.enforcer.level
        return HealthNow(
            level=level,
            paused=level is not PressureLevel.OK,
            waiting=self._arbiter.waiting,
            panics=self.panics.standing,
            stranded=self.monitor.stranded,
        )

    async def start(self) -> None:
        """Look once before anything is promised. Raises OSError when memory cannot be read."""
        try:
            await self.panics.scan()
        except OSError as fault:
            _LOG.warning("panic reports not read", fault=str(fault))
        await self.monitor.sample()

    async def run(self) -> None:
        """Watch until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.monitor.run())
            tasks.create_task(self.panics.run())

    def _sampled(self) -> None:
        if self._arbiter.enforced:
            self.enforcer.act()
        self._publisher.publish()
        for listener in self._listeners:
            listener.sampled()

    def _ask_back(self) -> None:
        """Have engines at rest give back what they keep for their next request: somebody waits."""
        for view in self._pool.views():
            if view.pid is not None and not view.rows:
                self._pool.send(view.want.name, Reclaim())

    def _acted(self, action: Action) -> None:
        for listener in self._listeners:
            listener.acted(action)

    def _level_changed(self, before: PressureLevel, after: PressureLevel) -> None:
        for listener in self._listeners:
            listener.level_changed(before, after)

    def _panics_changed(self) -> None:
        for listener in self._listeners:
            listener.panics_changed()
        self.monitor.wake()
