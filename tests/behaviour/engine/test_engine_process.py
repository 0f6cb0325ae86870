"""The engine process: clean ends, faults that stay alone, no orphans."""

import asyncio
import os
import resource
import shutil
import signal
import subprocess
import sys
import time

import pytest

from manifests.errors import Code, Refusal
from node_agent.engine.messages import (
    Cancel,
    Failed,
    Finished,
    Heartbeat,
    Hello,
    Limits,
    Load,
    LoadFailed,
    PrefillProgress,
    Tokens,
)
from node_agent.pool.pool import EnginePool
from node_agent.pool.process import Launcher
from node_agent.pool.settings import PoolSettings
from tests.support.mlx_engine import BareEngine, await_gone, bare_engine, find_preload
from tests.support.pools import (
    FixedFiles,
    await_ready,
    ending,
    greedy,
    make_want,
    read_stream,
    token_ids,
)
from tests.support.tiny_models import tiny_model

pytestmark = pytest.mark.processes


def test_ten_shutdowns_after_work_end_with_exit_code_0():
    """A thread that ran a model aborts the process at exit unless its streams are cleared."""
    codes = []
    for index in range(10):
        engine = BareEngine()
        engine.load(tiny_model("llama"))
        if index % 2:
            engine.run(greedy("a", [1, 2, 3]))
        else:
            engine.send(greedy("unfinished", list(range(900)), 500))
        codes.append(engine.stop())
    assert codes == [0] * 10


def test_an_engine_that_imports_mlx_for_ever_does_not_look_idle():
    """B51: until the load has begun, heartbeats tell how long it has been starting."""
    engine = BareEngine()
    beat = engine.await_event(Heartbeat)
    while beat.step_seconds == 0:
        beat = engine.await_event(Heartbeat)
    engine.load(tiny_model("llama"))
    while beat.step_seconds > 0:
        beat = engine.await_event(Heartbeat)
    assert engine.stop() == 0


def test_sigterm_is_a_clean_shutdown_that_answers_what_runs():
    engine = BareEngine()
    engine.load(tiny_model("llama"))
    engine.send(greedy("a", [1, 2, 3], 100_000))
    engine.await_event(Tokens)
    engine.process.send_signal(signal.SIGTERM)
    failed = engine.await_event(Failed)
    assert (failed.request_id, failed.code) == ("a", Code.SHUTTING_DOWN)
    assert engine.stop() == 0


def test_a_shutdown_during_the_load_is_clean():
    engine = BareEngine()
    engine.send(Load(model_path=str(tiny_model("llama"))))
    assert engine.stop() == 0


def test_bad_requests_fail_alone():
    with bare_engine(tiny_model("llama")) as engine:
        rows = engine.run(
            greedy("good", [1, 2, 3]),
            greedy("outside", [1, 1024]),
            greedy("negative", [-1]),
            greedy("empty", []),
            greedy("no-output", [1], 0),
        )
        for name in ("outside", "negative", "empty", "no-output"):
            end = ending(rows[name])
            assert isinstance(end, Failed)
            assert (end.code, end.retryable) == (Code.INVALID_VALUE, "no")
        assert "1024 is outside the model's vocabulary of 1024" in ending(rows["outside"]).message
        assert token_ids(rows["good"]) == token_ids(engine.run(greedy("b", [1, 2, 3]))["b"])


def test_rows_are_cancelled_while_running_prefilling_and_waiting():
    """B53; the slots are free afterwards."""
    with bare_engine(tiny_model("llama"), max_running=2, chunk_tokens=16) as engine:
        names = ("decoding", "prefilling", "waiting")
        engine.send(
            greedy("decoding", [1, 2], 100_000),
            greedy("prefilling", [3] * 4000, 5),
            greedy("waiting", [4], 5),
        )
        for event in engine.events:
            if isinstance(event, PrefillProgress) and event.request_id == "prefilling":
                break
        engine.send(*(Cancel(request_id=name) for name in (*names, "unknown")))
        ended: dict[str, str] = {}
        for event in engine.events:
            if isinstance(event, Finished):
                ended[event.request_id] = event.reason
            if len(ended) == 3:
                break
        assert ended == dict.fromkeys(names, "cancelled")
        assert ending(engine.run(greedy("after", [5], 3))["after"]).reason == "length"


def test_prefill_progress_adds_up_to_the_prompt():
    with bare_engine(tiny_model("llama"), chunk_tokens=16) as engine:
        events = engine.run(greedy("a", [7] * 100, 2))["a"]
        steps = [event for event in events if isinstance(event, PrefillProgress)]
        assert sum(step.chunk_tokens for step in steps) == 100
        assert [step.done_tokens for step in steps] == [16, 32, 48, 64, 80, 96, 100]
        assert all(step.seconds > 0 for step in steps[:-1])


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda path: (path / "model.safetensors").unlink(), "not complete"),
        (lambda path: (path / "config.json").write_text("{"), "JSON"),
        (lambda path: (path / "model.safetensors").write_bytes(b"\x08" * 64), "Error"),
    ],
)
def test_a_directory_that_cannot_load_is_told_in_words(tmp_path, spoil, words):
    model = tmp_path / "model"
    shutil.copytree(tiny_model("llama"), model)
    spoil(model)
    engine = BareEngine()
    engine.send(Load(model_path=str(model)))
    failed = engine.await_event(LoadFailed)
    assert words in failed.message
    assert engine.stop() != 0


