"""A block stored without a snapshot gives way to the same block with one, never the other way."""

import shutil
import sqlite3

import pytest

from node_agent.kvcache.block import Block
from node_agent.kvcache.block_queue import BlockQueue
from node_agent.kvcache.hot import HotTier
from node_agent.kvcache.ssd_budget import disk_bytes
from node_agent.kvcache.ssd_room import PutOutcome
from node_agent.kvcache.ssd_writer import SsdWriter, SubmitOutcome, WriterSettings
from node_agent.kvcache.stats import StatsCounter
from node_agent.kvcache.tiers import CacheTiers, DiskTier
from tests.support.kv_blocks import (
    FINGERPRINT,
    HYBRID,
    block,
    long_chain,
    open_disk,
    same_content,
    wanted,
)

ONE = long_chain(3, seed=1)
SECONDS = 20.0


def made(index: int, *, snapshot: bool) -> Block:
    return block(ONE, index, layout=HYBRID, snapshot=snapshot)


@pytest.fixture
def disk(tmp_path):
    opened = open_disk(tmp_path / "cache")
    yield opened
    opened.link.close()


def test_ram_takes_the_better_copy_in_its_place_and_keeps_it() -> None:
    hot = HotTier(1 << 20, StatsCounter())
    for index in range(3):
        hot.put(made(index, snapshot=False))
    assert hot.put(made(1, snapshot=True))
    assert hot.put(made(1, snapshot=False))
    assert hot.get(ONE.digests[1]) == made(1, snapshot=True)
    sizes = [made(n, snapshot=n == 1).payload_bytes for n in range(3)]
    assert (len(hot), hot.used_bytes) == (3, sum(sizes))


def test_ram_without_room_for_the_better_copy_keeps_the_other() -> None:
    plain = made(0, snapshot=False)
    hot = HotTier(2 * plain.payload_bytes, StatsCounter())
    hot.put(plain)
    hot.put(made(1, snapshot=False))
    with hot.pinned(ONE.digests[:2]):
        assert not hot.put(made(0, snapshot=True))
    assert hot.get(ONE.digests[0]) == plain
    assert (len(hot), hot.used_bytes) == (2, hot.capacity_bytes)


def test_the_disk_takes_the_better_copy_and_counts_its_bytes_once(disk) -> None:
    for index in range(3):
        disk.store.put(made(index, snapshot=False))
    better = made(1, snapshot=True)
    assert disk.store.put(better) is PutOutcome.STORED
    assert disk.store.put(made(1, snapshot=False)) is PutOutcome.ALREADY
    assert same_content(disk.store.get(wanted(ONE, 1)), better)
    (found,) = [x for x in disk.store.find(ONE) if x.index == 1]
    assert found.snapshot_mask == 0b10
    figures = disk.store.figures()[0]
    sizes = [disk_bytes(file.stat().st_size) for file in disk.blocks()]
    assert (figures.blocks, figures.used_bytes) == (3, sum(sizes))


def test_the_index_is_put_right_when_the_better_copy_has_no_row_yet(disk, tmp_path) -> None:
    """As after the death of a process between the file's rename and its row."""
    disk.store.put(made(0, snapshot=False))
    other = open_disk(tmp_path / "other")
    other.store.put(made(0, snapshot=True))
    shutil.copy(other.file(ONE, 0), disk.file(ONE, 0))
    other.link.close()
    disk.store.survey()
    (found,) = disk.store.find(ONE)
    assert found.snapshot_mask == 0b10
    (file,) = disk.blocks()
    assert disk.store.figures()[0].used_bytes == disk_bytes(file.stat().st_size)


def test_a_survey_lets_go_of_rows_whose_file_is_no_block_any_more(disk) -> None:
    disk.store.put(made(0, snapshot=False))
    disk.blocks()[0].write_bytes(b"cut short")
    disk.store.survey()
    assert disk.store.figures()[0].blocks == 0
    with sqlite3.connect(disk.path / "index.db") as connection:
        assert connection.execute("SELECT count(*) FROM cuts").fetchone() == (0,)


def test_the_writer_takes_a_better_copy_of_what_is_queued_or_stored(disk) -> None:
    writer = SsdWriter(disk.store, WriterSettings())
    outcomes = [writer.submit(made(0, snapshot=x)) for x in (False, False, True, True, False)]
    accepted, already = SubmitOutcome.ACCEPTED, SubmitOutcome.ALREADY
    assert outcomes == [accepted, already, accepted, already, already]
    writer.start()
    assert writer.flush(SECONDS)
    assert writer.submit(made(0, snapshot=True)) is already
    writer.close(SECONDS)
    again = open_disk(disk.path)
    assert [x.snapshot_mask for x in again.store.find(ONE)] == [0b10]
    again.link.close()


def test_a_queue_tells_which_copy_it_holds_until_both_are_done() -> None:
    queue = BlockQueue(1 << 20)
    queue.push(made(0, snapshot=False), 0)
    queue.push(made(0, snapshot=True), 0)
    assert queue.take(0) == made(0, snapshot=False)
    queue.done()
    assert queue.holds(ONE.digests[0], 0b10)
    queue.take(0)
    queue.done()
    assert not queue.holds(ONE.digests[0])


def test_a_capture_with_a_snapshot_is_due_where_only_one_without_is_stored(disk) -> None:
    writer = SsdWriter(disk.store, WriterSettings())
    writer.start()
    hot = HotTier(1 << 20, disk.stats)
    tiers = CacheTiers((FINGERPRINT, HYBRID), hot, DiskTier(disk.store, writer), disk.stats)
    assert tiers.keep(made(0, snapshot=False))
    assert writer.flush(SECONDS)
    end = ONE.block_tokens
    assert tiers.holds(ONE, end, snapshot=False)
    assert not tiers.holds(ONE, end, snapshot=True)
    assert tiers.restore(ONE).tokens == 0
    assert tiers.keep(made(0, snapshot=True))
    assert writer.flush(SECONDS)
    assert tiers.holds(ONE, end, snapshot=True)
    assert tiers.restore(ONE).tokens == end
    writer.close(SECONDS)
