"""Real file systems: too small, full, read-only, unmounted while in use. Needs root for mount."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from node_agent.kvcache.ssd_budget import SsdBudget
from node_agent.kvcache.ssd_directory import CacheDirectory
from node_agent.kvcache.ssd_health import TierReason
from node_agent.kvcache.ssd_room import PutOutcome
from tests.support.kv_blocks import block, long_chain, open_disk, same_content, wanted
from tests.support.volumes import Volume, volume_at

LARGE = SsdBudget(size_bytes=1 << 30)
PAYLOAD = 400_000  # two tensors of it: a block of 0.8 MB


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Volume]:
    with volume_at(tmp_path / "volume") as made:
        yield made


def made(seed: int):
    return block(long_chain(1, seed=seed), 0, payload=PAYLOAD)


def readable(disk, seed: int) -> bool:
    return same_content(disk.store.get(wanted(long_chain(1, seed=seed), 0)), made(seed))


def test_a_disk_smaller_than_one_block_turns_saves_off(volume: Volume) -> None:
    """B38."""
    volume.mount("512k")
    disk = open_disk(volume.path / "cache", LARGE)
    for seed in range(10):
        assert disk.store.put(made(seed)) is PutOutcome.OFF
    assert disk.link.state.reason is TierReason.FULL
    assert disk.stats.snapshot().faults == 1  # tried once, then left alone until it is time
    assert list((volume.path / "cache" / "blocks").iterdir()) == []
    small = block(long_chain(1, seed=1), 0, payload=1000)
    disk.clock.now += 120
    assert disk.store.put(small) is PutOutcome.STORED
    # What did not fit still does not: only short blocks are stored, and the state says so.
    assert disk.link.probe().reason is TierReason.FULL
    assert disk.link.may_write()
    assert disk.store.put(made(3)) is PutOutcome.OFF
    assert disk.link.state.reason is TierReason.FULL


def test_a_disk_with_room_for_a_few_keeps_the_last_ones(volume: Volume) -> None:
    """B38."""
    volume.mount("4m")
    disk = open_disk(volume.path / "cache", LARGE)
    outcomes = {disk.store.put(made(seed)) for seed in range(20)}
    assert outcomes == {PutOutcome.STORED}
    assert [seed for seed in range(20) if readable(disk, seed)] == [15, 16, 17, 18, 19]
    assert len(disk.blocks()) == 5


def test_a_disk_filled_by_others_stays_readable_and_is_used_again_when_it_has_room(
    volume: Volume,
) -> None:
    volume.mount("8m")
    disk = open_disk(volume.path / "cache", SsdBudget(2 << 20))
    assert disk.store.put(made(1)) is PutOutcome.STORED
    filler = volume.fill()
    for seed in range(2, 12):
        assert disk.store.put(made(seed)) in {PutOutcome.OFF, PutOutcome.STORED}
    with disk.store.leased([long_chain(1, seed=1).digests[0]]):
        pass
    assert not list((volume.path / "cache" / "blocks").glob("tmp-*"))
    assert disk.link.state.readable
    assert any(readable(disk, seed) for seed in range(1, 12))
    filler.unlink()
    disk.clock.now += 120
    assert disk.store.put(made(20)) is PutOutcome.STORED
    assert readable(disk, 20)
    assert disk.link.state.ready


def test_space_to_be_left_free_is_left_free(volume: Volume) -> None:
    volume.mount("8m")
    disk = open_disk(volume.path / "cache", SsdBudget(1 << 30, leave_free_bytes=5 << 20))
    for seed in range(10):
        disk.store.put(made(seed))
        figures = os.statvfs(volume.path)
        assert figures.f_bavail * figures.f_frsize >= 5 << 20
    assert len(disk.blocks()) == 3
    (volume.path / "filler").write_bytes(bytes(2 << 20))
    while disk.store.trim():
        pass
    figures = os.statvfs(volume.path)
    assert figures.f_bavail * figures.f_frsize >= 5 << 20
    assert len(disk.blocks()) == 1


def test_a_quota_that_the_free_space_does_not_show_leaves_no_half_written_file(
    volume: Volume, monkeypatch
) -> None:
    """B38."""
    volume.mount("4m")
    monkeypatch.setattr(CacheDirectory, "free_bytes", lambda directory: 1 << 40)
    disk = open_disk(volume.path / "cache", LARGE)
    outcomes = [disk.store.put(made(seed)) for seed in range(8)]
    assert outcomes == ["stored"] * 5 + ["off"] * 3
    assert disk.link.state.reason is TierReason.FULL
    assert not list((volume.path / "cache" / "blocks").glob("tmp-*"))
    sizes = [path.stat().st_size for path in disk.blocks()]
    assert disk.store.figures()[0].used_bytes == sum(-(-size // 4096) * 4096 for size in sizes)
    assert readable(disk, 4)


def test_no_inodes_left_is_like_a_full_disk(volume: Volume) -> None:
    """B38."""
    volume.mount("8m", "nr_inodes=14")
    disk = open_disk(volume.path / "cache", LARGE)
    outcomes = [disk.store.put(made(seed)) for seed in range(8)]
    assert outcomes[0] is PutOutcome.STORED
    assert PutOutcome.OFF in outcomes
    assert disk.link.state.reason is TierReason.FULL
    assert readable(disk, 0)


def test_a_read_only_disk_turns_the_tier_off_and_it_comes_back(volume: Volume) -> None:
    """B40."""
    volume.mount("8m")
    disk = open_disk(volume.path / "cache", LARGE)
    disk.store.put(made(1))
    volume.turn_read_only()
    assert disk.store.put(made(2)) is PutOutcome.OFF
    assert disk.link.state.reason is TierReason.READ_ONLY
    fresh = open_disk(volume.path / "cache", LARGE)
    assert fresh.link.state.reason is TierReason.READ_ONLY
    assert open_disk(volume.path / "other", LARGE).link.state.reason is TierReason.READ_ONLY
    volume.unplug()  # the read-only view
    disk.clock.now += 120
    assert disk.link.probe().ready
    assert readable(disk, 1)
    assert disk.store.put(made(2)) is PutOutcome.STORED


def test_a_disk_unplugged_while_in_use_is_off_and_its_mount_point_stays_empty(
    volume: Volume, tmp_path
) -> None:
    """B40."""
    volume.mount("8m")
    memory = tmp_path / "known.json"
    disk = open_disk(volume.path / "cache", LARGE, memory_file=memory)
    assert disk.store.put(made(1)) is PutOutcome.STORED
    volume.unplug()
    assert disk.store.get(wanted(long_chain(1, seed=1), 0)) is None
    assert disk.link.state.reason is TierReason.ABSENT
    for _ in range(3):
        disk.clock.now += 120
        assert disk.link.probe().reason is TierReason.ABSENT
        assert disk.store.put(made(2)) is PutOutcome.OFF
    assert list(volume.path.iterdir()) == []
    volume.mount("8m")  # another, empty disk at the same place
    disk.clock.now += 120
    assert disk.link.probe().reason is TierReason.ABSENT
    assert list(volume.path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory to another user")
def test_a_directory_of_another_user_is_refused(tmp_path) -> None:
    """B40."""
    (tmp_path / "cache").mkdir()
    os.chown(tmp_path / "cache", 12345, 12345)
    disk = open_disk(tmp_path / "cache", LARGE)
    assert disk.link.state.reason is TierReason.UNUSABLE
    assert "another user" in disk.link.state.message


def test_a_cut_index_is_an_error_and_does_not_kill_the_process(tmp_path) -> None:
    code = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from tests.support.kv_blocks import block, long_chain, open_disk\n"
        "disk = open_disk(Path(sys.argv[1]))\n"
        "disk.store.put(block(long_chain(1), 0))\n"
        "for path in Path(sys.argv[1]).glob('index.db*'):\n"
        "    os.truncate(path, 0)\n"
        "print(disk.store.put(block(long_chain(1, seed=2), 0)), disk.link.state.reason)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "cache")],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "off IndexDamaged"
