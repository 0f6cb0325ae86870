"""B72: the embedded store never starts on files it cannot trust, and leaves them as they are."""

# ruff: noqa: ASYNC240 - the files are small and nothing else runs on the loop

import asyncio
import shutil
import sqlite3
from pathlib import Path

import pytest

from controller.store.base import StoreError, StoreUnreadableError
from controller.store.claim import StoreInUseError
from controller.store.sqlite import SqliteStore


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "fleet.db"


async def write(path: Path, count: int, start: int = 0) -> None:
    store = await SqliteStore.open(path)
    for number in range(start, start + count):
        await store.create(f"models/{number:03}", {"n": number, "text": "payload" * 40})
    await store.close()


async def refuses(path: Path, words: str) -> None:
    before = path.read_bytes() if path.exists() else None
    with pytest.raises(StoreUnreadableError, match=words):
        await SqliteStore.open(path)
    assert (path.read_bytes() if path.exists() else None) == before


async def test_values_history_and_revision_survive_a_restart(path: Path):
    await write(path, 3)
    store = await SqliteStore.open(path)
    assert await store.revision() == 3
    assert [r.value["n"] for r in (await store.list("models/")).records] == [0, 1, 2]
    changes = store.watch("models/", after_revision=1)
    assert [(await anext(changes)).record.revision for _ in range(2)] == [2, 3]
    await changes.aclose()
    assert (await store.create("models/new", {})).revision == 4
    await store.close()


async def test_compaction_survives_a_restart(path: Path):
    await write(path, 5)
    store = await SqliteStore.open(path)
    await store.compact(4)
    await store.close()
    store = await SqliteStore.open(path)
    with pytest.raises(StoreError, match="older than the oldest kept, 4"):
        await anext(store.watch("", after_revision=3))
    await store.close()


async def test_a_second_opener_is_refused_and_named(path: Path):
    store = await SqliteStore.open(path)
    with pytest.raises(StoreInUseError, match=r"in use by process \d+; stop that controller"):
        await SqliteStore.open(path)
    await store.close()
    await (await SqliteStore.open(path)).close()


async def test_a_file_of_a_newer_version_is_refused(path: Path):
    await write(path, 1)
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    await refuses(path, "newer mlxfleet")


async def test_another_programs_database_is_refused(path: Path):
    path.parent.mkdir()
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    await refuses(path, "not one of mlxfleet")


async def test_a_file_that_is_no_database_is_refused(path: Path):
    path.parent.mkdir()
    path.write_bytes(b"\0" * 8192)
    await refuses(path, "left as it is|not a database")


async def test_a_missing_database_beside_its_watermark_is_not_replaced_by_an_empty_one(path: Path):
    await write(path, 2)
    path.unlink()
    await refuses(path, "missing or empty")
    assert not path.exists()
    path.with_name("fleet.db.acked").unlink()
    store = await SqliteStore.open(path)
    assert await store.revision() == 0
    await store.close()


async def test_an_older_copy_put_in_place_is_refused(path: Path, tmp_path: Path):
    await write(path, 2)
    shutil.copy(path, tmp_path / "backup.db")
    await write(path, 2, start=2)
    shutil.copy(tmp_path / "backup.db", path)
    await refuses(path, "at revision 2, but writes up to 4 were acknowledged")


async def test_a_lost_write_ahead_log_is_noticed(path: Path, tmp_path: Path):
    store = await SqliteStore.open(path)
    for number in range(5):
        await store.create(f"models/{number}", {})
    # What a kill leaves behind, with the log gone.
    stolen = tmp_path / "stolen"
    stolen.mkdir()
    for name in ("fleet.db", "fleet.db.acked"):
        shutil.copy(path.with_name(name), stolen / name)
    await store.close()
    with pytest.raises(StoreUnreadableError):
        await SqliteStore.open(stolen / "fleet.db")


async def test_a_flipped_byte_anywhere_in_the_data_never_loads_as_something_else(path: Path):
    await write(path, 12)
    good = path.read_bytes()
    positions = [good.find(b"payload", start) for start in range(4096, len(good), 4096)]
    offsets = [*range(100, len(good), 997), *(at for at in positions if at > 0)]
    wrong = []
    for offset in offsets:
        damaged = bytearray(good)
        damaged[offset] ^= 0x41
        path.write_bytes(bytes(damaged))
        try:
            store = await SqliteStore.open(path)
        except StoreUnreadableError:
            continue
        values = [record.value["n"] for record in (await store.list("models/")).records]
        if values != list(range(12)) or await store.revision() != 12:
            wrong.append(offset)
        await store.close()
    assert wrong == []


async def test_a_file_cut_at_any_page_is_refused(path: Path):
    await write(path, 12)
    good = path.read_bytes()
    for size in range(4096, len(good), 4096):
        path.write_bytes(good[:size])
        await refuses(path, "damaged|missing|acknowledged")


async def test_a_failed_commit_is_told_to_its_caller_and_changes_nothing(path: Path):
    store = await SqliteStore.open(path)
    await store.create("models/a", {})
    other = sqlite3.connect(path)
    other.execute(
        "CREATE TRIGGER full BEFORE INSERT ON changes BEGIN SELECT raise(FAIL, 'full'); END"
    )
    other.commit()
    results = await asyncio.gather(
        *(store.create(f"models/b{n}", {}) for n in range(3)), return_exceptions=True
    )
    assert all(isinstance(r, StoreError) and "cannot write" in str(r) for r in results)
    assert (await store.revision(), await store.get("models/b0")) == (1, None)
    other.execute("DROP TRIGGER full")
    other.commit()
    other.close()
    assert (await store.create("models/b0", {})).revision == 2
    await store.close()
