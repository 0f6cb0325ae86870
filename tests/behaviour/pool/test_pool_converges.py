"""The pool starts, replaces, drains and stops engines as the wanted set says."""

import asyncio
import json
import os
from pathlib import Path

import pytest

from manifests.errors import Code, Refusal
from manifests.kinds.engine import EnginePhase
from node_agent.engine.messages import Finished
from node_agent.pool.pool import EnginePool
from node_agent.pool.settings import PoolSettings
from node_agent.sources.base import SourceError
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
from tests.support.scripted_engine import Script, hash_tokens, scripted_launcher

pytestmark = pytest.mark.processes


def lease(pool):
    taken = pool.lease("tiny")
    assert not isinstance(taken, Refusal), taken
    return taken


async def test_an_engine_starts_serves_and_stops(make_pool):
    pool = make_pool()
    want = make_want()
    pool.set_wanted({"tiny-0": want})
    pool.set_wanted({"tiny-0": want})
    view = await await_ready(pool)
    assert view.loaded.device == "scripted"
    assert view.files.directory == Path("/nowhere")
    assert (view.restarts, view.reason) == (0, "")
    prompt = list(range(200))
    events = await read_stream(lease(pool).generate(greedy("a", prompt)))
    assert token_ids(events) == hash_tokens(prompt, 8, Script())
    end = ending(events)
    assert (end.reason, end.prompt_tokens, end.completion_tokens) == ("length", 200, 8)
    pool.set_wanted({})
    # The lease is still out, so the engine drains; its process ends with the grace.
    assert pool.views()[0].phase is EnginePhase.DRAINING


async def test_a_drained_engine_is_gone_with_its_process(make_pool):
    pool = make_pool()
    pool.set_wanted({"tiny-0": make_want()})
    view = await await_ready(pool)
    pool.set_wanted({})
    await await_gone(pool)
    with pytest.raises(ProcessLookupError):
        os.kill(view.pid, 0)


async def test_running_rows_finish_while_the_engine_drains(make_pool, tmp_path):
    gate = tmp_path / "gate"
    pool = make_pool(Script(gate=str(gate)))
    pool.set_wanted({"tiny-0": make_want()})
    await await_ready(pool)
    one = lease(pool)
    stream = one.generate(greedy("a", [1, 2]))
    pool.set_wanted({})
    await await_view(pool, lambda view: view.phase is EnginePhase.DRAINING)
    refusal = pool.lease("tiny")
    assert isinstance(refusal, Refusal)
    assert (refusal.code, "draining" in refusal.message) == (Code.ENGINE_NOT_READY, True)
    gate.touch()
    assert isinstance(ending(await read_stream(stream)), Finished)
    one.release()
    await await_gone(pool)


async def test_rows_that_outlive_the_grace_end_with_shutting_down(make_pool):
    pool = make_pool(Script(triggers={7: "hang"}))
    pool.set_wanted({"tiny-0": make_want()})
    await await_ready(pool)
    stream = lease(pool).generate(greedy("a", [7]))
    await pool.close(0.1)
    assert ending(await read_stream(stream)).code == Code.SHUTTING_DOWN
    assert pool.views() == ()


async def test_an_engine_that_ignores_shutdown_is_killed(make_pool):
    pool = make_pool(Script(triggers={7: "signal:SIGSTOP"}))
    pool.set_wanted({"tiny-0": make_want()})
    view = await await_ready(pool)
    lease(pool).generate(greedy("a", [7]))
    await await_view(pool, lambda view: view.running == 1)
    await pool.close(0)
    assert pool.views() == ()
    with pytest.raises(ProcessLookupError):
        os.kill(view.pid, 0)


@pytest.mark.parametrize("change", [{"uid": "other"}, {"context": {"maxTokens": 99}}])
async def test_a_changed_uid_or_spec_replaces_the_process(make_pool, change):
    pool = make_pool()
    pool.set_wanted({"tiny-0": make_want()})
    before = await await_ready(pool)
    want = make_want(**change)
    pool.set_wanted({"tiny-0": want})
    after = await await_view(pool, lambda view: view.accepting and view.want == want)
    assert after.pid != before.pid
    assert after.restarts == 0


async def test_a_new_generation_alone_keeps_the_process(make_pool):
    pool = make_pool()
    want = make_want()
    pool.set_wanted({"tiny-0": want})
    before = await await_ready(pool)
    newer = type(want)(want.name, want.uid, 2, want.spec)
    pool.set_wanted({"tiny-0": newer})
    after = await await_view(pool, lambda view: view.want.generation == 2)
    assert (after.pid, after.phase) == (before.pid, EnginePhase.READY)


