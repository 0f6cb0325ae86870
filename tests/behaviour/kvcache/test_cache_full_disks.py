"""A disk that is full to the last byte: its index has no room to note what goes."""

import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from node_agent.kvcache.ssd_budget import SsdBudget
from node_agent.kvcache.ssd_room import PutOutcome
from tests.support.kv_blocks import block, long_chain, open_disk, same_content, wanted
from tests.support.volumes import Volume, volume_at

LARGE = SsdBudget(size_bytes=1 << 30)
PAYLOAD = 100_000


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Volume]:
    with volume_at(tmp_path / "volume") as made:
        yield made


def readable(disk, seed: int) -> bool:
    of = long_chain(1, seed=seed)
    return same_content(disk.store.get(wanted(of, 0)), block(of, 0, payload=PAYLOAD))


@pytest.mark.parametrize("pages", range(0, 50, 3))
def test_a_disk_of_any_size_keeps_taking_blocks(volume: Volume, pages: int) -> None:
    """Of some sizes nothing is left when the last block that fits is written."""
    volume.mount(str((800 << 10) + (pages << 12)))
    disk = open_disk(volume.path / "cache", LARGE)
    outcomes = []
    for seed in range(30):
        outcomes.append(disk.store.put(block(long_chain(1, seed=seed), 0, payload=PAYLOAD)))
        disk.clock.now += 120
        disk.link.probe()
    assert outcomes.count(PutOutcome.STORED) >= 28
    assert readable(disk, 29)
    assert disk.link.state.ready
    files = disk.blocks()
    figures, _ = disk.store.figures()
    assert figures.blocks == len(files)
    assert figures.used_bytes == sum(-(-x.stat().st_size // 4096) * 4096 for x in files)
    disk.link.close()
    assert open_disk(volume.path / "cache", LARGE).link.state.ready


def test_a_cache_on_a_full_disk_makes_itself_room(volume: Volume) -> None:
    volume.mount("1m")
    disk = open_disk(volume.path / "cache", LARGE)
    for seed in range(3):
        disk.store.put(block(long_chain(1, seed=seed), 0, payload=PAYLOAD))
    volume.fill()
    assert os.statvfs(volume.path).f_bavail == 0
    for seed in range(10, 14):
        disk.clock.now += 120
        disk.store.put(block(long_chain(1, seed=seed), 0, payload=PAYLOAD))
    assert readable(disk, 13)
    assert disk.link.state.ready


def test_a_full_disk_is_opened_after_a_process_died_on_it(volume: Volume) -> None:
    volume.mount("1m")
    disk = open_disk(volume.path / "cache", LARGE)
    for seed in range(3):
        disk.store.put(block(long_chain(1, seed=seed), 0, payload=PAYLOAD))
    disk.link.close()
    dead = "0" * 32
    (volume.path / "cache" / "owners" / dead).touch()
    with sqlite3.connect(volume.path / "cache" / "index.db") as index:
        claim = (f"tmp-{dead}-0", b"x", b"y", dead, 4096)
        index.execute("INSERT INTO writing VALUES (?, ?, ?, ?, ?)", claim)
    index.close()
    volume.fill()
    again = open_disk(volume.path / "cache", LARGE)
    assert again.link.state.ready
    assert sum(readable(again, seed) for seed in range(3)) == 2
    figures, _ = again.store.figures()
    assert figures.blocks == len(again.blocks()) == 2
