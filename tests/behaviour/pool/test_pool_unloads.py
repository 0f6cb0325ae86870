"""Idle engines leave to make room, and no request ever notices more than a wait (B50)."""

import asyncio
import json
import os
import random
import signal
import time

import pytest

from manifests.errors import Code, Refusal
from manifests.kinds.engine import EnginePhase
from node_agent.engine.messages import Finished, Tokens
from node_agent.pool.memory_side import MemorySide
from tests.support.pools import (
    await_gone,
    await_ready,
    await_view,
    ending,
    greedy,
    make_want,
    read_stream,
    token_ids,
)
from tests.support.scripted_engine import Script, hash_tokens

pytestmark = pytest.mark.processes

TTL = {"idleTTL": "5s"}


class SkewedClock:
    """The real clock, and what a test adds to it."""

    def __init__(self) -> None:
        self.added_seconds = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.added_seconds


def skip(pool, clock: SkewedClock, seconds: float) -> None:
    """Let time pass and the pool see it at once."""
    clock.added_seconds += seconds
    pool.tick()


def only(pool, name: str = "tiny-0"):
    (view,) = [view for view in pool.views() if view.want.name == name]
    return view


async def await_stopped(pool, name: str = "tiny-0"):
    return await await_view(pool, lambda view: view.phase is EnginePhase.STOPPED, name)


async def ready_lease(pool, model: str = "tiny"):
    taken = await pool.lease_ready(model, wait_seconds=30)
    assert not isinstance(taken, Refusal), taken
    return taken


def loads(record) -> int:
    return sum(json.loads(line)["type"] == "load" for line in record.read_text().splitlines())


async def test_the_idle_time_counts_from_the_end_of_an_answer_that_took_longer(make_pool, tmp_path):
    """B50."""
    clock, gate = SkewedClock(), tmp_path / "gate"
    pool = make_pool(Script(gate=str(gate)), clock=clock)
    pool.set_wanted({"tiny-0": make_want(keep=TTL)})
    before = await await_ready(pool)
    one = await ready_lease(pool)
    stream = one.generate(greedy("a", [1, 2]))
    skip(pool, clock, 12)
    assert (only(pool).phase, only(pool).idle_seconds) == (EnginePhase.READY, None)
    gate.touch()
    assert isinstance(ending(await read_stream(stream)), Finished)
    one.release()
    skip(pool, clock, 4.5)
    assert only(pool).phase is EnginePhase.READY
    skip(pool, clock, 0.6)
    after = await await_stopped(pool)
    assert (after.reason, after.message) == ("IdleTTL", "no request for 5s")
    assert (after.evicted, after.accepting, after.pid, after.loaded) == (True, False, None, None)
    with pytest.raises(ProcessLookupError):
        os.kill(before.pid, 0)


async def test_the_time_of_a_load_is_not_idle_time(make_pool):
    clock = SkewedClock()
    pool = make_pool(Script(load_seconds=0.3), clock=clock)
    pool.set_wanted({"tiny-0": make_want(keep=TTL)})
    await await_view(pool, lambda view: view.progress_done_bytes == 40)
    assert only(pool).idle_seconds is None
    skip(pool, clock, 100)
    view = await await_ready(pool)
    assert view.idle_seconds < 4
    pool.tick()
    assert only(pool).phase is EnginePhase.READY


async def test_what_an_unload_gave_back_is_told(make_pool):
    wired = [900]
    memory = MemorySide(footprint_bytes=lambda _: 5 << 20, wired_bytes=lambda: wired[0])
    clock = SkewedClock()
    pool = make_pool(clock=clock, memory=memory)
    pool.set_wanted({"tiny-0": make_want()})
    assert (await await_ready(pool)).freed_bytes is None
    assert pool.unload("tiny-0", "to make room for another")
    view = await await_view(pool, lambda view: view.freed_bytes is not None)
    assert (view.phase, view.freed_bytes, view.unwired_bytes) == ("Stopped", 5 << 20, None)
    assert (view.reason, view.message) == ("Evicted", "to make room for another")
    wired[0] = 300
    skip(pool, clock, 2.1)
    assert only(pool).unwired_bytes == 600


async def test_a_pinned_engine_is_never_unloaded(make_pool):
    clock = SkewedClock()
    pool = make_pool(clock=clock)
    pool.set_wanted({"tiny-0": make_want(keep={"pinned": True, **TTL})})
    view = await await_ready(pool)
    skip(pool, clock, 100)
    assert not pool.unload("tiny-0", "x", urgent=True)
    assert (only(pool).phase, only(pool).pid) == (EnginePhase.READY, view.pid)


