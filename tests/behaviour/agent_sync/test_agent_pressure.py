"""A node over its hard mark: which requests end, in which order, and what is told (B44)."""

import asyncio
import time
from typing import Any

import pytest

from manifests.kinds.node import PressureLevel
from node_agent.engine.messages import Failed
from tests.support.api_host import ApiHost, condition
from tests.support.pools import await_ready, ending, greedy, read_stream
from tests.support.scripted_engine import Script

pytestmark = pytest.mark.processes

GIB = 1 << 30
# 16 GiB less the reserve of 4: hard from 11.4 GiB, emergency from 12.
OVER_HARD = Script(active_bytes=int(11.6 * GIB), chunk_seconds=0.1)
OVER_ALL = Script(active_bytes=13 * GIB, chunk_seconds=0.1)
LONG = list(range(64 * 400))


async def end_of(stream: Any) -> tuple[float, Failed]:
    last = ending(await read_stream(stream))
    assert isinstance(last, Failed)
    return time.monotonic(), last


async def test_prompts_end_one_by_one_newest_first_and_the_model_stays(
    api: ApiHost, agents: Any
) -> None:
    side = agents.start(script=OVER_HARD)
    await api.add_engine("tiny-0", "here")
    ready = await await_ready(side.pool)
    lease = side.pool.lease("tiny")
    streams = [lease.generate(greedy(name, LONG)) for name in ("first", "second", "third")]
    ends = await asyncio.gather(*(end_of(stream) for stream in streams))
    first, second, third = (at for at, _ in ends)
    assert second - third >= 0.9
    assert first - second >= 0.9
    for _, failed in ends:
        assert (failed.code, failed.retryable) == ("prefill_memory_exceeded", "later")
        assert "at or above the limit of 11.4 GiB" in failed.message
    view = side.pool.views()[0]
    assert (view.pid, view.restarts, view.rows) == (ready.pid, 0, ())
    told = await api.wait_any("events", lambda e: e["reason"] == "PrefillAborted")
    assert told["involvedObject"]["name"] == "tiny-0"
    await api.wait_any("events", lambda e: e["reason"] == "AdmissionPaused")
    await api.wait_any("events", lambda e: e["reason"] == "Reclaimed")
    pressed = lambda obj: condition(obj, "MemoryPressure") == ("True", "PressureHard")  # noqa: E731
    await api.wait("nodes", "here", pressed)


async def test_an_emergency_ends_all_prompts_together(api: ApiHost, agents: Any) -> None:
    side = agents.start(script=OVER_ALL)
    await api.add_engine("tiny-0", "here")
    await await_ready(side.pool)
    lease = side.pool.lease("tiny")
    streams = [lease.generate(greedy(name, LONG)) for name in ("first", "second", "third")]
    ends = await asyncio.gather(*(end_of(stream) for stream in streams))
    times = [at for at, _ in ends]
    assert max(times) - min(times) < 0.9
    assert side.guard.enforcer.level is PressureLevel.EMERGENCY
    assert side.pool.views()[0].restarts == 0
