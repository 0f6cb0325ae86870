"""The cache directory: absent, strange, damaged, or someone else's."""

import fcntl
import json
import os
import shutil
import sqlite3

import pytest

from node_agent.kvcache.ssd_health import TierReason
from node_agent.kvcache.ssd_room import PutOutcome
from tests.support.kv_blocks import block, long_chain, open_disk, same_content, wanted

ONE = long_chain(4, seed=1)


def filled(path, blocks: int = 3):
    disk = open_disk(path)
    for index in range(blocks):
        assert disk.store.put(block(ONE, index)) is PutOutcome.STORED
    return disk


@pytest.fixture
def volumes(monkeypatch) -> None:
    """Let every directory count as a volume of its own."""
    monkeypatch.setattr("node_agent.kvcache.ssd_directory.on_one_volume", lambda *_: False)


def held(disk) -> list[int]:
    return sorted(found.index for found in disk.store.find(ONE))


def test_blocks_survive_a_restart_and_a_good_start_lists_nothing(tmp_path, monkeypatch) -> None:
    filled(tmp_path / "cache").link.close()
    listed: list[str] = []
    monkeypatch.setattr("node_agent.kvcache.ssd_session.survey", lambda *_: listed.append("survey"))
    disk = open_disk(tmp_path / "cache")
    assert (held(disk), listed) == ([0, 1, 2], [])
    assert same_content(disk.store.get(wanted(ONE, 2)), block(ONE, 2))


@pytest.mark.parametrize("damage", ["missing", "garbage", "zeroed", "truncated", "old"])
def test_a_missing_or_damaged_index_is_made_again_from_the_headers(tmp_path, damage: str) -> None:
    disk = filled(tmp_path / "cache")
    disk.link.close()
    index = tmp_path / "cache" / "index.db"
    if damage == "missing":
        index.unlink()
    elif damage == "garbage":
        index.write_bytes(b"<html>" * 5000)
    elif damage == "zeroed":
        index.write_bytes(bytes(index.stat().st_size))
    elif damage == "truncated":
        os.truncate(index, 4096)
    else:
        with sqlite3.connect(index) as connection:
            connection.execute("PRAGMA user_version = 99")
        connection.close()
    again = open_disk(tmp_path / "cache")
    for _ in range(3):  # damage past the first page shows at the first use
        if held(again) == [0, 1, 2]:
            break
        again.clock.now += 120
        again.link.probe()
    assert held(again) == [0, 1, 2]
    assert same_content(again.store.get(wanted(ONE, 1)), block(ONE, 1))
    assert again.store.figures()[0].blocks == 3


def test_damage_that_shows_only_in_use_is_repaired_at_the_next_try(tmp_path) -> None:
    disk = open_disk(tmp_path / "cache")
    for seed in range(200):
        disk.store.put(block(long_chain(1, seed=100 + seed), 0, payload=2))
    for index in range(3):
        disk.store.put(block(ONE, index))
    disk.link.close()
    index_file = tmp_path / "cache" / "index.db"
    content = bytearray(index_file.read_bytes())
    content[3 * 4096 :] = b"\xff" * (len(content) - 3 * 4096)
    index_file.write_bytes(content)
    disk = open_disk(tmp_path / "cache")
    for _ in range(2):
        disk.store.find(ONE)
        disk.clock.now += 120
        disk.link.probe()
    assert disk.link.state.ready
    assert held(disk) == [0, 1, 2]
    assert disk.store.figures()[0].blocks == 203


