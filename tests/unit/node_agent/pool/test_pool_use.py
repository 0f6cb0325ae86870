"""Who may be unloaded, since when nobody uses an engine, what an unload gave back."""

from dataclasses import replace

import pytest

from manifests.kinds.engine import EngineSpec
from manifests.sizing.estimate import ENGINE_BASE_BYTES, PrefillCase, estimate_prefill
from node_agent.engine.messages import Heartbeat, Limits, Loaded
from node_agent.pool.load_plan import are_weights_counted, plan_load, plan_load_bytes
from node_agent.pool.memory_side import MemorySide
from node_agent.pool.returned import WIRED_SETTLE_SECONDS, ReturnedMemory
from node_agent.pool.settings import PoolSettings
from node_agent.pool.use import Occupancy, Use, can_unload
from node_agent.sources.base import ModelFiles
from tests.support.pools import SHAPE, make_want

FREE = Occupancy(ready=True, pinned=False, leases=0, rows=0, woken=False, ready_seconds=0)


@pytest.mark.parametrize(
    ("changes", "may_go"),
    [
        ({}, True),
        ({"ready": False}, False),
        ({"pinned": True}, False),
        ({"leases": 1}, False),
        ({"rows": 1}, False),
        ({"woken": True, "ready_seconds": 9.9}, False),
        ({"woken": True, "ready_seconds": 10}, True),
    ],
)
def test_an_engine_may_go_when_nobody_uses_it_and_nobody_minds(changes, may_go):
    assert can_unload(replace(FREE, **changes), minimum_stay_seconds=10) is may_go


def test_the_idle_time_begins_when_the_last_lease_and_the_last_row_are_gone():
    now = [100.0]
    use = Use(lambda: now[0])
    now[0] = 103
    assert use.idle_seconds == 3
    use.take()
    assert use.idle_seconds is None
    use.note(rows=1)
    use.give_back()
    now[0] = 200
    use.note(rows=1)
    assert use.idle_seconds is None
    use.note(rows=0)
    now[0] = 201
    use.note(rows=0)
    assert use.idle_seconds == 1


def test_a_lease_counts_as_a_request_until_its_first_row():
    use = Use(lambda: 0.0)
    use.take()
    use.take()
    use.settle()
    assert (use.leases, use.idle_leases) == (2, 1)


def files(weights_bytes: int) -> ModelFiles:
    return ModelFiles(directory=None, weights_bytes=weights_bytes, fingerprint="f", shape=SHAPE)  # type: ignore[arg-type]


def spec(**changes) -> EngineSpec:
    return make_want(**changes).spec


@pytest.mark.parametrize(
    ("changes", "tokens", "chunk"),
    [
        ({}, 2048, 512),
        ({"context": {"maxTokens": 300}}, 300, 300),
        ({"context": {"minTokens": 9000}}, 4096, 512),
        ({"prefill": {"chunkTokens": 64}}, 2048, 64),
    ],
)
def test_a_load_needs_weights_the_process_and_one_minimum_context(changes, tokens, chunk):
    case = PrefillCase(prompt_tokens=tokens, chunk_tokens=chunk)
    context_bytes = estimate_prefill(SHAPE, case).peak_bytes
    needed = plan_load_bytes(spec(**changes), files(7 << 20), fused=False)
    assert needed == (7 << 20) + ENGINE_BASE_BYTES + context_bytes


def test_an_engine_is_told_what_its_gate_needs(tmp_path):
    settings = PoolSettings(log_directory=tmp_path, fused=True, cache_limit_bytes=5)
    limits = Limits(budget_bytes=9)
    load = plan_load(spec(prefill={"chunkTokens": 64}), files(1), settings, limits, 77)
    assert (load.chunk_tokens, load.cache_limit_bytes, load.fused) == (64, 5, True)
    assert (load.wired_limit_bytes, load.limits) == (77, limits)
    assert '"attention_heads":4' in load.shape


LOADED = Loaded(device="d", mlx_version="0", chunk_tokens=1, active_bytes=1000)
BEAT = Heartbeat(
    steps=1,
    step_seconds=0,
    running=0,
    waiting=0,
    active_bytes=1000,
    cache_bytes=0,
    peak_bytes=0,
)


@pytest.mark.parametrize(
    ("loaded", "beat", "counted_bytes", "counted"),
    [
        (None, BEAT, 1000, False),
        (LOADED, None, 1000, False),
        (LOADED, BEAT, 0, False),
        (LOADED, BEAT, 899, False),
        (LOADED, BEAT, 900, True),
        (LOADED, BEAT, None, True),
    ],
)
def test_weights_are_counted_once_the_memory_side_has_measured_them(
    loaded, beat, counted_bytes, counted
):
    assert are_weights_counted(loaded, beat, counted_bytes) is counted


def test_a_heartbeat_from_before_the_load_does_not_count():
    early = Heartbeat(
        steps=0, step_seconds=0, running=0, waiting=0, active_bytes=5, cache_bytes=0, peak_bytes=0
    )
    assert not are_weights_counted(LOADED, early, None)


def test_an_unload_gives_back_what_was_measured_or_what_the_engine_last_said():
    returned = ReturnedMemory("a", MemorySide())
    assert not returned.look(0)
    returned.begin(held_bytes=50)
    assert returned.freed_bytes is None
    assert returned.look(1)
    assert (returned.freed_bytes, returned.unwired_bytes) == (50, None)
    assert not returned.look(100)
    measured = ReturnedMemory("a", MemorySide(footprint_bytes=lambda _: 70))
    measured.begin(held_bytes=50)
    measured.look(1)
    assert measured.freed_bytes == 70


def test_wired_memory_is_compared_once_the_kernel_has_had_time():
    wired = [1000]
    returned = ReturnedMemory("a", MemorySide(wired_bytes=lambda: wired[0]))
    returned.begin(held_bytes=500)
    wired[0] = 950
    assert returned.look(10)
    assert not returned.look(10 + WIRED_SETTLE_SECONDS - 0.1)
    wired[0] = 400
    assert returned.look(10 + WIRED_SETTLE_SECONDS)
    assert returned.unwired_bytes == 600
    # The next unload begins a new account.
    returned.begin(held_bytes=1)
    assert (returned.freed_bytes, returned.unwired_bytes) == (None, None)
