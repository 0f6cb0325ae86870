"""Engines that die, hang or never come up: every request is answered, the engine returns."""

import os
import signal
import time
from pathlib import Path

import pytest

from manifests.errors import Code, Refusal
from manifests.kinds.engine import EnginePhase
from node_agent.engine.messages import Failed, Tokens
from node_agent.pool.watch import WatchLimits
from tests.support.pools import (
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

BAD = 7001


def lease(pool):
    taken = pool.lease("tiny")
    assert not isinstance(taken, Refusal), taken
    return taken


@pytest.mark.parametrize(
    ("action", "words"),
    [
        ("exit:3@2", "exit code 3"),
        ("signal:SIGKILL@2", "killed by signal 9 (SIGKILL)"),
        ("signal:SIGSEGV@2", "killed by signal 11 (SIGSEGV)"),
        ("raise@2", "exit code 1"),
    ],
)
async def test_a_dying_engine_fails_its_rows_and_returns_with_the_cause_in_words(
    make_pool, action, words
):
    """B51, B55."""
    pool = make_pool(Script(triggers={BAD: action}, step_seconds=0.01))
    pool.set_wanted({"tiny-0": make_want()})
    before = await await_ready(pool)
    one = lease(pool)
    bystander = one.generate(greedy("bystander", [1, 2, 3], max_tokens=100_000))
    culprit = one.generate(greedy("culprit", [BAD], max_tokens=100_000))
    for events in (await read_stream(bystander, 5), await read_stream(culprit, 5)):
        end = ending(events)
        assert isinstance(end, Failed)
        assert (end.code, end.retryable) == (Code.ENGINE_DIED, "elsewhere")
    one.release()
    failed = await await_view(pool, lambda view: view.restart_in_seconds is not None)
    assert failed.phase is EnginePhase.FAILED
    assert (failed.reason, failed.message) == ("EngineDied", words)
    assert failed.pid is None
    after = await await_ready(pool)
    assert after.restarts == 1
    assert after.pid != before.pid
    prompt = [5, 6]
    events = await read_stream(lease(pool).generate(greedy("next", prompt)))
    assert token_ids(events) == hash_tokens(prompt, 8, Script())


async def test_a_killed_engine_fails_its_streams_within_a_second(make_pool):
    pool = make_pool(Script(step_seconds=0.01))
    pool.set_wanted({"tiny-0": make_want()})
    view = await await_ready(pool)
    stream = lease(pool).generate(greedy("a", [1], max_tokens=100_000))
    async for event in stream:
        if isinstance(event, Tokens):
            break
    os.kill(view.pid, signal.SIGKILL)
    killed_at = time.monotonic()
    assert isinstance(ending(await read_stream(stream)), Failed)
    assert time.monotonic() - killed_at < 1


@pytest.mark.parametrize(
    ("action", "watch"),
    [
        ("signal:SIGSTOP@1", WatchLimits(heartbeat_seconds=0.6)),
        ("mute@1", WatchLimits(heartbeat_seconds=0.6)),
        ("stall@1", WatchLimits(step_seconds=0.6)),
    ],
)
async def test_a_stuck_engine_is_killed_and_replaced(make_pool, action, watch):
    """B51: a step that never ends, a stopped process, a silent one."""
    pool = make_pool(Script(triggers={BAD: action}, step_seconds=0.01), watch=watch)
    pool.set_wanted({"tiny-0": make_want()})
    before = await await_ready(pool)
    events = await read_stream(lease(pool).generate(greedy("a", [BAD], max_tokens=1000)), 10)
    assert ending(events).code == Code.ENGINE_STUCK
    stuck = await await_view(pool, lambda view: view.phase is EnginePhase.FAILED)
    assert stuck.reason == "EngineStuck"
    after = await await_ready(pool)
    assert after.pid != before.pid


async def test_a_suspect_engine_takes_no_new_requests_before_it_is_killed(make_pool):
    watch = WatchLimits(step_seconds=60, suspect_step_seconds=0.3)
    pool = make_pool(Script(triggers={BAD: "stall"}), watch=watch)
    pool.set_wanted({"tiny-0": make_want()})
    await await_ready(pool)
    lease(pool).generate(greedy("a", [BAD]))
    view = await await_view(pool, lambda view: not view.making_progress)
    assert (view.phase, view.accepting) == (EnginePhase.READY, False)
    refusal = pool.lease("tiny")
    assert isinstance(refusal, Refusal)
    assert refusal.code is Code.ENGINE_NOT_READY
    assert "not making progress" in refusal.message


async def test_an_agent_that_was_stopped_itself_does_not_blame_its_engines(make_pool):
    """After a SIGSTOP of the agent every heartbeat looks old; the engines are fine."""
    skipped = [0.0]
    pool = make_pool(clock=lambda: time.monotonic() + skipped[0])
    pool.set_wanted({"tiny-0": make_want()})
    before = await await_ready(pool)
    skipped[0] = 100.0
    pool.tick()
    view = pool.views()[0]
    assert (view.phase, view.pid, view.restarts) == (EnginePhase.READY, before.pid, 0)


async def test_one_failing_row_leaves_its_neighbours_alone(make_pool):
    pool = make_pool(Script(triggers={BAD: "fail@1"}))
    pool.set_wanted({"tiny-0": make_want()})
    await await_ready(pool)
    one = lease(pool)
    good, bad = one.generate(greedy("good", [1])), one.generate(greedy("bad", [BAD]))
    assert ending(await read_stream(bad)).code == "internal_error"
    assert token_ids(await read_stream(good)) == hash_tokens([1], 8, Script())


async def test_a_load_failure_is_told_and_retried_later(make_pool):
    pool = make_pool(Script(load_failed="no such weights"))
    pool.set_wanted({"tiny-0": make_want()})
    view = await await_view(pool, lambda view: view.restart_in_seconds is not None)
    assert (view.phase, view.reason) == (EnginePhase.FAILED, "LoadFailed")
    assert view.message == "no such weights"
    again = await await_view(pool, lambda view: view.restarts >= 1)
    assert again.want.name == "tiny-0"


async def test_a_command_that_cannot_start_is_a_failed_engine_and_not_a_hang(make_pool):
    pool = make_pool()
    launcher = pool._settings.launcher
    object.__setattr__(launcher, "command", ("/nonexistent/python",))
    pool.set_wanted({"tiny-0": make_want()})
    view = await await_view(pool, lambda view: view.phase is EnginePhase.FAILED)
    assert view.reason == "SpawnFailed"
    assert "did not start" in view.message


async def test_engine_output_lands_in_a_private_log_file(make_pool):
    pool = make_pool(Script(triggers={BAD: "raise"}))
    pool.set_wanted({"tiny-0": make_want()})
    await await_ready(pool)
    await read_stream(lease(pool).generate(greedy("a", [BAD])))
    path = pool.log_path("tiny-0")
    assert isinstance(path, Path)
    assert "raised" in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    assert pool.log_path("../tiny-0") is None
    assert pool.log_path("unknown") is None
