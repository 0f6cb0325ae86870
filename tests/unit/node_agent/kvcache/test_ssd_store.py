"""The disk tier on a good disk: order of eviction, budget, leases, modes."""

import os
import stat
from pathlib import Path

import pytest

from node_agent.kvcache.block_format import encode_block
from node_agent.kvcache.ssd_budget import SsdBudget, disk_bytes
from node_agent.kvcache.ssd_directory import CacheDirectory
from node_agent.kvcache.ssd_health import TierFault, TierReason
from node_agent.kvcache.ssd_room import PutOutcome
from tests.support.kv_blocks import (
    RECURRENT,
    block,
    bytes_on_disk,
    chain,
    long_chain,
    open_disk,
    same_content,
    wanted,
)

ONE, TWO = long_chain(6, seed=1), long_chain(6, seed=2)
STEP = disk_bytes(encode_block(block(ONE, 0)).size_bytes)


def budget(blocks: int, index_bytes: int) -> SsdBudget:
    return SsdBudget(size_bytes=blocks * STEP + index_bytes)


@pytest.fixture
def disk(tmp_path):
    opened = open_disk(tmp_path / "cache")
    yield opened
    opened.link.close()


def limit(disk, blocks: int) -> None:
    disk.store.resize(budget(blocks, (disk.path / "index.db").stat().st_size))


def held(disk, of) -> list[int]:
    return sorted(found.index for found in disk.store.find(of))


def test_a_block_is_stored_found_and_read(disk) -> None:
    made = block(ONE, 0)
    assert disk.store.put(made) is PutOutcome.STORED
    assert held(disk, ONE) == [0]
    assert same_content(disk.store.get(wanted(ONE, 0)), made)


def test_the_same_block_again_writes_nothing(disk) -> None:
    disk.store.put(block(ONE, 0))
    written = disk.stats.snapshot().written_bytes
    assert disk.store.put(block(ONE, 0)) is PutOutcome.ALREADY
    assert disk.stats.snapshot().written_bytes == written == disk.blocks()[0].stat().st_size


def test_a_block_whose_parent_is_not_stored_is_refused(disk) -> None:
    assert disk.store.put(block(ONE, 1)) is PutOutcome.NO_PARENT
    assert disk.store.put(block(ONE, 1, layout=RECURRENT)) is PutOutcome.STORED


def test_the_least_recently_used_chain_is_given_up_from_its_end(disk) -> None:
    for of in (ONE, TWO):
        for index in range(3):
            disk.store.put(block(of, index))
    with disk.store.leased(ONE.digests[:3]):
        pass
    limit(disk, 6)
    disk.store.put(block(ONE, 3))
    assert (held(disk, ONE), held(disk, TWO)) == ([0, 1, 2, 3], [0, 1])


def test_a_hot_prefix_is_found_however_many_others_come(disk) -> None:
    """B49."""
    limit(disk, 10)
    for index in range(3):
        disk.store.put(block(ONE, index))
    for seed in range(100):
        disk.store.put(block(long_chain(1, seed=100 + seed), 0))
        if seed % 2:
            assert held(disk, ONE) == [0, 1, 2]
            with disk.store.leased(ONE.digests[:3]):
                pass
    assert len(disk.blocks()) == 10


def test_a_leased_block_is_not_evicted(disk) -> None:
    """B49."""
    disk.store.put(block(ONE, 0))
    disk.store.put(block(TWO, 0))
    limit(disk, 2)
    with disk.store.leased([ONE.digests[0], TWO.digests[0]]):
        assert disk.store.put(block(long_chain(1, seed=3), 0)) is PutOutcome.NO_ROOM
    assert disk.store.put(block(long_chain(1, seed=3), 0)) is PutOutcome.STORED


def test_a_lease_that_nobody_ends_ends_by_itself(disk) -> None:
    disk.store.put(block(ONE, 0))
    limit(disk, 1)
    with disk.store.leased([ONE.digests[0]]):
        disk.clock.now += 3600
        assert disk.store.put(block(TWO, 0)) is PutOutcome.STORED


def test_a_block_larger_than_the_budget_evicts_nothing(disk) -> None:
    disk.store.put(block(ONE, 0))
    limit(disk, 1)
    assert disk.store.put(block(TWO, 0, payload=3 * STEP)) is PutOutcome.NO_ROOM
    assert held(disk, ONE) == [0]


def test_a_chain_longer_than_the_budget_keeps_its_beginning(disk) -> None:
    limit(disk, 3)
    outcomes = [disk.store.put(block(ONE, index)) for index in range(5)]
    assert outcomes == ["stored", "stored", "stored", "no_room", "no_parent"]
    assert held(disk, ONE) == [0, 1, 2]


def test_a_smaller_budget_holds_at_once_in_bounded_steps(disk) -> None:
    for seed in range(80):
        disk.store.put(block(long_chain(1, seed=seed), 0))
    limit(disk, 5)
    steps = []
    while evicted := disk.store.trim():
        steps.append(evicted)
    assert steps == [32, 32, 11]
    assert len(disk.blocks()) == 5
    assert bytes_on_disk(disk.path) <= disk.link.budget.size_bytes + STEP


