"""Agents' sync sides against the real API: real HTTP, scripted engine processes."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest

from manifests.kinds.guard import MemoryGuardSpec
from manifests.kinds.node import NodeInfo
from node_agent.guard import Guard, GuardListeners, GuardSettings
from node_agent.host.base import PanicScan
from node_agent.host.detect import detect_host
from node_agent.host.simulated import SimulatedHost, SimulatedMachine
from node_agent.memory.arbiter import Arbiter
from node_agent.pool.lifecycle import Timings
from node_agent.pool.pool import EnginePool
from node_agent.pool.settings import PoolSettings
from node_agent.sync.client import ApiClient, ClientTimeouts
from node_agent.sync.register import NodeFacts
from node_agent.sync.reporter import ReportRules
from node_agent.sync.sync import Sync, SyncHooks, SyncSettings
from tests.support.api_host import ApiHost
from tests.support.pools import FixedFiles
from tests.support.scripted_engine import Script, scripted_launcher

FAST = Timings(backoff_min_seconds=0.05, shutdown_wait_seconds=0.5, terminate_wait_seconds=0.5)


@dataclass
class ShiftedClock:
    """The real clock, which a test may put forward."""

    ahead_seconds: float = 0.0

    def seconds(self) -> float:
        return time.monotonic() + self.ahead_seconds


@dataclass
class AgentSide:
    """One agent without its HTTP side."""

    sync: Sync
    pool: EnginePool
    arbiter: Arbiter
    host: SimulatedHost
    guard: Guard
    clock: "ShiftedClock"
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def stop(self) -> None:
        """Stop as the app does."""
        self.sync.begin_stop()
        await self.pool.close(0)
        await self.sync.say_stopped()
        await self.crash()

    async def crash(self) -> None:
        """Be gone without a word; engines die with their agent."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.pool.close(0)


class Agents:
    """Starts agents of one test."""

    def __init__(self, api: ApiHost, directory: Path, session: aiohttp.ClientSession) -> None:
        self._api, self._directory, self._session = api, directory, session
        self._started: list[AgentSide] = []

    def start(
        self,
        name: str = "here",
        *,
        identity: str = "me",
        data: str = "data",
        script: Script | None = None,
        lease_seconds: float = 0.2,
    ) -> AgentSide:
        """Start an agent's sync, pool and monitor."""
        folder = self._directory / data
        folder.mkdir(exist_ok=True)
        launcher = scripted_launcher(script or Script())
        pool_settings = PoolSettings(folder / "logs", launcher, FAST, tick_seconds=0.02)
        pool = EnginePool(pool_settings, FixedFiles())
        arbiter = Arbiter(MemoryGuardSpec())
        facts = NodeFacts(
            name=name,
            identity=identity,
            instance=f"{identity}-{len(self._started)}",
            address="http://127.0.0.1:9",
            info=NodeInfo(os="linux"),
            lease_seconds=lease_seconds,
        )
        client = ApiClient(self._api.url, self._session, ClientTimeouts(1, 2, 5, 2))
        settings = SyncSettings(
            wants_file=folder / "wanted.json",
            first_list_seconds=0.5,
            tick_seconds=0.1,
            retry_seconds=0.1,
            rules=ReportRules(0.3, 0.1),
        )
        host = SimulatedHost(detect_host(), SimulatedMachine(16 << 30), PanicScan())
        clock = ShiftedClock()
        guard = Guard(
            host, pool, arbiter, GuardSettings(folder / "panics.json", clock=clock.seconds)
        )
        hooks = SyncHooks(health=guard.health, cleared=guard.panics.follow_annotation)
        sync = Sync(client, facts, pool, arbiter, settings, hooks)
        guard.tell(
            GuardListeners(
                acted=sync.news.note_action,
                level_changed=sync.news.note_level,
                panics_changed=sync.lease.hurry,
            )
        )
        side = AgentSide(sync, pool, arbiter, host, guard, clock)
        side.tasks = [asyncio.create_task(sync.run()), asyncio.create_task(guard.run())]
        self._started.append(side)
        return side

    async def close(self) -> None:
        """Stop all that still run."""
        for side in self._started:
            await side.crash()


@pytest.fixture
async def api() -> AsyncIterator[ApiHost]:
    host = ApiHost()
    await host.start()
    yield host
    await host.stop()


@pytest.fixture
async def agents(api: ApiHost, tmp_path: Path) -> AsyncIterator[Agents]:
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession())
        starter = Agents(api, tmp_path, session)
        stack.push_async_callback(starter.close)
        yield starter