def test_an_engine_that_leaves_takes_what_it_is_sent_until_we_close_too(tmp_path):
    """Else an agent that writes just then is told of a closed socket and never reads why."""
    engine = BareEngine()
    engine.send(Load(model_path=str(tmp_path)))
    while engine.socket.recv(1 << 16):
        pass
    engine.send(Limits(), Limits())
    assert engine.stop() == 3


def test_half_precision_experts_on_a_cpu_fail_at_load_with_the_remedy(tmp_path):
    """[GatherMM::eval] takes only float32 on a CPU."""
    model = tmp_path / "model"
    shutil.copytree(tiny_model("qwen3_moe"), model)
    convert = (
        "import sys, mlx.core as mx; p = sys.argv[1]; w = mx.load(p);"
        "mx.save_safetensors(p, {k: v.astype(mx.bfloat16) for k, v in w.items()},"
        " {'format': 'mlx'})"
    )
    weights = str(model / "model.safetensors")
    subprocess.run([sys.executable, "-c", convert, weights], check=True, timeout=60)
    engine = BareEngine()
    engine.send(Load(model_path=str(model)))
    message = engine.await_event(LoadFailed).message
    assert "use a float32 or a quantized copy" in message
    assert engine.stop() != 0


def test_importing_mlx_lm_leaves_the_limit_on_open_files_alone():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with bare_engine(tiny_model("llama")) as engine:
        after = resource.prlimit(engine.process.pid, resource.RLIMIT_NOFILE)
        # Without root the hard limit cannot be raised again; the soft one must be.
        assert after[0] == min(before[0], after[1])
        assert after[0] != 2048 or before[0] == 2048


def test_a_broken_frame_ends_the_engine():
    engine = BareEngine()
    engine.await_event(Hello)
    engine.socket.sendall(b"\xff\xff\xff\xff")
    assert engine.process.wait(5) == 4
    engine.stop()


def _real_pool(tmp_path) -> EnginePool:
    settings = PoolSettings(
        log_directory=tmp_path, launcher=Launcher(preload=find_preload()), tick_seconds=0.05
    )
    return EnginePool(settings, FixedFiles())


async def test_a_killed_real_engine_fails_its_streams_and_returns(tmp_path):
    pool = _real_pool(tmp_path)
    pool.set_wanted({"tiny-0": make_want(source={"path": str(tiny_model("llama"))})})
    view = await await_ready(pool)
    lease = pool.lease("tiny")
    assert not isinstance(lease, Refusal)
    expected = token_ids(await read_stream(lease.generate(greedy("before", [1, 2]))))
    streams = [lease.generate(greedy(f"row-{i}", [i + 1], 100_000)) for i in range(3)]
    async for event in streams[0]:
        if isinstance(event, Tokens):
            break
    os.kill(view.pid, signal.SIGKILL)
    killed_at = time.monotonic()
    for stream in streams:
        assert ending(await read_stream(stream)).code == Code.ENGINE_DIED
    assert time.monotonic() - killed_at < 1
    again = await await_ready(pool)
    assert again.restarts == 1
    lease = pool.lease("tiny")
    assert not isinstance(lease, Refusal)
    assert token_ids(await read_stream(lease.generate(greedy("after", [1, 2])))) == expected
    lease.release()
    await pool.close(1)


_PARENT = """
import asyncio, sys
from pathlib import Path
from tests.support.pools import *
from node_agent.engine.messages import PrefillProgress
from node_agent.pool.settings import PoolSettings
from node_agent.pool.process import Launcher
from node_agent.pool.pool import EnginePool
from tests.support.mlx_engine import find_preload

async def main(model, logs, when):
    launcher = Launcher(preload=find_preload())
    pool = EnginePool(PoolSettings(log_directory=Path(logs), launcher=launcher), FixedFiles())
    pool.set_wanted({"tiny-0": make_want(source={"path": model})})
    if when == "loading":
        view = await await_view(pool, lambda view: view.heartbeat is not None)
        print(view.pid, flush=True)
    else:
        view = await await_ready(pool)
        prompt = [index % 900 for index in range(200_000)]
        async for event in pool.lease("tiny").generate(greedy("a", prompt, 5)):
            if isinstance(event, PrefillProgress):
                print(view.pid, flush=True)
    await asyncio.sleep(600)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize("when", ["loading", "prefilling"])
async def test_no_engine_outlives_a_killed_agent(tmp_path, when):
    """B70: kill -9 of the agent ends its engines within 2 s, whatever they are doing."""
    model = str(tiny_model("llama", context=262_144))
    parent = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        _PARENT,
        model,
        str(tmp_path),
        when,
        stdout=asyncio.subprocess.PIPE,
    )
    assert parent.stdout is not None
    pid = int(await asyncio.wait_for(parent.stdout.readline(), 60))
    parent.kill()
    await parent.wait()
    took_seconds = await await_gone(pid, 2)
    assert took_seconds < 2
