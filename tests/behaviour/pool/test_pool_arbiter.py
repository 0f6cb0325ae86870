"""The pool and the real arbiter: no two loads on the same bytes, taking turns, no standstill."""

import asyncio
import contextlib
import dataclasses
import time

import pytest

from manifests.errors import Refusal
from manifests.kinds.engine import EnginePhase
from manifests.kinds.guard import MemoryGuardSpec
from manifests.units import MIB
from node_agent.host.base import HostMemory
from node_agent.memory.arbiter import Arbiter
from node_agent.memory.base import AdmissionRequest
from node_agent.memory.enforcer import Enforcer, EnforcerHooks
from node_agent.monitor import describe_use
from node_agent.pool.lifecycle import Timings
from node_agent.pool.memory_side import MemorySide
from node_agent.pool.watch import WatchLimits
from tests.support.pools import (
    SHAPE,
    await_ready,
    await_view,
    greedy,
    make_want,
    read_stream,
    token_ids,
)
from tests.support.scripted_engine import Script, hash_tokens

pytestmark = pytest.mark.processes

# Each load asks for a little over 200 MiB, most of it what every process holds; then this stays.
HELD_BYTES = 150 * MIB


# Time may jump here without anybody being called stuck or slow to leave.
PATIENT = WatchLimits(**{field.name: 1e9 for field in dataclasses.fields(WatchLimits)})
SLOW_EXITS = Timings(shutdown_wait_seconds=1e6, terminate_wait_seconds=1e6)
GUARD = MemoryGuardSpec.model_validate({"prefillTransientMargin": "4Mi"})


class Machine:
    """A machine of a given size: every engine holds what the script says, sampled on request."""

    def __init__(self, make_pool, room_bytes: int, script: Script | None = None) -> None:
        self.added_seconds = 0.0
        self.arbiter = Arbiter(GUARD, clock=self.clock)
        self.room_bytes = room_bytes
        self.observe_uses(())
        memory = MemorySide(self.arbiter, self.arbiter.engine_footprint_bytes)
        script = script or Script(active_bytes=HELD_BYTES)
        self.pool = make_pool(script, PATIENT, SLOW_EXITS, self.clock, memory)
        hooks = EnforcerHooks(clock=self.clock)
        self.arbiter.room = Enforcer(self.pool, self.arbiter, hooks)
        self.pool.on_change(self.observe)

    def clock(self) -> float:
        return time.monotonic() + self.added_seconds

    @contextlib.asynccontextmanager
    async def hurried(self):
        """Let the machine's clock run fifty times as fast."""

        async def hurry() -> None:
            while True:
                await asyncio.sleep(0.02)
                self.added_seconds += 1

        task = asyncio.create_task(hurry())
        try:
            yield
        finally:
            task.cancel()

    def observe(self) -> None:
        """Take a sample at every change of the pool."""
        self.observe_uses(
            tuple(
                use
                for view in self.pool.views()
                if (use := describe_use(view, None)) is not None and use.measured_bytes
            )
        )

    def observe_uses(self, uses) -> None:
        used_bytes = sum(use.measured_bytes for use in uses)
        host = HostMemory(64 << 30, self.room_bytes - used_bytes, 0, 0)
        for _ in range(3):
            self.arbiter.observe(host, uses)

    def want(self, *names: str, **spec) -> None:
        self.pool.set_wanted({name: make_want(name, model=name, **spec) for name in names})

    def view(self, name: str):
        (view,) = [view for view in self.pool.views() if view.want.name == name]
        return view


async def ask(machine: Machine, model: str, index: int = 0) -> list[int]:
    one = await machine.pool.lease_ready(model, wait_seconds=600)
    assert not isinstance(one, Refusal), one
    try:
        command = greedy(f"{model}-{index}", [index], max_tokens=3)
        return token_ids(await read_stream(one.generate(command)))
    finally:
        one.release()


async def test_two_loads_are_never_let_in_against_the_same_bytes(make_pool):
    machine = Machine(make_pool, room_bytes=400 * MIB)
    most = [0]

    def count() -> None:
        phases = [view.phase for view in machine.pool.views()]
        most[0] = max(most[0], phases.count(EnginePhase.LOADING))
        reserved = machine.arbiter.state().reserved_bytes
        assert machine.arbiter.state().used_bytes + reserved <= machine.room_bytes

    machine.pool.on_change(count)
    machine.want("a", "b", "c")
    await await_view(machine.pool, lambda view: view.accepting, "a")
    # One fits beside nothing; the others wait, in words, until an idle engine may make room.
    waiting = await await_view(
        machine.pool, lambda view: "MiB" in view.message and view.pid is None, "b"
    )
    assert (waiting.phase, waiting.reason) == (EnginePhase.PENDING, "WaitingForMemory")
    assert most[0] == 1


async def test_a_load_goes_on_once_an_idle_engine_has_left_for_it(make_pool):
    machine = Machine(make_pool, room_bytes=300 * MIB)
    machine.want("a", "b")
    first = await await_view(machine.pool, lambda view: view.accepting, "a")
    assert machine.view("b").pid is None
    async with machine.hurried():
        await await_ready(machine.pool, "b")
    gone = await await_view(machine.pool, lambda view: view.phase is EnginePhase.STOPPED, "a")
    assert (gone.reason, gone.message) == ("Evicted", "to make room for b")
    assert gone.freed_bytes == HELD_BYTES
    assert first.pid is not None


async def test_two_models_that_fit_one_at_a_time_take_turns_and_every_request_is_answered(
    make_pool,
):
    """B50: A, B, A, B; each waits for the other's minimum stay, and none fails or hangs."""
    machine = Machine(make_pool, room_bytes=300 * MIB)
    machine.want("a", "b")
    async with machine.hurried(), asyncio.timeout(60):
        for name in "ab":
            await await_ready(machine.pool, name)
        for index in range(8):
            answer = await ask(machine, "ab"[index % 2], index)
            assert answer == hash_tokens([index], 3, Script())
            phases = [view.phase for view in machine.pool.views()]
            assert phases.count(EnginePhase.READY) == 1
    assert [view.restarts for view in machine.pool.views()] == [0, 0]


async def test_a_load_that_waits_for_a_pinned_engine_does_not_hold_up_its_requests(make_pool):
    machine = Machine(make_pool, room_bytes=300 * MIB)
    machine.want("a", keep={"pinned": True})
    await await_ready(machine.pool, "a")
    wants = {
        "a": make_want("a", model="a", keep={"pinned": True}),
        "b": make_want("b", model="b"),
    }
    machine.pool.set_wanted(wants)
    await await_view(machine.pool, lambda view: "MiB" in view.message, "b")
    request = AdmissionRequest("a", "a", SHAPE, 100, 0, 100, 1, 64)
    # Longer than the arbiter lets anybody pass a head of its line.
    for _ in range(12):
        began = time.monotonic()
        reservation = await machine.arbiter.admit(request, wait_seconds=5)
        assert not isinstance(reservation, Refusal), reservation
        assert time.monotonic() - began < 3
        reservation.release()
        await asyncio.sleep(0.3)
    assert machine.view("b").reason == "WaitingForMemory"
    assert machine.view("a").phase is EnginePhase.READY
