"""Pools of scripted engines."""

import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from node_agent.pool.lifecycle import Timings
from node_agent.pool.memory_side import MemorySide
from node_agent.pool.pool import EnginePool
from node_agent.pool.settings import PoolSettings
from node_agent.pool.watch import WatchLimits
from tests.support.pools import FixedFiles
from tests.support.scripted_engine import Script, scripted_launcher

FAST = Timings(
    backoff_min_seconds=0.05,
    load_backoff_min_seconds=0.05,
    permanent_retry_seconds=60,
    shutdown_wait_seconds=0.5,
    terminate_wait_seconds=0.5,
)

PoolMaker = Callable[..., EnginePool]


@pytest.fixture
async def make_pool(tmp_path: Path) -> AsyncIterator[PoolMaker]:
    pools: list[EnginePool] = []

    def make(
        script: Script | None = None,
        watch: WatchLimits | None = None,
        timings: Timings = FAST,
        clock: Callable[[], float] = time.monotonic,
        memory: MemorySide | None = None,
        **changes: Any,
    ) -> EnginePool:
        settings = PoolSettings(
            log_directory=tmp_path / "logs",
            launcher=scripted_launcher(script or Script()),
            timings=timings,
            watch=watch or WatchLimits(),
            **{"tick_seconds": 0.02, "drain_seconds": 5, **changes},
        )
        pools.append(EnginePool(settings, FixedFiles(), clock, memory=memory))
        return pools[-1]

    yield make
    for pool in pools:
        await pool.close(0)