async def test_the_least_busy_copy_is_leased_and_a_full_pool_refuses(make_pool):
    pool = make_pool(Script(triggers={7: "hang"}))
    batching = {"maxRunning": 1, "maxWaiting": 1}
    names = ("tiny-0", "tiny-1")
    pool.set_wanted({name: make_want(name, batching=batching) for name in names})
    for name in names:
        await await_ready(pool, name)
    taken = [lease(pool) for _ in range(4)]
    assert [one.view.want.name for one in taken] == ["tiny-0", "tiny-1", "tiny-0", "tiny-1"]
    refusal = pool.lease("tiny")
    assert isinstance(refusal, Refusal)
    assert (refusal.code, refusal.http_status) == (Code.QUEUE_FULL, 503)
    for index, one in enumerate(taken):
        one.generate(greedy(f"row-{index}", [7]))
    refused = pool.lease("tiny")
    assert isinstance(refused, Refusal)
    view = await await_view(pool, lambda view: view.running == 1)
    assert view.waiting == 1
    taken[0].release()
    taken[0].release()
    assert isinstance(pool.lease("tiny"), Refusal)


async def test_aliases_lead_to_the_engine_and_other_names_are_not_found(make_pool):
    pool = make_pool()
    pool.set_wanted({"tiny-0": make_want(aliases=["small"])})
    await await_ready(pool)
    assert not isinstance(pool.lease("small"), Refusal)
    refusal = pool.lease("huge")
    assert isinstance(refusal, Refusal)
    assert (refusal.code, refusal.hint) == (Code.MODEL_NOT_FOUND, "served here: tiny")


async def test_a_loading_engine_refuses_with_its_progress(make_pool):
    pool = make_pool(Script(load_seconds=30))
    pool.set_wanted({"tiny-0": make_want()})
    await await_view(pool, lambda view: view.progress_total_bytes == 100)
    refusal = pool.lease("tiny")
    assert isinstance(refusal, Refusal)
    assert refusal.code is Code.ENGINE_NOT_READY
    assert "loading, 40%" in refusal.message


async def test_cancel_reaches_the_engine_and_ends_the_row(make_pool, tmp_path):
    """B53: running and still waiting rows; the neighbour goes on."""
    record = tmp_path / "record"
    pool = make_pool(Script(step_seconds=0.01, record=str(record)))
    pool.set_wanted({"tiny-0": make_want(batching={"maxRunning": 2})})
    await await_ready(pool)
    one = lease(pool)
    running = one.generate(greedy("running", [1], max_tokens=100_000))
    neighbour = one.generate(greedy("neighbour", [2], max_tokens=40))
    waiting = one.generate(greedy("waiting", [3], max_tokens=100_000))
    await await_view(pool, lambda view: (view.running, view.waiting) == (2, 1))
    waiting.cancel()
    running.cancel()
    assert ending(await read_stream(running, 2)).reason == "cancelled"
    assert ending(await read_stream(waiting, 2)).reason == "cancelled"
    assert token_ids(await read_stream(neighbour)) == hash_tokens([2], 40, Script())
    running.cancel()
    commands = [json.loads(line) for line in record.read_text().splitlines()]
    cancelled = [c["request_id"] for c in commands if c["type"] == "cancel"]
    assert cancelled == ["waiting", "running"]
    assert (pool.views()[0].running, pool.views()[0].waiting) == (0, 0)


async def test_a_request_id_in_use_is_refused_without_harm(make_pool):
    pool = make_pool(Script(step_seconds=0.005))
    pool.set_wanted({"tiny-0": make_want()})
    await await_ready(pool)
    one = lease(pool)
    first, second = one.generate(greedy("same", [1])), one.generate(greedy("same", [1]))
    assert "in use" in ending(await read_stream(second)).message
    assert token_ids(await read_stream(first)) == hash_tokens([1], 8, Script())


class _Missing:
    def __init__(self, permanent: bool) -> None:
        self.permanent, self.asked = permanent, 0

    async def resolve(self, source, progress):
        self.asked += 1
        raise SourceError("no such directory: /nowhere", permanent=self.permanent)


async def test_a_missing_source_is_a_failed_engine_that_does_not_loop(make_pool, tmp_path):
    resolver = _Missing(permanent=True)
    settings = PoolSettings(
        log_directory=tmp_path, launcher=scripted_launcher(Script()), tick_seconds=0.01
    )
    pool = EnginePool(settings, resolver)
    pool.set_wanted({"tiny-0": make_want()})
    view = await await_view(pool, lambda view: view.phase is EnginePhase.FAILED)
    assert (view.reason, view.message) == ("SourceNotFound", "no such directory: /nowhere")
    assert view.restart_in_seconds > 50
    assert pool.log_path("tiny-0") is None
    for _ in range(20):
        pool.tick()
    assert resolver.asked == 1
    await pool.close(0)


async def test_an_unsupported_engine_type_says_so(make_pool):
    pool = make_pool()
    pool.set_wanted({"tiny-0": make_want(engineType="speculative")})
    view = await await_view(pool, lambda view: view.phase is EnginePhase.FAILED)
    assert view.reason == "EngineTypeNotSupported"


async def test_changes_are_told_once_per_turn_of_the_loop(make_pool):
    pool = make_pool()
    told: list[int] = []
    pool.on_change(lambda: told.append(1))
    names = [f"tiny-{index}" for index in range(3)]
    pool.set_wanted({name: make_want(name) for name in names})
    assert told == []
    await asyncio.sleep(0)
    assert told == [1]
