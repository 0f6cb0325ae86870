"""The small parts of the pool: heartbeat judgement, rates, streams, environment, log."""

import asyncio
import math
import os
import sys
from pathlib import Path

import pytest

from manifests.errors import Code
from node_agent.engine.messages import Failed, Finished, Heartbeat, PrefillProgress, Tokens
from node_agent.pool.engine_log import open_log, rotate_log
from node_agent.pool.lifecycle import Phase
from node_agent.pool.process import Launcher, describe_exit, plan_environment
from node_agent.pool.rates import RateMeter
from node_agent.pool.streams import RowStream, StreamTable
from node_agent.pool.watch import Pulse, WatchLimits, can_progress, find_stall

LIMITS = WatchLimits()


def beat(step_seconds: float) -> Heartbeat:
    return Heartbeat(
        steps=1,
        step_seconds=step_seconds,
        running=0,
        waiting=0,
        active_bytes=0,
        cache_bytes=0,
        peak_bytes=0,
    )


def pulse(phase: Phase, step_seconds: float = 0, age: float = 0, phase_seconds: float = 0):
    return Pulse(phase, phase_seconds, beat(step_seconds), age)


@pytest.mark.parametrize(
    ("one", "words"),
    [
        (pulse(Phase.READY), ""),
        (pulse(Phase.READY, age=10.5), "no heartbeat for 10 s"),
        (pulse(Phase.READY, step_seconds=119), ""),
        (pulse(Phase.READY, step_seconds=121), "one step has been running for 121 s"),
        (pulse(Phase.DRAINING, step_seconds=121), "one step has been running for 121 s"),
        (pulse(Phase.LOADING, step_seconds=121), ""),
        (pulse(Phase.LOADING, step_seconds=601), "the load has not moved for 601 s"),
        (pulse(Phase.LOADING, age=11), "no heartbeat for 11 s"),
        (pulse(Phase.SPAWNING, phase_seconds=61), "no hello for 60 s after the start"),
        (pulse(Phase.SPAWNING, age=100), ""),
        (pulse(Phase.RESOLVING, age=1000, phase_seconds=1000), ""),
        (pulse(Phase.STOPPING, age=1000), ""),
        (pulse(Phase.BACKOFF, age=1000), ""),
    ],
)
def test_a_stall_is_judged_by_phase_and_heartbeat(one, words):
    assert find_stall(one, LIMITS) == words


def test_doubt_comes_before_the_kill():
    assert can_progress(pulse(Phase.READY), LIMITS)
    assert not can_progress(pulse(Phase.READY, step_seconds=31), LIMITS)
    assert not can_progress(pulse(Phase.READY, age=6), LIMITS)
    assert not can_progress(pulse(Phase.DRAINING), LIMITS)
    assert not can_progress(Pulse(Phase.READY, 0, None, 0), LIMITS)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def decode(meter: RateMeter, clock: Clock, name: str, count: int, seconds: float) -> None:
    """Let a request's tokens come at an even distance."""
    meter.note_tokens(name, 1)
    for _ in range(count):
        clock.now += seconds
        meter.note_tokens(name, 1)
    meter.note_end(name)


def test_prefill_rate_weighs_chunks_by_their_size():
    meter = RateMeter(Clock())
    meter.note_prefill(512, 1.0)
    meter.note_prefill(2, 1.0)
    assert meter.prefill_tokens_per_second > 500
    for _ in range(10):
        meter.note_prefill(512, 4.0)
    assert math.isclose(meter.prefill_tokens_per_second, 128, rel_tol=0.01)
    meter.note_prefill(1, 0.0)


def test_a_cold_first_prompt_is_no_rate_and_does_not_last():
    meter = RateMeter(Clock())
    meter.note_prefill(40, 4.0)
    assert meter.prefill_tokens_per_second == 0
    meter.note_prefill(512, 0.5)
    assert meter.prefill_tokens_per_second > 900


