"""The writer: bounded, counted, and never in the engine's way."""

import threading
import time

import pytest

from node_agent.kvcache.ssd_budget import SsdBudget
from node_agent.kvcache.ssd_writer import SsdWriter, SubmitOutcome, WriterSettings
from tests.support.kv_blocks import block, long_chain, open_disk

ONE = long_chain(8, seed=1)
SECONDS = 20.0


@pytest.fixture
def disk(tmp_path):
    return open_disk(tmp_path / "cache")


def started(disk, settings: WriterSettings | None = None) -> SsdWriter:
    writer = SsdWriter(disk.store, settings or WriterSettings())
    writer.start()
    return writer


@pytest.fixture
def gate(disk, monkeypatch):
    """Holds every put until it is opened."""
    opened, entered, put = threading.Event(), threading.Event(), disk.store.put

    def held(made):
        entered.set()
        assert opened.wait(SECONDS)
        return put(made)

    monkeypatch.setattr(disk.store, "put", held)
    return opened, entered


def test_accepted_and_persisted_are_counted_apart(disk, gate) -> None:
    opened, entered = gate
    writer = started(disk)
    assert writer.submit(block(ONE, 0)) is SubmitOutcome.ACCEPTED
    assert entered.wait(SECONDS)
    stats = disk.stats.snapshot()
    assert (stats.saves, stats.saves_persisted) == (1, 0)
    opened.set()
    assert writer.flush(SECONDS)
    assert disk.stats.snapshot().saves_persisted == 1
    writer.close(SECONDS)


def test_a_full_queue_waits_a_little_and_then_drops_and_counts(disk, gate) -> None:
    opened, entered = gate
    size = block(ONE, 0).payload_bytes
    writer = started(disk, WriterSettings(queue_bytes=2 * size, wait_seconds=0.05))
    assert [writer.submit(block(ONE, index)) for index in range(2)] == ["accepted"] * 2
    assert entered.wait(SECONDS)
    before = time.monotonic()
    assert writer.submit(block(ONE, 2)) is SubmitOutcome.DROPPED
    assert 0.04 < time.monotonic() - before < 5
    assert writer.queued_bytes == 2 * size
    opened.set()
    assert writer.flush(SECONDS)
    stats = disk.stats.snapshot()
    assert (stats.saves, stats.saves_persisted, stats.drops) == (2, 2, 1)
    assert writer.queued_bytes == 0
    writer.close(SECONDS)


def test_a_block_stored_or_queued_is_not_written_again(disk, gate) -> None:
    opened, _ = gate
    writer = started(disk)
    writer.submit(block(ONE, 0))
    assert writer.submit(block(ONE, 0)) is SubmitOutcome.ALREADY
    opened.set()
    assert writer.flush(SECONDS)
    written = disk.stats.snapshot().written_bytes
    for _ in range(50):
        assert writer.submit(block(ONE, 0)) is SubmitOutcome.ALREADY
    writer.close(SECONDS)
    assert disk.stats.snapshot().written_bytes == written


def test_the_counter_of_written_bytes_is_what_was_written(disk) -> None:
    """B42."""
    writer = started(disk)
    for index in range(8):
        writer.submit(block(ONE, index, payload=40_000))
    writer.close(SECONDS)
    real = sum(path.stat().st_size for path in disk.blocks())
    assert disk.stats.snapshot().written_bytes == real > 8 * 80_000


def test_closing_writes_what_is_queued_and_takes_no_more(disk) -> None:
    writer = started(disk)
    for index in range(8):
        writer.submit(block(ONE, index))
    writer.close(SECONDS)
    assert len(disk.blocks()) == 8
    assert writer.submit(block(long_chain(1, seed=2), 0)) is SubmitOutcome.OFF
    assert list((disk.path / "owners").iterdir()) == []


def test_closing_takes_bounded_time_and_counts_what_it_drops(disk, gate) -> None:
    opened, entered = gate
    writer = started(disk)
    for index in range(8):
        writer.submit(block(ONE, index))
    assert entered.wait(SECONDS)
    closing = threading.Thread(target=writer.close, args=(0.05,))
    before = time.monotonic()
    closing.start()
    closing.join(SECONDS)
    assert time.monotonic() - before < 5
    opened.set()
    assert writer.flush(SECONDS)
    assert disk.stats.snapshot().drops == 7


def test_a_tier_that_is_off_takes_nothing_and_comes_back(tmp_path) -> None:
    disk = open_disk(tmp_path / "absent" / "cache")
    writer = started(disk, WriterSettings(probe_seconds=0.01))
    assert writer.submit(block(ONE, 0)) is SubmitOutcome.OFF
    (tmp_path / "absent").mkdir()
    disk.clock.now += 120
    deadline = time.monotonic() + SECONDS
    while not disk.link.state.ready and time.monotonic() < deadline:
        writer.flush(0.05)
        threading.Event().wait(0.01)
    assert writer.submit(block(ONE, 0)) is SubmitOutcome.ACCEPTED
    writer.close(SECONDS)
    assert len(disk.blocks()) == 1


def test_a_smaller_budget_is_brought_about_before_the_next_save(disk) -> None:
    writer = started(disk)
    for seed in range(50):
        writer.submit(block(long_chain(1, seed=seed), 0))
    assert writer.flush(SECONDS)
    writer.resize(SsdBudget(size_bytes=0))
    assert writer.flush(SECONDS)
    assert disk.blocks() == []
    writer.close(SECONDS)


def test_a_wipe_deletes_queued_blocks_too(disk, gate) -> None:
    opened, entered = gate
    writer = started(disk)
    for index in range(4):
        writer.submit(block(ONE, index))
    assert entered.wait(SECONDS)
    done = writer.wipe()
    opened.set()
    assert done.wait(SECONDS)
    assert writer.flush(SECONDS)
    assert disk.blocks() == []
    writer.close(SECONDS)


def test_a_block_that_cannot_be_encoded_costs_only_itself(disk) -> None:
    writer = started(disk)
    broken = block(ONE, 0)
    object.__setattr__(broken.tensors[0], "shape", (3, 3))
    writer.submit(broken)
    writer.submit(block(ONE, 0, tokens=2))
    assert writer.flush(SECONDS)
    writer.close(SECONDS)
    assert len(disk.blocks()) == 1
    assert disk.stats.snapshot().faults == 1