def test_an_index_replaced_by_another_process_is_noticed(tmp_path) -> None:
    first = filled(tmp_path / "cache")
    (tmp_path / "cache" / "index.db").unlink()
    second = open_disk(tmp_path / "cache")
    assert held(second) == [0, 1, 2]
    assert first.store.put(block(ONE, 3)) is PutOutcome.OFF
    assert first.link.state.reason is TierReason.INDEX
    first.clock.now += 120
    assert first.link.probe().ready
    assert first.store.put(block(ONE, 3)) is PutOutcome.STORED
    assert held(second) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda path: None, TierReason.MISSING),
        (lambda path: (path.parent.mkdir(), path.write_text("x")), TierReason.UNUSABLE),
        (
            lambda path: (path.parent.mkdir(), path.symlink_to(path.parent / "nowhere")),
            TierReason.UNUSABLE,
        ),
        (
            lambda path: (path.mkdir(parents=True), (path / "thesis.txt").write_text("x")),
            TierReason.UNUSABLE,
        ),
    ],
)
def test_a_directory_that_cannot_be_used_turns_the_tier_off_with_a_reason(
    tmp_path, make, reason: TierReason
) -> None:
    path = tmp_path / "with space ü" / "cache"
    make(path)
    disk = open_disk(path)
    assert (disk.link.state.reason, disk.link.state.ready) == (reason, False)
    assert disk.link.state.message
    assert disk.store.put(block(ONE, 0)) is PutOutcome.OFF
    assert disk.store.find(ONE) == ()
    assert disk.store.get(wanted(ONE, 0)) is None


def test_it_is_tried_again_ever_more_rarely_and_recovers_by_itself(tmp_path) -> None:
    disk = open_disk(tmp_path / "later" / "cache")
    waits = []
    for _ in range(8):
        waits.append(disk.link.state.retry_at_seconds - disk.clock.now)
        disk.clock.now = disk.link.state.retry_at_seconds
        disk.link.probe()
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60]
    (tmp_path / "later").mkdir()
    assert not disk.link.probe().ready
    disk.clock.now += 61
    assert disk.link.probe().ready


def test_a_link_to_a_directory_is_followed(tmp_path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "cache").symlink_to(tmp_path / "real")
    assert open_disk(tmp_path / "cache").link.state.ready


@pytest.mark.usefixtures("volumes")
def test_the_mount_point_of_an_absent_volume_is_not_written_into(tmp_path) -> None:
    volume, memory = tmp_path / "volume", tmp_path / "known.json"
    volume.mkdir()
    open_disk(volume, memory_file=memory).link.close()
    open_disk(volume / "cache", memory_file=memory)
    volume.rename(tmp_path / "unplugged")
    volume.mkdir()
    for path in (volume, volume / "cache"):
        disk = open_disk(path, memory_file=memory)
        assert disk.link.state.reason is TierReason.ABSENT
        assert f"delete its line in {memory}" in disk.link.state.message
        assert list(volume.iterdir()) == []
    volume.rmdir()
    (tmp_path / "unplugged").rename(volume)
    disk.clock.now += 120
    assert disk.link.probe().ready
    assert len(json.loads(memory.read_text())) == 2


@pytest.mark.usefixtures("volumes")
def test_a_volume_that_goes_away_while_in_use_is_noticed_and_not_replaced(tmp_path) -> None:
    memory = tmp_path / "known.json"
    disk = open_disk(tmp_path / "cache", memory_file=memory)
    disk.store.put(block(ONE, 0))
    (tmp_path / "cache").rename(tmp_path / "unplugged")
    (tmp_path / "cache").mkdir()
    assert disk.store.put(block(ONE, 1)) is PutOutcome.OFF
    assert disk.link.state.reason is TierReason.ABSENT
    disk.clock.now += 120
    assert disk.link.probe().reason is TierReason.ABSENT
    assert list((tmp_path / "cache").iterdir()) == []
    (tmp_path / "cache").rmdir()
    (tmp_path / "unplugged").rename(tmp_path / "cache")
    disk.clock.now += 120
    assert disk.link.probe().ready
    assert held(disk) == [0]


def test_a_directory_that_was_deleted_is_made_again(tmp_path) -> None:
    """Somebody emptied the cache; the memory file is on its volume, so none was unplugged."""
    memory = tmp_path / "known.json"
    disk = open_disk(tmp_path / "cache", memory_file=memory)
    disk.store.put(block(ONE, 0))
    for empty in (lambda: None, (tmp_path / "cache").mkdir):
        shutil.rmtree(tmp_path / "cache")
        empty()
        assert disk.store.put(block(ONE, 1)) is PutOutcome.OFF
        assert disk.link.state.reason in {TierReason.ABSENT, TierReason.INDEX}
        disk.clock.now += 120
        assert disk.link.probe().ready
        assert held(disk) == []
        assert disk.store.put(block(ONE, 0)) is PutOutcome.STORED