def test_what_was_measured_long_ago_counts_for_little_beside_what_is_measured_now():
    clock = Clock()
    meter = RateMeter(clock)
    meter.note_prefill(5000, 50.0)
    assert math.isclose(meter.prefill_tokens_per_second, 100)
    clock.now = 3600.0
    assert math.isclose(meter.prefill_tokens_per_second, 100)
    meter.note_prefill(40, 0.04)
    assert math.isclose(meter.prefill_tokens_per_second, 1000, rel_tol=0.01)


def test_decode_rate_is_one_requests_own_whatever_idles_or_runs_beside_it():
    clock = Clock()
    meter = RateMeter(clock)
    decode(meter, clock, "a", 40, 0.1)
    clock.now += 100.0
    decode(meter, clock, "b", 40, 0.1)
    assert math.isclose(meter.decode_tokens_per_second, 10)
    # Four at once get a token each in the time of a step.
    for _ in range(40):
        for name in "cdef":
            meter.note_tokens(name, 1)
        clock.now += 0.1
    assert math.isclose(meter.decode_tokens_per_second, 10)


def test_a_prompt_that_is_fed_in_between_does_not_slow_the_decode_rate():
    clock = Clock()
    meter = RateMeter(clock)
    for index in range(80):
        meter.note_tokens("a", 1)
        clock.now += 0.1
        if index % 4 == 0:
            meter.note_prefill(512, 5.0)
            clock.now += 5.0
    assert math.isclose(meter.decode_tokens_per_second, 10)


def test_the_depth_of_a_prefill_rate_is_told_with_it():
    meter = RateMeter(Clock())
    meter.note_prefill(512, 1.0, done_tokens=512)
    assert meter.prefill_context_tokens == 256
    for done in range(5120, 10240, 512):
        meter.note_prefill(512, 4.0, done_tokens=done)
    assert 4500 < meter.prefill_context_tokens < 10240


def test_tokens_that_come_in_one_read_are_no_sign_of_speed():
    clock = Clock()
    meter = RateMeter(clock)
    for _ in range(200):
        meter.note_tokens("a", 1)
        meter.note_tokens("a", 1)
        clock.now += 0.2
    assert math.isclose(meter.decode_tokens_per_second, 10, rel_tol=0.05)


def progress(name: str) -> PrefillProgress:
    return PrefillProgress(
        request_id=name, done_tokens=1, total_tokens=1, chunk_tokens=1, seconds=0.1
    )


def done(name: str) -> Finished:
    return Finished(request_id=name, reason="stop", prompt_tokens=1, completion_tokens=1)


def tokens(name: str) -> Tokens:
    return Tokens(request_id=name, ids=[1])


def test_a_table_tells_what_is_left_of_its_prompts():
    table = StreamTable()
    for name in "ab":
        table.add(RowStream(name, lambda _: None, prompt_tokens=100))
    assert table.prompt_tokens_left == 200
    table.deliver(
        PrefillProgress(
            request_id="a", done_tokens=70, total_tokens=100, chunk_tokens=10, seconds=0.1
        )
    )
    assert table.prompt_tokens_left == 130
    table.deliver(tokens("a"))
    assert table.prompt_tokens_left == 100
    table.deliver(done("b"))
    assert table.prompt_tokens_left == 0


def make_table(*names: str) -> tuple[StreamTable, list[RowStream], list[str]]:
    table, cancelled = StreamTable(), []
    streams = [RowStream(name, cancelled.append) for name in names]
    for stream in streams:
        table.add(stream)
    return table, streams, cancelled


async def test_a_table_counts_waiting_and_running_rows_exactly():
    table, _, _ = make_table("a", "b", "c")
    assert (table.running, table.waiting) == (0, 3)
    assert table.deliver(progress("a"))
    assert not table.deliver(tokens("a"))
    assert table.deliver(tokens("b"))
    assert (table.running, table.waiting) == (2, 1)
    # c is cancelled while it waits: it never ran, so running stays.
    assert table.deliver(done("c"))
    assert table.deliver(done("a"))
    assert not table.deliver(tokens("a"))
    assert (table.running, table.waiting, len(table)) == (1, 0, 1)
    table.fail_all(Code.ENGINE_DIED, "gone")
    assert (table.running, table.waiting, len(table)) == (0, 0, 0)


