"""The tiers of one engine, from open to closed, as the agent's words have them.

Owns RAM and disk tier, their limits, and what is told about them. It imports no MLX. Called on
the MLX thread; the disk tier's own thread opens and writes behind it.
"""

import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from node_agent.engine.messages import CacheLimits, CacheReport, CacheSettings
from node_agent.kvcache.hot import HotTier
from node_agent.kvcache.layer_kinds import CacheLayout
from node_agent.kvcache.readers import ReaderThreads
from node_agent.kvcache.ssd_budget import SsdBudget
from node_agent.kvcache.ssd_health import TierReason
from node_agent.kvcache.ssd_link import SsdLink, SsdSettings
from node_agent.kvcache.ssd_store import SsdStore
from node_agent.kvcache.ssd_writer import SsdWriter, WriterSettings
from node_agent.kvcache.stats import StatsCounter
from node_agent.kvcache.tiers import CacheTiers, DiskTier

CLOSE_SECONDS = 5.0
# So long the first request waits for the disk tier to be opened, which is begun before the model is
# read and may have the index put right first. A disk that takes longer is not worth the wait.
OPEN_SECONDS = 5.0


class PrefixStore:
    """Blocks in RAM and on the disk."""

    def __init__(
        self, settings: CacheSettings, wall_clock: Callable[[], float] = time.time
    ) -> None:
        """Begin to open the disk tier; `wall_clock` dates blocks, which outlive the process."""
        self.settings = settings
        self.stats = StatsCounter()
        self.hot = HotTier(settings.hot_bytes, self.stats)
        self.disk: DiskTier | None = None
        self.readers = ReaderThreads()
        self._limits = CacheLimits(
            size_bytes=settings.size_bytes,
            leave_free_bytes=settings.leave_free_bytes,
            hot_bytes=settings.hot_bytes,
            retention_seconds=settings.retention_seconds,
        )
        if settings.directory:
            self.disk = _start_disk(settings, self._limits, self.stats, wall_clock)

    def tiers(self, identity: tuple[str, CacheLayout]) -> CacheTiers:
        """Return the tiers for one model; see `CacheTiers`."""
        return CacheTiers(identity, self.hot, self.disk, self.stats)

    def await_disk(self, wait_seconds: float = OPEN_SECONDS) -> None:
        """Return once the disk tier was opened or found unfit, or after so long."""
        if self.disk is not None:
            # Its thread opens it before it does any work.
            self.disk.writer.add_job(lambda: None)
            self.disk.writer.flush(wait_seconds)

    def resize(self, limits: CacheLimits) -> None:
        """Hold new limits from now on; what is over them goes."""
        if limits == self._limits:
            return
        self._limits = limits
        self.hot.resize(limits.hot_bytes)
        if self.disk is not None:
            self.disk.writer.resize(_budget(limits))

    def report(self, fingerprint: str) -> CacheReport:
        """Return what is held and what was done. It reads the disk's index."""
        counters = {name: float(count) for name, count in asdict(self.stats.snapshot()).items()}
        report = {
            "fingerprint": fingerprint,
            "hot_used_bytes": self.hot.used_bytes,
            "hot_capacity_bytes": self.hot.capacity_bytes,
            "hot_blocks": len(self.hot),
            "counters": counters,
        }
        if self.disk is None:
            return CacheReport(**report)  # type: ignore[arg-type]
        figures, _ = self.disk.store.figures()
        state = self.disk.store.link.state
        return CacheReport(
            **report,  # type: ignore[arg-type]
            ssd_used_bytes=figures.used_bytes,
            ssd_blocks=figures.blocks,
            queued_bytes=self.disk.writer.queued_bytes,
            state_reason="" if state.reason is TierReason.READY else state.reason.value,
            state_message=state.message,
            writable=state.writable,
        )

    def close(self) -> None:
        """Write what is queued, for a bounded time, and leave the directory in good order."""
        self.readers.close()
        if self.disk is not None:
            self.disk.writer.close(CLOSE_SECONDS)


def _start_disk(
    settings: CacheSettings,
    limits: CacheLimits,
    stats: StatsCounter,
    wall_clock: Callable[[], float],
) -> DiskTier:
    memory_file = Path(settings.memory_file) if settings.memory_file else None
    where = SsdSettings(Path(settings.directory), memory_file, settings.durable)
    store = SsdStore(SsdLink(where, _budget(limits), stats, wall_clock))
    writer = SsdWriter(store, WriterSettings())
    writer.start()
    return DiskTier(store, writer)


def _budget(limits: CacheLimits) -> SsdBudget:
    return SsdBudget(
        size_bytes=limits.size_bytes,
        leave_free_bytes=limits.leave_free_bytes,
        retention_seconds=limits.retention_seconds or None,
    )
