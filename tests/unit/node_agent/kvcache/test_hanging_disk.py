"""A disk that neither answers nor fails, an index that others hold: nobody waits for it long."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from node_agent.kvcache import ssd_store
from node_agent.kvcache.block_file import read_file
from node_agent.kvcache.hot import HotTier
from node_agent.kvcache.readers import READER_THREADS, ReaderThreads
from node_agent.kvcache.ssd_health import TierReason
from node_agent.kvcache.ssd_lookups import Lookups
from node_agent.kvcache.ssd_watch import (
    CALM_SECONDS,
    READ_SECONDS,
    UPKEEP_SECONDS,
    DiskWatch,
    is_hanging,
)
from node_agent.kvcache.ssd_writer import SsdWriter, SubmitOutcome, WriterSettings
from node_agent.kvcache.tiers import CacheTiers, DiskTier
from tests.support.kv_blocks import DENSE, FINGERPRINT, Clock, block, long_chain, open_disk

BLOCKS = 6
PROMPT = long_chain(BLOCKS, block_tokens=32)
WAIT_SECONDS = 30.0

HOLD_THE_INDEX = """
import sqlite3, sys
held = sqlite3.connect(sys.argv[1], isolation_level=None)
held.execute("BEGIN EXCLUSIVE")
print("held", flush=True)
sys.stdin.read()
"""


class IdleWriter:
    def touch(self, digests) -> None:
        """Note nothing."""


class StuckReads:
    """Reads that do not come back: they wait in the kernel, at a pipe nobody writes to."""

    def __init__(self, monkeypatch) -> None:
        self._out, self._in = os.pipe()
        self.names: set[str] = set()
        self.stuck = threading.Semaphore(0)
        monkeypatch.setattr(ssd_store, "read_file", self._read)

    def answer(self) -> None:
        self.names = set()
        os.close(self._in)

    def _read(self, folder, name, progress):
        if name in self.names:
            self.stuck.release()
            os.read(self._out, 1)
        return read_file(folder, name, progress)


@pytest.fixture
def disk(tmp_path):
    opened = open_disk(tmp_path / "cache")
    for index in range(BLOCKS):
        opened.store.put(block(PROMPT, index, payload=64))
    opened.seconds = Clock()
    opened.link.watch = DiskWatch(opened.seconds)
    yield opened
    opened.link.close()


@pytest.fixture
def readers() -> Iterator[ReaderThreads]:
    made = ReaderThreads()
    yield made
    made.close()


def tiers_of(disk, hot: HotTier | None = None) -> CacheTiers:
    return CacheTiers((FINGERPRINT, DENSE), hot, DiskTier(disk.store, IdleWriter()), disk.stats)


def names(disk, *indices: int) -> set[str]:
    return {disk.file(PROMPT, index).name for index in indices}


def await_readers(readers: ReaderThreads) -> None:
    """Wait until every reader has done all it had to do."""
    idle = threading.Barrier(READER_THREADS)
    for one in [readers.submit(idle.wait) for _ in range(READER_THREADS)]:
        one.result(WAIT_SECONDS)


@contextmanager
def index_held_by_another_process(disk) -> Iterator[None]:
    command = [sys.executable, "-c", HOLD_THE_INDEX, str(disk.path / "index.db")]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as holder:
        assert holder.stdout.readline() == b"held\n"
        yield
        holder.stdin.close()
        assert holder.wait(WAIT_SECONDS) == 0


def test_a_restore_goes_on_with_what_was_read_before_the_disk_hung(disk, readers, monkeypatch):
    reads, hot = StuckReads(monkeypatch), HotTier(1 << 20, disk.stats)
    reads.names = names(disk, 3, 4)
    restoring = tiers_of(disk, hot).begin(PROMPT, readers)
    assert all(reads.stuck.acquire(timeout=WAIT_SECONDS) for _ in range(READER_THREADS))
    assert restoring.poll(0) is None  # slow as yet
    assert disk.link.state.ready
    disk.seconds.now += READ_SECONDS
    assert restoring.poll(0).tokens == 3 * 32
    assert disk.stats.snapshot().stalls == 1
    assert disk.link.state.reason is TierReason.HANGING
    restoring.close()
    reads.answer()
    await_readers(readers)
    assert len(hot) == 3  # what came too late is kept by nobody


def test_others_start_cold_at_once_and_from_the_disk_when_it_has_answered(
    disk, readers, monkeypatch
):
    reads, tiers = StuckReads(monkeypatch), tiers_of(disk)
    reads.names = names(disk, 0, 1)
    given_up = tiers.begin(PROMPT, readers)
    assert all(reads.stuck.acquire(timeout=WAIT_SECONDS) for _ in range(READER_THREADS))
    given_up.close()  # its client left; nobody polls it
    disk.seconds.now += READ_SECONDS
    assert tiers.plan(PROMPT).tokens == 0
    assert tiers.begin(PROMPT, readers).poll(0).tokens == 0
    writer = SsdWriter(disk.store, WriterSettings())
    assert writer.submit(block(PROMPT, 0, payload=64)) is SubmitOutcome.OFF
    reads.answer()
    await_readers(readers)
    # It has answered once; a disk that does so now and then is not trusted each time.
    assert disk.link.state.reason is TierReason.HANGING
    disk.seconds.now += CALM_SECONDS
    assert disk.link.state.ready
    restoring = tiers.begin(PROMPT, readers)
    assert restoring.poll(WAIT_SECONDS).tokens == BLOCKS * 32 - 1
    restoring.close()
    with disk.link.guarded() as session, session.database.reading() as connection:
        assert connection.execute("SELECT count(*) FROM leases").fetchone() == (0,)


def test_readers_that_hang_keep_nobody_from_ending(disk, monkeypatch):
    reads, readers = StuckReads(monkeypatch), ReaderThreads()
    reads.names = names(disk, 0, 1)
    restoring = tiers_of(disk).begin(PROMPT, readers)
    assert reads.stuck.acquire(timeout=WAIT_SECONDS)
    restoring.close()
    readers.close(wait_seconds=0.01)
    reads.answer()
    readers.close()


def test_an_index_that_another_process_holds_is_late_and_counted(disk) -> None:
    assert len(disk.store.find(PROMPT)) == BLOCKS
    before, _ = disk.store.figures()
    with index_held_by_another_process(disk):
        assert disk.store.find(PROMPT) is None
        assert not disk.store.contains(PROMPT.digests[0])
        assert disk.store.figures()[0] == before  # the last that are known
        assert disk.stats.snapshot().late_lookups == 3
    assert disk.link.state.ready
    assert len(disk.store.find(PROMPT)) == BLOCKS


def test_a_lookup_does_not_wait_for_a_transaction_of_its_own_process(disk) -> None:
    with disk.link.guarded() as session, session.database.transaction() as connection:
        connection.execute("UPDATE figures SET value = value + 1 WHERE name = 'tick'")
        assert len(disk.store.find(PROMPT)) == BLOCKS
    assert disk.stats.snapshot().late_lookups == 0


def test_while_a_question_is_overdue_no_other_is_asked() -> None:
    lookups, go_on, left = Lookups(seconds=0.01), threading.Event(), threading.Event()
    asked = []

    def stuck() -> None:
        assert go_on.wait(WAIT_SECONDS)
        left.set()

    assert lookups.ask(stuck) is None
    assert lookups.ask(lambda: asked.append(1)) is None
    go_on.set()
    assert left.wait(WAIT_SECONDS)
    patient = Lookups(seconds=WAIT_SECONDS)
    assert patient.ask(lambda: 7).value == 7
    assert asked == []


def test_what_moves_does_not_hang_however_long_it_takes() -> None:
    clock = Clock()
    watch = DiskWatch(clock)
    with watch.using(READ_SECONDS):
        for _ in range(10):
            clock.now += READ_SECONDS - 0.1
            assert not watch.hanging
            watch.progress()
    with watch.using(UPKEEP_SECONDS):
        clock.now += READ_SECONDS
        assert not watch.hanging
        clock.now += UPKEEP_SECONDS
        assert watch.hanging


@pytest.mark.parametrize(
    ("stuck", "answered_ago", "hanging"),
    [
        (True, None, True),
        (False, None, False),
        (False, 0.0, True),
        (False, CALM_SECONDS - 0.1, True),
        (False, CALM_SECONDS, False),
        (True, 100.0, True),
    ],
)
def test_a_disk_is_trusted_again_when_all_has_answered_for_a_while(
    stuck: bool, answered_ago: float | None, hanging: bool
) -> None:
    answered = None if answered_ago is None else 1000.0 - answered_ago
    assert is_hanging(stuck, answered, 1000.0) is hanging