def test_retention_drops_what_was_not_used_for_so_long(disk) -> None:
    disk.store.put(block(ONE, 0))
    disk.clock.now += 100
    disk.store.put(block(TWO, 0))
    disk.store.resize(SsdBudget(size_bytes=1 << 30, retention_seconds=50))
    assert disk.store.trim() == 1
    assert (held(disk, ONE), held(disk, TWO)) == ([], [0])


def test_a_daily_write_budget_stops_saves_until_the_next_day(disk) -> None:
    """B42."""
    disk.store.resize(SsdBudget(size_bytes=1 << 30, daily_write_bytes=STEP + 10))
    assert disk.store.put(block(ONE, 0)) is PutOutcome.STORED
    assert disk.store.put(block(TWO, 0)) is PutOutcome.DAILY_BUDGET
    assert same_content(disk.store.get(wanted(ONE, 0)), block(ONE, 0))
    disk.clock.now += 86400
    assert disk.store.put(block(TWO, 0)) is PutOutcome.STORED


def test_free_space_to_be_left_limits_the_cache(disk) -> None:
    disk.store.put(block(ONE, 0))
    disk.store.resize(SsdBudget(size_bytes=1 << 40, leave_free_bytes=1 << 60))
    assert disk.store.put(block(TWO, 0)) is PutOutcome.OFF
    assert disk.link.state.reason is TierReason.FULL
    assert disk.store.figures()[1] == 0
    assert held(disk, ONE) == [0]
    disk.store.resize(SsdBudget(size_bytes=1 << 30))
    disk.clock.now += 60
    assert disk.store.put(block(TWO, 0)) is PutOutcome.STORED
    assert disk.link.state.ready


def test_blocks_of_a_model_that_is_gone_go_first(disk) -> None:
    """B39."""
    disk.store.put(block(ONE, 0))
    disk.store.put(block(TWO, 0))
    disk.store.demote("tiny")
    disk.store.put(block(TWO, 1))
    limit(disk, 2)
    disk.store.trim()
    assert held(disk, TWO) == [0, 1]


def test_a_wipe_leaves_no_block_and_may_be_cut_off(disk) -> None:
    for seed in range(40):
        disk.store.put(block(long_chain(1, seed=seed), 0))
    assert disk.store.wipe("another model") == 0
    assert disk.store.wipe() == 32
    assert disk.store.wipe("tiny") == 8
    assert disk.blocks() == []


def test_a_block_that_the_index_refuses_to_enter_leaves_neither_file_nor_claim(
    disk, monkeypatch
) -> None:
    def refuse(*_: object) -> None:
        raise TierFault(TierReason.FULL, "the index: no room")

    with monkeypatch.context() as patch:
        patch.setattr("node_agent.kvcache.ssd_store.add_block", refuse)
        # Nor can it give the claim back.
        patch.setattr("node_agent.kvcache.ssd_store.end_write", refuse)
        assert disk.store.put(block(ONE, 0)) is PutOutcome.OFF
    assert disk.blocks() == []
    disk.clock.now += 60
    assert disk.store.put(block(ONE, 0)) is PutOutcome.STORED
    assert disk.store.figures()[0].used_bytes == STEP


def test_a_disk_that_gives_deleted_bytes_back_late_costs_few_blocks(disk, monkeypatch) -> None:
    for seed in range(6):
        disk.store.put(block(long_chain(1, seed=seed), 0, payload=50_000))
    monkeypatch.setattr(CacheDirectory, "free_bytes", lambda _: 0)
    for seed in range(10, 20):
        assert disk.store.put(block(long_chain(1, seed=seed), 0)) is PutOutcome.OFF
    assert disk.link.state.reason is TierReason.FULL
    assert len(disk.blocks()) == 5
    disk.link.close()
    assert len(open_disk(disk.path).blocks()) == 4


def test_partial_blocks_are_found_by_what_comes_before_them(disk) -> None:
    short = chain(*range(6))
    disk.store.put(block(short, 0))
    disk.store.put(block(short, 1, tokens=2))
    assert [(x.index, x.tokens) for x in disk.store.find(chain(*range(12)))] == [(0, 4), (1, 2)]


@pytest.mark.parametrize("umask", [0o000, 0o777])
def test_everything_is_private_whatever_the_umask(tmp_path, umask: int) -> None:
    before = os.umask(umask)
    try:
        disk = open_disk(tmp_path / "cache", durable=True, memory_file=tmp_path / "known.json")
        disk.store.put(block(ONE, 0))
        for folder, folders, files in os.walk(tmp_path / "cache"):
            for names, mode in ((folders, 0o700), (files, 0o600)):
                for name in names:
                    status = (Path(folder) / name).lstat()
                    assert stat.S_IMODE(status.st_mode) == mode, name
        assert stat.S_IMODE((tmp_path / "cache").stat().st_mode) == 0o700
        assert disk.store.put(block(TWO, 0)) is PutOutcome.STORED
        disk.link.close()
    finally:
        os.umask(before)
