"""The whole guard on a machine whose readings settle late, never, or jump (B44, B45).

Monitor, arbiter and enforcer are real; the host's readings and the clock are the test's.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from manifests.errors import Refusal
from manifests.kinds.engine import EnginePhase
from manifests.kinds.guard import MemoryGuardSpec
from manifests.kinds.node import PressureLevel
from node_agent.engine.messages import Abort, Command, Heartbeat, Loaded, Reclaim
from node_agent.guard import Guard, GuardListeners, GuardSettings
from node_agent.host.base import HostInfo, HostMemory, PanicScan
from node_agent.memory.arbiter import Arbiter
from node_agent.memory.enforcer_plan import AbortRow, Action
from node_agent.pool.base import EngineView, RowView
from tests.support.pools import make_want
from tests.support.scripted_pool import ScriptedPool, say

GIB = 1 << 30
PID = 7
# 16 GiB of RAM less 4 of reserve: soft 10.8, hard 11.4, emergency 12 GiB.
RAM = 16 * GIB


@dataclass
class ScriptedHost:
    """A machine whose one engine's footprint is a function of the clock."""

    footprint: Callable[[float], int]
    now: float = 1000.0

    def info(self) -> HostInfo:
        return HostInfo("darwin", "arm64", "M4", "B-1", "M-1", RAM)

    def reading(self, engines_bytes: int) -> HostMemory:
        return HostMemory(RAM, max(0, RAM - engines_bytes), 0, 0)

    def process_footprint_bytes(self, pid: int) -> int | None:
        return self.footprint(self.now) if pid == PID else None

    def scan_panics(self) -> PanicScan | None:
        return None


@dataclass
class OneEngine(ScriptedPool):
    """A pool of one engine that ends the rows it is told to end."""

    sent: list[Command] = field(default_factory=list)

    def send(self, name: str, command: Command) -> bool:
        self.sent.append(command)
        if isinstance(command, Abort):
            kept = [row for row in self.engines[0].rows if row.request_id != command.request_id]
            self.update(rows=tuple(kept), leases=len(kept))
        return True


@dataclass
class Scene:
    """A node with running prompts, and what its guard did."""

    host: ScriptedHost
    pool: OneEngine
    guard: Guard
    arbiter: Arbiter
    acted: list[tuple[float, Action]] = field(default_factory=list)
    levels: list[tuple[float, PressureLevel]] = field(default_factory=list)

    async def play(self, seconds: float) -> None:
        """Sample as the monitor does, for so long."""
        end = self.host.now + seconds
        while self.host.now < end:
            await self.guard.monitor.sample()
            self.host.now += self.guard.poll_seconds

    @property
    def aborts(self) -> list[tuple[float, str]]:
        """When which request was ended."""
        return [(at - 1000.0, a.request_id) for at, a in self.acted if isinstance(a, AbortRow)]


def scene(tmp_path: Path, footprint: Callable[[float], int], prompts: int = 1) -> Scene:
    rows = tuple(RowView(f"r{i}", float(i), True, True) for i in range(prompts))
    beat = Heartbeat(
        steps=1, step_seconds=0, running=1, waiting=0, active_bytes=0, cache_bytes=0, peak_bytes=0
    )
    loaded = Loaded(device="gpu", mlx_version="0", chunk_tokens=512, active_bytes=GIB)
    view = EngineView(make_want(), EnginePhase.READY, pid=PID, loaded=loaded, heartbeat=beat)
    view = replace(view, making_progress=True, rows=rows, leases=prompts)
    host, pool = ScriptedHost(footprint), OneEngine([view], say([]))
    settings = GuardSettings(tmp_path / "panics.json", clock=lambda: host.now)
    arbiter = Arbiter(MemoryGuardSpec(), clock=lambda: host.now)
    guard = Guard(host, pool, arbiter, settings)
    found = Scene(host, pool, guard, arbiter)
    guard.tell(
        GuardListeners(
            acted=lambda action: found.acted.append((host.now, action)),
            level_changed=lambda _, after: found.levels.append((host.now, after)),
        )
    )
    return found


async def test_a_footprint_that_falls_400_ms_late_costs_no_request(tmp_path: Path) -> None:
    now = scene(tmp_path, lambda at: 12 * GIB if at < 1000.4 else 6 * GIB)
    await now.play(30)
    assert now.aborts == []
    assert [level for _, level in now.levels] == [PressureLevel.EMERGENCY, PressureLevel.OK]


async def test_a_footprint_that_never_falls_costs_the_request_within_five_seconds(
    tmp_path: Path,
) -> None:
    now = scene(tmp_path, lambda _: 12 * GIB)
    await now.play(10)
    assert [name for _, name in now.aborts] == ["r0"]
    assert 1.0 <= now.aborts[0][0] <= 5.0


async def test_a_footprint_that_jumps_by_five_percent_neither_kills_nor_flaps(
    tmp_path: Path,
) -> None:
    flip = iter(range(10_000))
    now = scene(tmp_path, lambda _: int(11.2 * GIB * (1.05 if next(flip) % 2 else 0.95)))
    await now.play(120)
    assert now.aborts == []
    assert len(now.levels) <= 2


async def test_victims_fall_one_by_one_newest_first_and_what_is_left_goes_on(
    tmp_path: Path,
) -> None:
    now = scene(tmp_path, lambda _: 0, prompts=12)
    now.host.footprint = lambda _: 10 * GIB + len(now.pool.engines[0].rows) * GIB // 8
    await now.play(40)
    assert [name for _, name in now.aborts] == ["r11"]
    assert len(now.pool.engines[0].rows) == 11
    now.host.footprint = lambda _: GIB
    await now.play(10)
    assert now.guard.enforcer.level is PressureLevel.OK
    assert not now.guard.health().paused


async def test_a_machine_that_is_read_again_unlatches_what_the_last_reading_latched(
    tmp_path: Path,
) -> None:
    now = scene(tmp_path, lambda _: 11 * GIB)
    await now.play(3)
    assert now.guard.health().paused
    now.host.footprint = lambda _: int(10.7 * GIB)
    await now.play(25)
    assert not now.guard.health().paused


@pytest.mark.parametrize(("prompts", "asked"), [(0, True), (1, False)])
async def test_engines_at_rest_give_back_what_they_keep_when_somebody_begins_to_wait(
    tmp_path: Path, prompts: int, asked: bool
) -> None:
    now = scene(tmp_path, lambda _: 9 * GIB, prompts)
    await now.play(2.0)
    assert Reclaim() not in now.pool.sent
    waiting = asyncio.create_task(now.arbiter.admit_load("b", 9 * GIB, wait_seconds=60))
    await asyncio.sleep(0)
    assert (Reclaim() in now.pool.sent) is asked
    waiting.cancel()


async def test_whoever_waits_for_given_back_bytes_hears_of_them_soon(tmp_path: Path) -> None:
    """The high-water mark lasts three looks, so looks come faster while somebody waits."""
    now = scene(tmp_path, lambda at: (9 if at < 1002 else 2) * GIB)
    await now.play(2.0)
    usual_seconds = now.guard.poll_seconds
    waiting = asyncio.create_task(now.arbiter.admit_load("b", 9 * GIB, wait_seconds=60))
    await asyncio.sleep(0)
    assert now.guard.poll_seconds < usual_seconds / 2
    await now.play(usual_seconds + 0.1)
    await asyncio.sleep(0)
    assert not isinstance(await waiting, Refusal)
    assert now.guard.poll_seconds == usual_seconds