def test_a_deleted_directory_is_noticed_without_traffic(tmp_path) -> None:
    disk = filled(tmp_path / "cache")
    shutil.rmtree(tmp_path / "cache")
    assert disk.link.probe().reason is TierReason.ABSENT


def test_files_of_others_are_counted_and_left_alone(tmp_path) -> None:
    """B39."""
    disk = filled(tmp_path / "cache")
    for name in ("blocks/notes.txt", "holiday.jpg", "blocks/tmp-mine"):
        (tmp_path / "cache" / name).write_text("mine")
    disk.store.survey()
    assert disk.store.figures()[0].foreign_files == 3
    disk.store.wipe()
    assert (tmp_path / "cache" / "blocks" / "notes.txt").read_text() == "mine"


def test_a_planted_link_in_place_of_the_blocks_folder_is_not_followed(tmp_path) -> None:
    filled(tmp_path / "cache").link.close()
    shutil.rmtree(tmp_path / "cache" / "blocks")
    (tmp_path / "victim").mkdir()
    (tmp_path / "cache" / "blocks").symlink_to(tmp_path / "victim")
    disk = open_disk(tmp_path / "cache")
    assert not disk.link.state.ready
    assert disk.store.put(block(ONE, 0)) is PutOutcome.OFF
    assert list((tmp_path / "victim").iterdir()) == []


def test_another_cache_in_its_place_is_noticed_and_then_used_as_what_it_is(tmp_path) -> None:
    disk = filled(tmp_path / "cache")
    filled(tmp_path / "other", blocks=1).link.close()
    (tmp_path / "cache").rename(tmp_path / "unplugged")
    (tmp_path / "other").rename(tmp_path / "cache")
    assert disk.store.get(wanted(ONE, 0)) is None
    assert disk.link.state.reason is TierReason.ABSENT
    disk.clock.now += 120
    assert disk.link.probe().ready
    assert held(disk) == [0]


def test_leftovers_of_dead_processes_are_removed_and_files_of_living_ones_kept(tmp_path) -> None:
    living = filled(tmp_path / "cache")
    (owner,) = (tmp_path / "cache" / "owners").iterdir()
    blocks = tmp_path / "cache" / "blocks"
    for token in (owner.name, "0" * 32):
        (blocks / f"tmp-{token}-7").write_bytes(b"half a block")
    (owner.parent / f".{'0' * 32}").touch()
    (tmp_path / "cache" / "index.db").unlink()
    second = open_disk(tmp_path / "cache")
    assert len(list(owner.parent.iterdir())) == 2
    assert [path.name for path in blocks.glob("tmp-*")] == [f"tmp-{owner.name}-7"]
    assert held(second) == [0, 1, 2]
    living.link.close()


@pytest.mark.usefixtures("volumes")
def test_small_files_that_a_kill_left_half_written_are_swept_at_the_next_start(tmp_path) -> None:
    memory = tmp_path / "data" / "known.json"
    memory.parent.mkdir()
    filled(tmp_path / "cache").link.close()
    left = [tmp_path / "cache" / ".cache.json-0123abcd", memory.parent / ".known.json-0123abcd"]
    others = [tmp_path / "cache" / ".cache.json-mine", memory.parent / ".other.json-0123abcd"]
    for path in (*left, *others):
        path.write_bytes(b"{")
    disk = open_disk(tmp_path / "cache", memory_file=memory)
    assert [path.exists() for path in (*left, *others)] == [False, False, True, True]
    assert held(disk) == [0, 1, 2]
    disk.link.close()


@pytest.mark.usefixtures("volumes")
def test_a_small_file_that_another_process_is_writing_is_left_alone(tmp_path, monkeypatch) -> None:
    memory, swept = tmp_path / "known.json", []
    rename = os.rename

    def sweeping_rename(source, target, **where):
        """Look for the lock that a sweep needs, between a file's writing and its naming."""
        if str(source).startswith(".known.json"):
            swept.append(source)
            descriptor = os.open(tmp_path, os.O_RDONLY)
            with pytest.raises(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.close(descriptor)
        return rename(source, target, **where)

    monkeypatch.setattr(os, "rename", sweeping_rename)
    open_disk(tmp_path / "cache", memory_file=memory).link.close()
    assert len(swept) == 1
    assert len(json.loads(memory.read_text())) == 1
