"""Measures the machine and its engines, and feeds the arbiter.

The only reader of the host's memory while the agent runs: once a second under load, more often
while the enforcer doubts a reading, less often on an idle node, and at once when a process came
or went or work begins. Measuring happens on a thread, because the kernel walks a large process's
page tables for its footprint.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import structlog

from node_agent.host.base import Host, HostMemory
from node_agent.memory.arbiter import Arbiter
from node_agent.memory.reading import EngineUse
from node_agent.memory.stranded_plan import Stranded, WiredHistory, next_wired_history
from node_agent.pool.base import EngineView, Pool

_LOG = structlog.get_logger(__name__)

SAMPLE_SECONDS = 1.0


def describe_use(view: EngineView, footprint_bytes: int | None) -> EngineUse | None:
    """Return one engine's use, or None without a process.

    A heartbeat that was sent while rows ran tells of then, so it counts as busy until the next one.
    """
    if view.pid is None:
        return None
    beat, loaded = view.heartbeat, view.loaded
    return EngineUse(
        engine=view.want.name,
        pid=view.pid,
        footprint_bytes=footprint_bytes,
        mlx_bytes=0 if beat is None else beat.active_bytes + beat.cache_bytes,
        weights_bytes=0 if loaded is None else max(1, loaded.active_bytes),
        recommended_working_set_bytes=0 if loaded is None else loaded.recommended_working_set_bytes,
        busy=bool(view.rows) or (beat is not None and beat.running + beat.waiting > 0),
        hot_bytes=view.cache.hot_used_bytes,
    )


@dataclass(frozen=True, slots=True)
class MonitorPace:
    """What steers the monitor.

    `poll_seconds` is asked after each sample; `ceiling_ratio` is what kernel panics leave of the
    ceilings; `missed` is called when the machine could not be read; `clock` returns seconds.
    """

    poll_seconds: Callable[[], float] = lambda: SAMPLE_SECONDS
    ceiling_ratio: Callable[[], float] = lambda: 1.0
    missed: Callable[[], None] = lambda: None
    clock: Callable[[], float] = time.monotonic


class Monitor:
    """Samples and tells."""

    def __init__(
        self,
        host: Host,
        pool: Pool,
        arbiter: Arbiter,
        after_sample: Callable[[], None],
        pace: MonitorPace | None = None,
    ) -> None:
        """`after_sample` is called on the loop after the arbiter took a sample in."""
        self._host, self._pool, self._arbiter = host, pool, arbiter
        self._after_sample, self._pace = after_sample, pace or MonitorPace()
        self._wake = asyncio.Event()
        self._pids: frozenset[int] = frozenset()
        self._memory: HostMemory | None = None
        self._wired = WiredHistory()
        self._sleepy = False
        pool.on_change(self._wake_on_work)

    @property
    def memory(self) -> HostMemory | None:
        """The machine's own figures as last read."""
        return self._memory

    @property
    def stranded(self) -> tuple[Stranded, ...]:
        """Engines that ended and whose memory did not come back."""
        return self._wired.proven

    def wake(self) -> None:
        """Sample at once instead of at the next poll."""
        self._wake.set()

    async def sample(self) -> None:
        """Measure once. Raises OSError when the machine cannot be read."""
        views = self._pool.views()
        pids = [view.pid for view in views if view.pid is not None]
        self._pids = frozenset(pids)
        footprints = await asyncio.to_thread(self._measure, pids)
        pairs = (
            describe_use(view, None if view.pid is None else footprints.get(view.pid))
            for view in views
        )
        uses = tuple(use for use in pairs if use is not None)
        engines_bytes = self._arbiter.forecast_used_bytes(uses)
        memory = await asyncio.to_thread(self._host.reading, engines_bytes)
        held = {(use.engine, use.pid): use.measured_bytes for use in uses}
        self._wired = next_wired_history(self._wired, memory.wired_bytes, held, self._pace.clock())
        self._memory = replace(memory, ceiling_ratio=self._pace.ceiling_ratio())
        self._arbiter.observe(self._memory, uses)
        self._after_sample()

    async def run(self) -> None:
        """Sample until cancelled; a machine that cannot be read keeps its last reading."""
        while True:
            try:
                await self.sample()
            except OSError as fault:
                _LOG.warning("memory not measured", fault=str(fault))
                self._pace.missed()
            wait_seconds = self._pace.poll_seconds()
            self._sleepy = wait_seconds > SAMPLE_SECONDS
            try:
                async with asyncio.timeout(wait_seconds):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()

    def _measure(self, pids: list[int]) -> dict[int, int]:
        found = {pid: self._host.process_footprint_bytes(pid) for pid in pids}
        return {pid: size for pid, size in found.items() if size is not None}

    def _wake_on_work(self) -> None:
        """Sample at once when a process came or went, or when an idle node gets work."""
        views = self._pool.views()
        if frozenset(view.pid for view in views if view.pid is not None) != self._pids:
            self._wake.set()
        elif self._sleepy and any(view.rows for view in views):
            self._sleepy = False
            self._wake.set()
