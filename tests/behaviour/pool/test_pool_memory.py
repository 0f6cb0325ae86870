"""Loads ask for memory before a process starts; limits, measurements and asks pass through."""

import asyncio
import json
import time
from pathlib import Path

import pytest

from manifests.errors import Code, Refusal, Retryable
from manifests.kinds.engine import EnginePhase
from manifests.sizing.estimate import ENGINE_BASE_BYTES, ModelShape
from manifests.units import format_bytes
from node_agent.engine.messages import (
    Abort,
    Answer,
    Ask,
    ChunkMeasured,
    Limits,
    Reclaim,
    Shutdown,
)
from node_agent.pool.load_plan import plan_load_bytes
from node_agent.pool.memory_side import MemorySide
from node_agent.sources.base import ModelFiles
from tests.support.pools import (
    SHAPE,
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

WEIGHTS_BYTES = 1 << 20
FILES = ModelFiles(Path("/nowhere"), WEIGHTS_BYTES, "fingerprint", SHAPE)
NEED = format_bytes(plan_load_bytes(make_want().spec, FILES, fused=False))


class Reservation:
    def __init__(self, held: list["Reservation"]) -> None:
        self.held, self.released = held, 0
        held.append(self)

    def release(self) -> None:
        self.released += 1
        self.held.remove(self)


class Door:
    """Answers as the test says, in order; waits while it has said nothing."""

    def __init__(self) -> None:
        self.answers: asyncio.Queue[Refusal | None] = asyncio.Queue()
        self.asks: asyncio.Queue[tuple[str, int]] = asyncio.Queue()
        self.held: list[Reservation] = []
        self.left = asyncio.Event()

    async def asked(self) -> tuple[str, int]:
        """Wait for the next who asks."""
        return await asyncio.wait_for(self.asks.get(), 10)

    async def admit_load(self, engine, need_bytes, *, wait_seconds=0.0):
        self.asks.put_nowait((engine, need_bytes))
        try:
            refusal = await self.answers.get()
        except asyncio.CancelledError:
            self.left.set()
            raise
        return Reservation(self.held) if refusal is None else refusal


def refuse(retryable: Retryable, after_seconds: int | None = None) -> Refusal:
    return Refusal(
        Code.PREFILL_MEMORY_EXCEEDED,
        "The model needs 9.0 GiB of memory, but 1.0 GiB is free on this node.",
        retryable,
        hint="Close other apps.",
        retry_after_seconds=after_seconds,
    )


def only(pool):
    (view,) = pool.views()
    return view


def commands(record) -> list[dict]:
    return [json.loads(line) for line in record.read_text().splitlines()]


async def test_a_load_waits_for_memory_with_its_bytes_in_words_and_then_goes_on(make_pool):
    door, counted = Door(), [0]
    memory = MemorySide(admission=door, footprint_bytes=lambda _: counted[0])
    pool = make_pool(memory=memory)
    pool.set_wanted({"tiny-0": make_want()})
    view = await await_view(pool, lambda view: view.reason == "WaitingForMemory")
    assert (view.phase, view.pid) == (EnginePhase.PENDING, None)
    assert view.message == f"its load needs {NEED}"
    refusal = pool.lease("tiny")
    assert isinstance(refusal, Refusal)
    assert "WaitingForMemory" in refusal.message
    engine, need_bytes = await door.asked()
    assert engine == "tiny-0"
    assert need_bytes > WEIGHTS_BYTES + ENGINE_BASE_BYTES
    door.answers.put_nowait(refuse(Retryable.LATER))
    view = await await_view(pool, lambda view: "9.0 GiB" in view.message)
    assert (view.phase, view.reason) == (EnginePhase.PENDING, "WaitingForMemory")
    assert await door.asked() == ("tiny-0", need_bytes)
    door.answers.put_nowait(None)
    await await_ready(pool)
    # Loaded and alive, but not yet among what counts as used: the promise stands.
    pool.tick()
    assert len(door.held) == 1
    counted[0] = WEIGHTS_BYTES
    pool.tick()
    assert door.held == []


async def test_a_load_that_can_never_fit_is_failed_with_the_bytes_and_starts_nothing(make_pool):
    door = Door()
    pool = make_pool(memory=MemorySide(admission=door))
    pool.set_wanted({"tiny-0": make_want()})
    door.answers.put_nowait(refuse(Retryable.NO))
    view = await await_view(pool, lambda view: view.phase is EnginePhase.FAILED)
    assert view.reason == "InsufficientMemory"
    assert view.message == (
        "The model needs 9.0 GiB of memory, but 1.0 GiB is free on this node. Close other apps."
    )
    assert view.restart_in_seconds > 50
    assert (view.pid, view.restarts, pool.log_path("tiny-0")) == (None, 0, None)


async def test_an_engine_that_is_dropped_while_it_waits_leaves_the_line(make_pool):
    door = Door()
    pool = make_pool(memory=MemorySide(admission=door))
    pool.set_wanted({"tiny-0": make_want()})
    await door.asked()
    pool.set_wanted({})
    await await_gone(pool)
    await asyncio.wait_for(door.left.wait(), 5)
    assert door.held == []


@pytest.mark.parametrize(
    "script",
    [Script(load_failed="bad weights"), Script(exit_on_load=9)],
    ids=["load failed", "died"],
)
async def test_a_failed_load_gives_its_bytes_back(make_pool, script):
    door = Door()
    pool = make_pool(script, memory=MemorySide(admission=door, footprint_bytes=lambda _: 0))
    pool.set_wanted({"tiny-0": make_want()})
    door.answers.put_nowait(None)
    await await_view(pool, lambda view: view.phase is EnginePhase.FAILED and view.pid is None)
    assert door.held == []
    for _ in range(2):
        await door.asked()


async def test_a_load_that_is_stopped_keeps_its_bytes_until_the_process_is_gone(make_pool):
    door = Door()
    memory = MemorySide(admission=door, footprint_bytes=lambda _: 0)
    pool = make_pool(Script(load_seconds=30), memory=memory)
    pool.set_wanted({"tiny-0": make_want()})
    door.answers.put_nowait(None)
    await await_view(pool, lambda view: view.progress_done_bytes == 40)
    pool.set_wanted({})
    assert len(door.held) == 1
    await await_gone(pool)
    assert door.held == []


async def test_an_unloaded_engine_asks_for_memory_again_before_it_comes_back(make_pool):
    door = Door()
    pool = make_pool(memory=MemorySide(admission=door))
    pool.set_wanted({"tiny-0": make_want()})
    door.answers.put_nowait(None)
    await await_ready(pool)
    assert pool.unload("tiny-0", "x")
    waiter = asyncio.create_task(pool.lease_ready("tiny", wait_seconds=60))
    for _ in range(2):
        await door.asked()
    assert (only(pool).pid, waiter.done()) == (None, False)
    door.answers.put_nowait(refuse(Retryable.NO))
    refusal = await asyncio.wait_for(waiter, 5)
    assert isinstance(refusal, Refusal)
    assert "InsufficientMemory" in refusal.message
    assert "9.0 GiB" in refusal.message


async def test_a_request_waits_for_an_engine_that_waits_for_memory_within_its_time(make_pool):
    door, added = Door(), [0.0]
    pool = make_pool(memory=MemorySide(admission=door), clock=lambda: time.monotonic() + added[0])
    pool.set_wanted({"tiny-0": make_want()})
    door.answers.put_nowait(None)
    await await_ready(pool)
    assert pool.unload("tiny-0", "x")
    waiter = asyncio.create_task(pool.lease_ready("tiny", wait_seconds=60))
    await await_view(
        pool, lambda view: view.reason == "WaitingForMemory" and view.freed_bytes is not None
    )
    for _ in range(3):
        await asyncio.sleep(0)
    # No process, so no heartbeat and no further change: only the clock can end the wait.
    added[0] = 61
    refusal = await asyncio.wait_for(waiter, 5)
    assert isinstance(refusal, Refusal)
    assert f"WaitingForMemory: its load needs {NEED}" in refusal.message


async def test_a_fault_of_the_memory_side_is_told_and_asked_again(make_pool):
    class Broken:
        asked = 0
        again = asyncio.Event()

        async def admit_load(self, engine, need_bytes, *, wait_seconds=0.0):
            self.asked += 1
            if self.asked == 2:
                self.again.set()
            raise ZeroDivisionError("as scripted")

    broken = Broken()
    pool = make_pool(memory=MemorySide(admission=broken))
    pool.set_wanted({"tiny-0": make_want()})
    view = await await_view(pool, lambda view: "as scripted" in view.message)
    assert view.reason == "WaitingForMemory"
    await asyncio.wait_for(broken.again.wait(), 10)


async def test_the_engine_is_told_its_shape_its_limits_and_the_wired_limit(make_pool, tmp_path):
    record = tmp_path / "record"
    memory = MemorySide(wired_limit_bytes=lambda _: 123)
    pool = make_pool(Script(record=str(record)), memory=memory, fused=True)
    pool.set_wanted({"tiny-0": make_want(prefill={"chunkTokens": 128})})
    first = Limits(budget_bytes=1000, margin_bytes=10, prefill_turn=False)
    assert not pool.send("tiny-0", first), "there is no process yet"
    await await_ready(pool)
    load = commands(record)[0]
    assert ModelShape.model_validate_json(load["shape"]) == SHAPE
    assert (load["fused"], load["wired_limit_bytes"], load["chunk_tokens"]) == (True, 123, 128)
    assert load["limits"]["budget_bytes"] == 1000
    assert load["limits"]["prefill_turn"] is False


async def test_limits_are_passed_on_and_an_engine_that_starts_again_begins_under_them(
    make_pool, tmp_path
):
    record = tmp_path / "record"
    pool = make_pool(Script(record=str(record), triggers={7: "exit:3"}))
    pool.set_wanted({"tiny-0": make_want()})
    await await_ready(pool)
    assert pool.send("tiny-0", Limits(budget_bytes=5000))
    assert pool.send("tiny-0", Reclaim())
    assert not pool.send("other", Reclaim())
    with pytest.raises(TypeError, match="Shutdown"):
        pool.send("tiny-0", Shutdown())
    one = pool.lease("tiny")
    await read_stream(one.generate(greedy("a", [7])))
    one.release()
    assert not pool.send("tiny-0", Reclaim())
    await await_ready(pool)
    told = [(c["type"], c.get("budget_bytes")) for c in commands(record)]
    assert told[:4] == [("load", None), ("limits", 5000), ("reclaim", None), ("generate", None)]
    assert commands(record)[4]["limits"]["budget_bytes"] == 5000


async def test_an_abort_reaches_the_row_and_leaves_its_neighbour_alone(make_pool):
    pool = make_pool(Script(step_seconds=0.01, triggers={7: "hang"}))
    pool.set_wanted({"tiny-0": make_want()})
    await await_ready(pool)
    one = pool.lease("tiny")
    victim, good = one.generate(greedy("bad", [7])), one.generate(greedy("good", [1]))
    await await_view(pool, lambda view: view.running == 2)
    words = Abort(request_id="bad", code="prefill_memory_exceeded", message="for the node's sake")
    assert pool.send("tiny-0", words)
    end = ending(await read_stream(victim, 5))
    assert (end.code, end.message) == ("prefill_memory_exceeded", "for the node's sake")
    assert token_ids(await read_stream(good)) == hash_tokens([1], 8, Script())


@pytest.mark.parametrize("granted", [True, False])
async def test_measurements_and_asks_are_told_and_answers_come_through(make_pool, granted):
    pool = make_pool(Script(step_seconds=0.01, triggers={7: "ask:4096"}))
    told: asyncio.Queue = asyncio.Queue()
    pool.on_memory_event(lambda name, event: told.put_nowait((name, event)))
    pool.set_wanted({"tiny-0": make_want()})
    await await_ready(pool)
    one = pool.lease("tiny")
    stream = one.generate(greedy("a", [7]))
    name, measured = await asyncio.wait_for(told.get(), 5)
    _, ask = await asyncio.wait_for(told.get(), 5)
    assert name == "tiny-0"
    assert isinstance(measured, ChunkMeasured)
    assert (measured.predicted_bytes, measured.actual_bytes) == (1000, 1200)
    assert ask == Ask(request_id="a", more_bytes=4096)
    pool.send("tiny-0", Answer(request_id="a", granted=granted, message="no room"))
    events = await read_stream(stream, 5)
    if granted:
        assert token_ids(events) == hash_tokens([7], 8, Script())
    else:
        assert ending(events).message == "no room"
