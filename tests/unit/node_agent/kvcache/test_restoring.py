"""A restore on its way: read by others, asked now and then, given up at any moment."""

from collections.abc import Callable
from concurrent.futures import Future

import pytest

from node_agent.kvcache.hot import HotTier
from node_agent.kvcache.readers import READER_THREADS, ReaderThreads
from node_agent.kvcache.tiers import CacheTiers, DiskTier
from tests.support.kv_blocks import DENSE, FINGERPRINT, block, long_chain, open_disk, same_content

BLOCKS = 5
PROMPT = long_chain(BLOCKS, block_tokens=32)


class HeldReaders:
    """Reads when told."""

    def __init__(self) -> None:
        self.closing = False
        self.jobs: list[tuple[Callable, Future]] = []

    def submit(self, job: Callable) -> Future:
        self.jobs.append((job, Future()))
        return self.jobs[-1][1]

    def go(self) -> None:
        for job, future in self.jobs:
            if future.set_running_or_notify_cancel():
                future.set_result(job())
        self.jobs.clear()


class IdleWriter:
    def touch(self, digests) -> None:
        """Note nothing."""


@pytest.fixture
def disk(tmp_path):
    opened = open_disk(tmp_path / "cache")
    for index in range(BLOCKS):
        opened.store.put(block(PROMPT, index, payload=64))
    yield opened
    opened.link.close()


def tiers_of(disk, hot: HotTier | None = None) -> CacheTiers:
    return CacheTiers((FINGERPRINT, DENSE), hot, DiskTier(disk.store, IdleWriter()), disk.stats)


def leases(disk) -> int:
    with disk.link.guarded() as session, session.database.reading() as connection:
        return connection.execute("SELECT count(*) FROM leases").fetchone()[0]


def test_nothing_is_waited_for_and_blocks_come_in_order_once_they_are_read(disk) -> None:
    readers, hot = HeldReaders(), HotTier(1 << 20, disk.stats)
    restoring = tiers_of(disk, hot).begin(PROMPT, readers)
    assert len(readers.jobs) == READER_THREADS
    assert [restoring.poll(0) for _ in range(3)] == [None] * 3
    assert disk.stats.snapshot().read_bytes == 0
    readers.go()
    restored = restoring.poll(0)
    assert restored.tokens == BLOCKS * 32 - 1
    assert all(
        same_content(one.block, block(PROMPT, index, payload=64))
        for index, one in enumerate(restored.blocks)
    )
    assert (len(hot), leases(disk)) == (BLOCKS, 0)


def test_a_restore_that_is_given_up_reads_no_more_and_holds_nothing(disk) -> None:
    readers, hot = HeldReaders(), HotTier(1 << 20, disk.stats)
    for index in range(2):
        hot.put(block(PROMPT, index, payload=64))
    restoring = tiers_of(disk, hot).begin(PROMPT, readers)
    hot.resize(0)
    assert len(hot) == 2  # pinned
    restoring.close()
    assert len(hot) == 0
    readers.go()
    assert disk.stats.snapshot().read_bytes == 0
    assert leases(disk) == 0


def test_one_given_up_while_it_is_read_stops_at_the_next_block(disk, monkeypatch) -> None:
    readers = HeldReaders()
    restoring = tiers_of(disk).begin(PROMPT, readers)
    get, read = disk.store.get, []

    def closing_get(expected):
        read.append(expected.index)
        restoring.close()
        return get(expected)

    monkeypatch.setattr(disk.store, "get", closing_get)
    (job, _), *_ = readers.jobs
    job()
    assert read == [0]
    assert leases(disk) == 0


def test_a_block_that_proves_damaged_on_the_way_shortens_the_restore(disk) -> None:
    file = disk.file(PROMPT, 3)
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    readers = HeldReaders()
    restoring = tiers_of(disk).begin(PROMPT, readers)
    readers.go()
    assert restoring.poll(0) is None  # planned anew, to be read again
    readers.go()
    assert restoring.poll(0).tokens == 3 * 32


def test_blocks_are_held_on_the_disk_while_they_are_read(disk, monkeypatch) -> None:
    get, held = disk.store.get, []

    def counting_get(expected):
        held.append(leases(disk))
        return get(expected)

    monkeypatch.setattr(disk.store, "get", counting_get)
    readers = ReaderThreads()
    restoring = tiers_of(disk).begin(PROMPT, readers)
    assert restoring.poll(30).tokens == BLOCKS * 32 - 1
    readers.close()
    assert len(held) == BLOCKS
    assert all(held)
    assert leases(disk) == 0
