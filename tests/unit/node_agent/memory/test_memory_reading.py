"""High-water marks: what an engine holds is not forgotten after one low read."""

from dataclasses import replace

from manifests.sizing.estimate import ENGINE_BASE_BYTES
from manifests.units import GIB
from node_agent.host.base import HostMemory
from node_agent.memory.reading import EngineUse, MemoryReading, next_reading

HOST = HostMemory(1000, 500, 0, 0)


def use(
    footprint: int | None,
    mlx: int = 0,
    *,
    pid: int = 1,
    weights: int = 0,
    working_set: int = 0,
    busy: bool = False,
) -> EngineUse:
    return EngineUse("a", pid, footprint, mlx, weights, working_set, busy)


def read(*uses: EngineUse, every_seconds: float = 1.0) -> MemoryReading:
    reading: MemoryReading | None = None
    for count, item in enumerate(uses):
        reading = next_reading(reading, HOST, (item,), count * every_seconds)
    assert reading is not None
    return reading


def test_the_larger_of_footprint_and_mlx_counts() -> None:
    assert read(use(30, 46)).used_bytes == 46
    assert read(use(110, 46)).used_bytes == 110


def test_a_read_in_the_trough_after_a_cache_clear_is_not_believed() -> None:
    assert read(use(100), use(20)).used_bytes == 100


def test_the_mark_is_short() -> None:
    assert read(use(100), use(20), use(20), use(20)).used_bytes == 20


def test_a_mark_holds_through_a_burst_of_looks() -> None:
    """Each request that begins to wait has memory measured at once."""
    burst = [use(100), *[use(20)] * 30]
    assert read(*burst, every_seconds=0.02).used_bytes == 100
    assert read(*burst[:4], every_seconds=0.35).used_bytes == 20
    assert len(read(*burst, every_seconds=0.1).engines["a"].samples) <= 7


def test_a_new_process_starts_afresh() -> None:
    assert read(use(100), use(20, pid=2)).used_bytes == 20


def test_an_engine_missing_from_the_sample_holds_nothing() -> None:
    assert next_reading(read(use(100)), HOST, (), 1.0).used_bytes == 0


def test_an_unreadable_engine_is_not_taken_for_an_empty_one() -> None:
    reading = read(use(100), use(None), use(None), use(None), use(None))
    assert reading.used_bytes == 100


def test_idle_use_is_the_lowest_since_the_model_loaded() -> None:
    reading = read(use(5), use(60), use(70, weights=50), use(90, weights=50), use(75, weights=50))
    assert reading.idle_bytes == 70


def test_an_engine_first_seen_at_work_is_not_taken_to_hold_that_much_at_rest() -> None:
    """Else its next large prompt would be told that it can never fit."""
    at_work = read(use(1 * GIB), use(9 * GIB, weights=2 * GIB, busy=True))
    assert at_work.idle_bytes == 2 * GIB + ENGINE_BASE_BYTES
    assert at_work.engines["a"].overhead_bytes == 0
    rested = next_reading(at_work, HOST, (use(2 * GIB + 700, weights=2 * GIB),), 2.0)
    assert rested.idle_bytes == 2 * GIB + 700
    assert rested.engines["a"].overhead_bytes == 700
    again = next_reading(rested, HOST, (use(9 * GIB, weights=2 * GIB, busy=True),), 3.0)
    assert again.idle_bytes == 2 * GIB + 700


def test_a_process_that_rests_higher_than_when_new_is_believed_after_a_few_samples() -> None:
    new, rest = use(60, weights=50), use(80, weights=50)
    busy = use(200, weights=50, busy=True)
    assert read(new, busy, busy).idle_bytes == 60
    assert read(new, busy, rest, rest).idle_bytes == 60
    assert read(new, busy, rest, rest, rest).idle_bytes == 80
    assert read(new, busy, rest, rest, rest, busy).idle_bytes == 80
    assert read(new, busy, rest, rest, rest, new).idle_bytes == 60


def test_an_engine_that_rests_for_a_moment_is_not_taken_to_hold_that_much_for_good() -> None:
    """It gives back what it freed within half a second; until then no prompt is refused for it."""
    new, rest = use(60, weights=50), use(80, weights=50)
    busy = use(200, weights=50, busy=True)
    assert read(new, busy, *[rest] * 20, every_seconds=0.02).idle_bytes == 60
    assert read(new, busy, rest, rest, rest, every_seconds=0.35).idle_bytes == 80


def test_idle_use_is_never_less_than_the_weights() -> None:
    assert read(use(60, weights=50), use(10, weights=50)).idle_bytes == 50


def test_the_devices_working_set_is_remembered_after_its_engine_left() -> None:
    left = next_reading(read(use(1, working_set=700)), HOST, (), 1.0)
    assert left.recommended_working_set_bytes == 700


def test_cached_blocks_are_held_but_are_no_part_of_what_an_engine_holds_at_rest() -> None:
    """So a full hot tier never makes a prompt impossible: it is given up for it."""
    cached = replace(use(900, weights=300), hot_bytes=500)
    history = read(cached, cached, cached).engines["a"]
    assert history.used_bytes == 900
    assert history.idle_bytes == 400
    # MLX sees neither the process's own part nor the blocks.
    assert history.overhead_bytes == 600