async def test_a_stream_ends_once_and_cancel_after_the_end_does_nothing():
    table, (stream,), cancelled = make_table("a")
    table.deliver(tokens("a"))
    stream.cancel()
    table.deliver(done("a"))
    table.fail_all(Code.ENGINE_DIED, "gone")
    stream.put(tokens("a"))
    stream.cancel()
    assert [event async for event in stream] == [tokens("a"), done("a")]
    assert cancelled == ["a"]
    assert stream.ended


async def test_a_waiting_reader_is_woken_by_the_failure_of_its_engine():
    table, (stream,), _ = make_table("a")

    async def read():
        return [event async for event in stream]

    reader = asyncio.create_task(read())
    await asyncio.sleep(0)
    table.fail_all(Code.ENGINE_DIED, "engine x died")
    (end,) = await asyncio.wait_for(reader, 1)
    assert isinstance(end, Failed)
    assert (end.code, end.retryable, end.message) == ("engine_died", "elsewhere", "engine x died")


@pytest.mark.parametrize(
    ("returncode", "words"),
    [
        (0, "exit code 0"),
        (3, "exit code 3"),
        (-9, "killed by signal 9 (SIGKILL)"),
        (-6, "killed by signal 6 (SIGABRT)"),
        (-200, "killed by signal 200"),
    ],
)
def test_exits_are_told_in_words(returncode, words):
    assert describe_exit(returncode) == words


def test_an_engine_gets_no_credentials_and_no_network():
    inherited = {"PATH": "/bin", "HF_TOKEN": "x", "OPENAI_API_KEY": "x", "PYTHONPATH": "/other"}
    launcher = Launcher(environment={"EXTRA": "1"})
    environment = plan_environment(launcher, inherited)
    assert "HF_TOKEN" not in environment
    assert "OPENAI_API_KEY" not in environment
    assert environment["PATH"] == "/bin"
    assert environment["HF_HUB_OFFLINE"] == "1"
    assert environment["EXTRA"] == "1"
    root, other = environment["PYTHONPATH"].split(os.pathsep)
    assert (Path(root) / "node_agent").is_dir()
    assert other == "/other"
    assert "LD_PRELOAD" not in environment


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's malloc")
def test_an_engine_gives_freed_memory_back_and_a_users_own_setting_stays():
    environment = plan_environment(Launcher(), {"MALLOC_TRIM_THRESHOLD_": "1"})
    assert environment["MALLOC_MMAP_THRESHOLD_"] == "4194304"
    assert environment["MALLOC_TRIM_THRESHOLD_"] == "1"


@pytest.mark.skipif(sys.platform != "linux", reason="LD_PRELOAD is Linux")
def test_a_preload_goes_before_what_was_preloaded_already():
    launcher = Launcher(preload=Path("/lib/libopenblas.so.0"))
    environment = plan_environment(launcher, {"LD_PRELOAD": "/lib/other.so"})
    assert environment["LD_PRELOAD"] == "/lib/libopenblas.so.0:/lib/other.so"


def test_a_log_that_outgrew_its_limit_is_kept_once_and_written_on(tmp_path):
    path = tmp_path / "logs" / "one.log"
    descriptor = open_log(path)
    try:
        os.write(descriptor, b"x" * 100)
        assert not rotate_log(path, max_bytes=100)
        os.write(descriptor, b"y")
        assert rotate_log(path, max_bytes=100)
        os.write(descriptor, b"after")
    finally:
        os.close(descriptor)
    assert path.read_bytes() == b"after"
    kept = path.with_name("one.log.1")
    assert kept.read_bytes() == b"x" * 100 + b"y"
    assert {one.stat().st_mode & 0o777 for one in (path, kept)} == {0o600}
    assert not rotate_log(tmp_path / "missing.log")