async def test_an_engine_with_a_lease_or_a_row_is_never_unloaded(make_pool, tmp_path):
    clock, gate = SkewedClock(), tmp_path / "gate"
    pool = make_pool(Script(gate=str(gate)), clock=clock)
    pool.set_wanted({"tiny-0": make_want(keep=TTL)})
    await await_ready(pool)
    one = await ready_lease(pool)
    skip(pool, clock, 100)
    assert not pool.unload("tiny-0", "x", urgent=True)
    assert only(pool).leases == 1
    stream = one.generate(greedy("a", [1]))
    one.release()
    skip(pool, clock, 100)
    assert not pool.unload("tiny-0", "x", urgent=True)
    gate.touch()
    assert token_ids(await read_stream(stream)) == hash_tokens([1], 8, Script())
    assert pool.unload("tiny-0", "x")


async def test_engines_that_are_unknown_or_not_ready_are_not_unloaded(make_pool):
    pool = make_pool(Script(load_seconds=30))
    pool.set_wanted({"tiny-0": make_want()})
    await await_view(pool, lambda view: view.phase is EnginePhase.LOADING)
    assert not pool.unload("tiny-0", "x", urgent=True)
    assert not pool.unload("other", "x")


async def test_twenty_requests_for_an_unloaded_model_share_one_load(make_pool, tmp_path):
    record = tmp_path / "record"
    pool = make_pool(Script(record=str(record), load_seconds=0.2))
    pool.set_wanted({"tiny-0": make_want()})
    await await_ready(pool)
    assert pool.unload("tiny-0", "x")
    await await_stopped(pool)

    async def ask(index: int) -> list[int]:
        one = await ready_lease(pool)
        try:
            return token_ids(await read_stream(one.generate(greedy(f"row-{index}", [index + 1]))))
        finally:
            one.release()

    answers = await asyncio.gather(*(ask(index) for index in range(20)))
    assert answers == [hash_tokens([index + 1], 8, Script()) for index in range(20)]
    assert loads(record) == 2
    assert (only(pool).restarts, only(pool).leases) == (0, 0)


async def test_a_request_during_an_unload_waits_for_the_exit_and_then_for_the_load(make_pool):
    pool = make_pool()
    pool.set_wanted({"tiny-0": make_want()})
    before = await await_ready(pool)
    assert pool.unload("tiny-0", "x")
    waiter = asyncio.create_task(ready_lease(pool))
    returning = await await_view(pool, lambda view: view.returning)
    assert (returning.pid, returning.wakes, returning.evicted) == (before.pid, True, False)
    one = await waiter
    assert one.view.pid != before.pid
    with pytest.raises(ProcessLookupError):
        os.kill(before.pid, 0)
    one.release()


async def test_two_hundred_requests_at_the_edge_of_the_idle_time_are_all_answered(
    make_pool, tmp_path
):
    """B50: gaps around the idle time, and the request before, amid or after the unload."""
    clock, chance, record = SkewedClock(), random.Random(50), tmp_path / "record"
    pool = make_pool(Script(record=str(record)), clock=clock, minimum_stay_seconds=0)
    pool.set_wanted({"tiny-0": make_want(keep=TTL)})
    await await_ready(pool)
    for index in range(200):
        skip(pool, clock, chance.uniform(4.9, 5.1))
        for _ in range(chance.choice([0, 0, 1, 2, 10])):
            await asyncio.sleep(0)
        async with asyncio.timeout(20):
            one = await ready_lease(pool)
            events = await read_stream(one.generate(greedy(f"row-{index}", [index], max_tokens=2)))
        assert token_ids(events) == hash_tokens([index], 2, Script()), ending(events)
        one.release()
    # Both sides of the edge were met.
    assert 20 < loads(record) < 200
    assert only(pool).restarts == 0


async def test_an_unload_does_not_hold_up_the_stream_of_another_engine(make_pool):
    """An engine that will not leave is pushed and killed; its neighbour loses no step."""
    pool = make_pool(Script(step_seconds=0.005))
    pool.set_wanted({"busy": make_want("busy", model="busy"), "idle": make_want("idle")})
    await await_ready(pool, "busy")
    idle = await await_ready(pool, "idle")
    one = await ready_lease(pool, "busy")
    stream = one.generate(greedy("a", [1], max_tokens=100_000))
    tokens, steps_amid = [], 0
    async for event in stream:
        if not isinstance(event, Tokens):
            continue
        tokens += event.ids
        if len(tokens) == 10:
            os.kill(idle.pid, signal.SIGSTOP)
            assert pool.unload("idle", "x")
        phase = only(pool, "idle").phase
        steps_amid += phase is EnginePhase.DRAINING
        if phase is EnginePhase.STOPPED:
            break
    # Shutdown and TERM were ignored for half a second each; at 5 ms a step, allow for slow CI.
    assert steps_amid > 40
    # One token a step, none lost.
    assert tokens == hash_tokens([1], len(tokens), Script())
    one.release()


