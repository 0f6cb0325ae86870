"""What every store promises, run against each backend."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from controller.store.base import (
    Change,
    ChangeType,
    CompactedError,
    FutureRevisionError,
    KeyExistsError,
    KeyNotFoundError,
    RevisionConflictError,
    Store,
    StoreError,
)
from controller.store.memory import MemoryStore
from controller.store.sqlite import SqliteStore

HISTORY = 100


@pytest.fixture(params=["memory", "sqlite"])
async def store(request, tmp_path) -> AsyncIterator[Store]:
    if request.param == "memory":
        opened: Store = MemoryStore(history_changes=HISTORY)
    else:
        opened = await SqliteStore.open(tmp_path / "fleet.db", history_changes=HISTORY)
    yield opened
    await opened.close()


async def take(changes: AsyncIterator[Change], count: int) -> list[Change]:
    """Return the next changes of a watch, within a bounded time."""

    async def collect() -> list[Change]:
        return [await anext(changes) for _ in range(count)]

    return await asyncio.wait_for(collect(), 10)


async def test_what_was_written_is_read_back_with_its_revision(store: Store):
    created = await store.create("models/a", {"n": 1, "deep": {"list": [1, None, "ü"]}})
    found = await store.get("models/a")
    assert found == created
    assert created.revision == 1
    assert await store.revision() == 1
    assert await store.get("models/b") is None


async def test_a_taken_key_is_not_created_again(store: Store):
    await store.create("models/a", {"n": 1})
    with pytest.raises(KeyExistsError):
        await store.create("models/a", {"n": 2})
    assert await store.revision() == 1


async def test_an_update_needs_the_current_revision(store: Store):
    first = await store.create("models/a", {"n": 1})
    second = await store.update("models/a", {"n": 2}, expected_revision=first.revision)
    assert second.revision == 2
    with pytest.raises(RevisionConflictError) as conflict:
        await store.update("models/a", {"n": 3}, expected_revision=first.revision)
    assert (conflict.value.expected, conflict.value.current) == (1, 2)
    with pytest.raises(KeyNotFoundError):
        await store.update("models/b", {}, expected_revision=1)


async def test_a_delete_takes_a_new_revision_and_returns_the_last_value(store: Store):
    created = await store.create("models/a", {"n": 1})
    with pytest.raises(RevisionConflictError):
        await store.delete("models/a", expected_revision=7)
    gone = await store.delete("models/a", expected_revision=created.revision)
    assert (gone.value, gone.revision) == ({"n": 1}, 2)
    assert await store.get("models/a") is None
    with pytest.raises(KeyNotFoundError):
        await store.delete("models/a", expected_revision=2)
    again = await store.create("models/a", {"n": 9})
    assert again.revision == 3


async def test_a_caller_cannot_change_what_is_stored_by_changing_its_value(store: Store):
    value = {"labels": {"a": "1"}}
    await store.create("models/a", value)
    value["labels"]["a"] = "2"
    found = await store.get("models/a")
    assert found is not None
    found.value["labels"]["a"] = "3"
    page = await store.list("models/")
    assert page.records[0].value == {"labels": {"a": "1"}}


async def test_a_value_that_json_cannot_say_is_refused_before_anything_is_written(store: Store):
    with pytest.raises(ValueError, match="JSON"):
        await store.create("models/a", {"n": float("nan")})
    assert await store.revision() == 0


async def test_a_list_is_sorted_paged_and_confined_to_its_prefix(store: Store):
    for key in ("models/b", "modelsx/z", "models/a", "model", "models/c", "nodes/a"):
        await store.create(key, {"key": key})
    page = await store.list("models/")
    assert [record.key for record in page.records] == ["models/a", "models/b", "models/c"]
    assert (page.revision, page.last_key, page.remaining) == (6, None, 0)
    head = await store.list("models/", limit=2)
    assert (head.last_key, head.remaining) == ("models/b", 1)
    tail = await store.list("models/", limit=2, after_key=head.last_key)
    assert [record.key for record in tail.records] == ["models/c"]
    assert tail.last_key is None


async def test_a_watch_replays_from_an_old_revision_and_goes_on_live(store: Store):
    first = await store.create("models/a", {"n": 1})
    await store.create("nodes/x", {})
    async with aclosing(store.watch("models/", after_revision=0)) as changes:
        assert [change.record for change in await take(changes, 1)] == [first]
        second = await store.update("models/a", {"n": 2}, expected_revision=1)
        await store.delete("models/a", expected_revision=second.revision)
        put, gone = await take(changes, 2)
    assert put == Change(ChangeType.PUT, second, first)
    assert (gone.type, gone.record.revision, gone.previous) == (ChangeType.DELETE, 4, second)
    assert gone.record.value == {"n": 2}


async def test_a_watch_from_now_sees_only_what_follows(store: Store):
    await store.create("models/a", {})
    async with aclosing(store.watch("", after_revision=1)) as changes:
        later = await store.create("models/b", {})
        (change,) = await take(changes, 1)
    assert change == Change(ChangeType.PUT, later, None)


async def test_a_watch_from_a_revision_that_does_not_exist_yet_is_refused(store: Store):
    with pytest.raises(FutureRevisionError):
        await take(store.watch("", after_revision=1), 1)


async def test_a_watch_from_compacted_history_is_told_so(store: Store):
    for number in range(5):
        await store.create(f"models/{number}", {})
    await store.compact(3)
    with pytest.raises(CompactedError) as compacted:
        await take(store.watch("", after_revision=2), 1)
    assert (compacted.value.asked, compacted.value.oldest) == (2, 3)
    changes = await take(store.watch("", after_revision=3), 2)
    assert [change.record.revision for change in changes] == [4, 5]
    assert len((await store.list("models/")).records) == 5
    with pytest.raises(FutureRevisionError):
        await store.compact(6)


async def test_history_is_bounded_and_a_slow_reader_is_told_what_it_missed(store: Store):
    record = await store.create("models/a", {"n": 0})
    async with aclosing(store.watch("", after_revision=0)) as slow:
        await take(slow, 1)
        for number in range(4 * HISTORY):
            record = await store.update(
                "models/a", {"n": number}, expected_revision=record.revision
            )
        with pytest.raises(CompactedError):
            await take(slow, 4 * HISTORY)
    near = record.revision - HISTORY
    recent = await take(store.watch("", after_revision=near), HISTORY)
    assert [change.record.revision for change in recent] == list(
        range(near + 1, near + HISTORY + 1)
    )


async def test_a_hundred_concurrent_increments_lose_none(store: Store):
    await store.create("counter", {"n": 0})

    async def increment() -> None:
        while True:
            found = await store.get("counter")
            assert found is not None
            await asyncio.sleep(0)
            try:
                await store.update(
                    "counter", {"n": found.value["n"] + 1}, expected_revision=found.revision
                )
            except RevisionConflictError:
                continue
            return

    await asyncio.gather(*(increment() for _ in range(100)))
    found = await store.get("counter")
    assert found is not None
    assert (found.value["n"], found.revision) == (100, 101)


async def test_concurrent_creations_of_one_key_have_one_winner(store: Store):
    results = await asyncio.gather(
        *(store.create("models/a", {"n": n}) for n in range(20)), return_exceptions=True
    )
    assert sum(isinstance(result, KeyExistsError) for result in results) == 19


async def test_every_watch_sees_every_change_in_the_same_order(store: Store):
    watches = [store.watch("", after_revision=0) for _ in range(5)]
    readers = [asyncio.create_task(take(watch, 50)) for watch in watches]
    await asyncio.gather(*(store.create(f"models/{number}", {}) for number in range(50)))
    seen = await asyncio.gather(*readers)
    assert [change.record.revision for change in seen[0]] == list(range(1, 51))
    assert all(one == seen[0] for one in seen)


async def test_closing_ends_watches_and_refuses_writes(store: Store):
    changes = store.watch("", after_revision=0)
    waiting = asyncio.ensure_future(anext(changes, None))
    await asyncio.sleep(0)
    await store.close()
    assert await asyncio.wait_for(waiting, 10) is None
    with pytest.raises(StoreError):
        await store.create("models/a", {})
