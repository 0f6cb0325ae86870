"""Damage on the disk: a miss, taken away once, counted once, and nothing hangs."""

import os
import shutil

import pytest

from node_agent.kvcache.ssd_room import PutOutcome
from tests.support.damage import DAMAGE
from tests.support.kv_blocks import block, long_chain, open_disk, same_content, wanted

ONE, TWO = long_chain(3, seed=1), long_chain(3, seed=2)


@pytest.fixture
def disk(tmp_path):
    opened = open_disk(tmp_path / "cache")
    for of in (ONE, TWO):
        for index in range(3):
            opened.store.put(block(of, index))
    yield opened
    opened.link.close()


@pytest.mark.timeout(20)
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_block_is_a_miss_and_taken_away_once(disk, damage: str) -> None:
    """B37."""
    file = disk.file(ONE, 1)
    DAMAGE[damage](file)
    for _ in range(2):
        assert disk.store.get(wanted(ONE, 1)) is None
    assert disk.stats.snapshot().corruptions == 1
    assert not os.path.lexists(file)
    assert disk.link.state.ready
    assert sorted(found.index for found in disk.store.find(ONE)) == [0, 2]
    assert disk.store.put(block(ONE, 1)) is PutOutcome.STORED
    assert same_content(disk.store.get(wanted(ONE, 1)), block(ONE, 1))


def test_what_was_no_file_is_moved_and_neither_emptied_nor_followed(disk) -> None:
    DAMAGE["directory"](disk.file(ONE, 0))
    assert disk.store.get(wanted(ONE, 0)) is None
    (moved,) = (disk.path / "quarantine").iterdir()
    assert (moved / "keep").read_text() == "x"


def test_exchanged_files_are_both_misses(disk) -> None:
    """B33, B37."""
    one, two = disk.file(ONE, 0), disk.file(TWO, 0)
    between = disk.path / "blocks" / "between"
    shutil.move(one, between)
    shutil.move(two, one)
    shutil.move(between, two)
    assert disk.store.get(wanted(ONE, 0)) is None
    assert disk.store.get(wanted(TWO, 0)) is None
    assert disk.stats.snapshot().corruptions == 2


def test_a_block_that_vanished_is_a_miss_and_no_corruption(disk) -> None:
    disk.file(ONE, 0).unlink()
    assert disk.store.get(wanted(ONE, 0)) is None
    assert disk.stats.snapshot().corruptions == 0
    assert sorted(found.index for found in disk.store.find(ONE)) == [1, 2]


def test_what_hangs_from_a_lost_block_is_evicted_first(disk) -> None:
    DAMAGE["empty"](disk.file(TWO, 0))
    assert disk.store.get(wanted(TWO, 0)) is None
    with disk.store.leased(TWO.digests[1:2]):
        pass
    DAMAGE["empty"](disk.file(TWO, 1))
    assert disk.store.get(wanted(TWO, 1)) is None
    used = disk.store.figures()[0].used_bytes
    size = used + (disk.path / "index.db").stat().st_size - 1
    disk.store.resize(type(disk.link.budget)(size_bytes=size))
    assert disk.store.trim() == 1
    assert sorted(found.index for found in disk.store.find(TWO)) == []
    assert sorted(found.index for found in disk.store.find(ONE)) == [0, 1, 2]


def test_a_directory_in_a_blocks_place_does_not_stop_its_save(disk) -> None:
    path = disk.file(ONE, 2)
    disk.store.wipe()
    path.mkdir()
    (path / "keep").write_text("x")
    for index in range(3):
        assert disk.store.put(block(ONE, index)) is PutOutcome.STORED
    assert same_content(disk.store.get(wanted(ONE, 2)), block(ONE, 2))