async def test_an_engine_that_was_just_brought_back_stays_a_while(make_pool):
    clock = SkewedClock()
    pool = make_pool(clock=clock, minimum_stay_seconds=10)
    pool.set_wanted({"tiny-0": make_want()})
    await await_ready(pool)
    assert pool.unload("tiny-0", "x")
    await await_stopped(pool)
    (await ready_lease(pool)).release()
    assert not pool.unload("tiny-0", "x")
    skip(pool, clock, 9)
    assert not pool.unload("tiny-0", "x")
    skip(pool, clock, 1.1)
    assert pool.unload("tiny-0", "x")
    await await_stopped(pool)
    (await ready_lease(pool)).release()
    assert pool.unload("tiny-0", "x", urgent=True)


async def test_a_wait_for_an_engine_is_bounded_and_the_load_goes_on(make_pool):
    clock = SkewedClock()
    pool = make_pool(Script(load_seconds=0.4), clock=clock)
    pool.set_wanted({"tiny-0": make_want()})
    await await_ready(pool)
    assert pool.unload("tiny-0", "for another")
    await await_stopped(pool)
    refusal = await pool.lease_ready("tiny", wait_seconds=0)
    assert isinstance(refusal, Refusal)
    assert (refusal.code, refusal.http_status) == (Code.ENGINE_NOT_READY, 503)
    waiter = asyncio.create_task(pool.lease_ready("tiny", wait_seconds=100))
    await await_view(pool, lambda view: view.progress_done_bytes == 40)
    assert not waiter.done()
    skip(pool, clock, 101)
    refusal = await asyncio.wait_for(waiter, 5)
    assert isinstance(refusal, Refusal)
    assert "loading" in refusal.message
    await await_ready(pool)


async def test_an_engine_that_is_not_coming_back_is_not_waited_for(make_pool):
    pool = make_pool(Script(load_failed="no such weights"))
    pool.set_wanted({"tiny-0": make_want()})
    await await_view(pool, lambda view: view.restart_in_seconds is not None)
    refusal = await asyncio.wait_for(pool.lease_ready("tiny", wait_seconds=1000), 5)
    assert isinstance(refusal, Refusal)
    assert "no such weights" in refusal.message
    unknown = await asyncio.wait_for(pool.lease_ready("huge", wait_seconds=1000), 5)
    assert isinstance(unknown, Refusal)
    assert unknown.code is Code.MODEL_NOT_FOUND


async def test_a_second_copy_comes_back_when_the_first_is_full(make_pool):
    pool = make_pool(Script(triggers={7: "hang"}))
    batching = {"maxRunning": 1, "maxWaiting": 1}
    pool.set_wanted({name: make_want(name, batching=batching) for name in ("tiny-0", "tiny-1")})
    for name in ("tiny-0", "tiny-1"):
        await await_ready(pool, name)
    assert pool.unload("tiny-1", "x")
    taken = [await ready_lease(pool) for _ in range(4)]
    names = [one.view.want.name for one in taken]
    assert names == ["tiny-0", "tiny-0", "tiny-1", "tiny-1"]
    refusal = await asyncio.wait_for(pool.lease_ready("tiny", wait_seconds=1000), 5)
    assert isinstance(refusal, Refusal)
    assert refusal.code is Code.QUEUE_FULL


async def test_closing_ends_the_wait_of_every_request(make_pool):
    pool = make_pool()
    pool.set_wanted({"tiny-0": make_want()})
    await await_ready(pool)
    assert pool.unload("tiny-0", "x")
    waiter = asyncio.create_task(pool.lease_ready("tiny", wait_seconds=1000))
    await await_view(pool, lambda view: view.returning)
    await pool.close(0)
    assert isinstance(await asyncio.wait_for(waiter, 5), Refusal)
    assert pool.views() == ()


async def test_an_unloaded_engine_that_is_no_longer_wanted_is_gone(make_pool):
    pool = make_pool()
    pool.set_wanted({"tiny-0": make_want()})
    await await_ready(pool)
    assert pool.unload("tiny-0", "x")
    await await_stopped(pool)
    pool.set_wanted({})
    await await_gone(pool)
