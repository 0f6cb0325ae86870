"""Once a second: measure the machine and its engines, and feed the arbiter.

The only reader of the host while the agent runs. Measuring happens on a thread, because the
kernel walks a large process's page tables for its footprint.
"""

import asyncio
from collections.abc import Callable

import structlog

from node_agent.host.base import Host
from node_agent.memory.arbiter import Arbiter
from node_agent.memory.reading import EngineUse
from node_agent.pool.base import EngineView, Pool

_LOG = structlog.get_logger(__name__)

SAMPLE_SECONDS = 1.0


def describe_use(view: EngineView, footprint_bytes: int | None) -> EngineUse | None:
    """Return one engine's use, or None without a process."""
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
    )


class Monitor:
    """Samples and tells."""

    def __init__(
        self, host: Host, pool: Pool, arbiter: Arbiter, after_sample: Callable[[], None]
    ) -> None:
        """`after_sample` is called on the loop after the arbiter took a sample in."""
        self._host, self._pool, self._arbiter = host, pool, arbiter
        self._after_sample = after_sample
        self._wake = asyncio.Event()
        self._pids: frozenset[int] = frozenset()
        pool.on_change(self._wake_on_new_processes)

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
        self._arbiter.observe(memory, uses)
        self._after_sample()

    async def run(self) -> None:
        """Sample until cancelled; a machine that cannot be read keeps its last reading."""
        while True:
            try:
                await self.sample()
            except OSError as fault:
                _LOG.warning("memory not measured", fault=str(fault))
            try:
                async with asyncio.timeout(SAMPLE_SECONDS):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()

    def _measure(self, pids: list[int]) -> dict[int, int]:
        found = {pid: self._host.process_footprint_bytes(pid) for pid in pids}
        return {pid: size for pid, size in found.items() if size is not None}

    def _wake_on_new_processes(self) -> None:
        """Sample at once when a process came or went: its memory did too."""
        views = self._pool.views()
        if frozenset(view.pid for view in views if view.pid is not None) != self._pids:
            self._wake.set()
