"""Lists, pages and watches of the registry: versions, transitions, bookmarks (B81, B83)."""

import asyncio
from contextlib import aclosing

import pytest

from controller.registry.query import (
    INITIAL_EVENTS_END,
    ListQuery,
    WatchQuery,
    list_kind,
    parse_selector,
    watch_kind,
)
from controller.registry.registry import Registry
from controller.store.memory import MemoryStore
from manifests.kinds.scheme import BY_PLURAL
from manifests.wire.listwatch import WatchEvent
from manifests.wire.status import ApiError
from tests.support.objects import engine, guard, model

MODELS = BY_PLURAL["models"]


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(history_changes=20)


@pytest.fixture
def registry(store) -> Registry:
    return Registry(store)


def labelled(name: str, **labels: str):
    obj = model(name)
    obj["metadata"]["labels"] = labels
    return obj


async def take(events, count: int) -> list[WatchEvent]:
    async def collect() -> list[WatchEvent]:
        return [await anext(events) for _ in range(count)]

    return await asyncio.wait_for(collect(), 10)


def brief(events: list[WatchEvent]) -> list[tuple[str, str, str]]:
    return [
        (
            e.type.value,
            e.object["metadata"].get("name", ""),
            e.object["metadata"]["resourceVersion"],
        )
        for e in events
    ]


async def test_a_list_is_selected_and_sorted_by_name(registry):
    for name, tier in (("c", "x"), ("a", "x"), ("b", "y")):
        await registry.create("models", labelled(name, tier=tier))
    await registry.create("memoryguards", guard())
    listed = await registry.list_objects("models", label_selector="tier=x")
    assert [item["metadata"]["name"] for item in listed.items] == ["a", "c"]
    assert listed.resource_version == "4"


async def test_pages_join_to_the_whole_list_at_the_first_pages_version(registry, store):
    for number in range(5):
        await registry.create("models", model(f"m{number}"))
    names, token, versions = [], "", set()
    while True:
        page = await list_kind(store, MODELS, ListQuery(limit=2, continue_token=token))
        names += [item["metadata"]["name"] for item in page.items]
        versions.add(page.resource_version)
        token = page.continue_token
        if not token:
            break
        await registry.patch("models", "m0", {"spec": {"replicas": len(names)}})
    assert names == [f"m{number}" for number in range(5)]
    assert versions == {"5"}


async def test_a_foreign_continue_token_or_version_is_refused(store):
    for query, code in (
        (ListQuery(continue_token="???"), 400),
        (ListQuery(resource_version="abc"), 400),
        (ListQuery(resource_version="-1"), 400),
        (ListQuery(resource_version="1000"), 410),
    ):
        with pytest.raises(ApiError) as refusal:
            await list_kind(store, MODELS, query)
        assert refusal.value.code == code


async def test_a_watch_without_version_replays_what_exists_then_goes_on(registry):
    await registry.create("models", model("a"))
    async with aclosing(registry.watch("models", WatchQuery())) as events:
        first = await take(events, 1)
        await registry.create("memoryguards", guard())
        await registry.create("models", model("b"))
        await registry.patch("models", "a", {"spec": {"replicas": 3}})
        await registry.delete("models", "b")
        rest = await take(events, 3)
    assert brief(first + rest) == [
        ("ADDED", "a", "1"),
        ("ADDED", "b", "3"),
        ("MODIFIED", "a", "4"),
        ("DELETED", "b", "5"),
    ]


async def test_a_watch_resumes_after_its_version_without_loss_or_repeat(registry):
    for number in range(6):
        await registry.create("models", model(f"m{number}"))
    async with aclosing(registry.watch_objects("models", resource_version="3")) as events:
        assert [line[2] for line in brief(await take(events, 3))] == ["4", "5", "6"]


async def test_a_delete_and_a_namesake_missed_while_away_are_both_told(registry):
    made = await registry.create("models", model("z"))
    version = made["metadata"]["resourceVersion"]
    await registry.delete("models", "z")
    again = await registry.create("models", model("z"))
    async with aclosing(registry.watch_objects("models", resource_version=version)) as events:
        gone, new = await take(events, 2)
    assert (gone.type, new.type) == ("DELETED", "ADDED")
    assert (
        gone.object["metadata"]["uid"] != again["metadata"]["uid"] == new.object["metadata"]["uid"]
    )


async def test_entering_and_leaving_a_selector_are_added_and_deleted(registry):
    await registry.create("models", labelled("a", tier="x"))
    watch = registry.watch_objects("models", resource_version="1", label_selector="tier=y")
    async with aclosing(watch) as events:
        for tier in ("y", "y2", "y", "z"):
            await registry.patch("models", "a", {"metadata": {"labels": {"tier": tier}}})
        await registry.delete("models", "a")
        await registry.create("models", labelled("b", tier="y"))
        seen = await take(events, 5)
    assert brief(seen) == [
        ("ADDED", "a", "2"),
        ("DELETED", "a", "3"),
        ("ADDED", "a", "4"),
        ("DELETED", "a", "5"),
        ("ADDED", "b", "7"),
    ]
    assert seen[3].object["metadata"]["labels"] == {"tier": "y"}


async def test_a_field_selector_follows_one_nodes_engines(registry):
    await registry.create("engines", engine("e1", node="mini"))
    await registry.create("engines", engine("e2", node="studio"))
    watch = registry.watch_objects("engines", resource_version="0", field_selector="spec.node=mini")
    async with aclosing(watch) as events:
        assert [line[1] for line in brief(await take(events, 1))] == ["e1"]


@pytest.mark.parametrize(("version", "code"), [("1", 410), ("9999", 410), ("abc", 400)])
async def test_a_watch_from_a_version_that_cannot_be_served_is_refused(registry, version, code):
    for number in range(40):
        await registry.create("models", model(f"m{number}"))
    with pytest.raises(ApiError) as refusal:
        await take(registry.watch_objects("models", resource_version=version), 1)
    assert refusal.value.code == code
    if code == 410:
        assert refusal.value.reason == "Expired"


async def test_initial_events_end_with_a_marked_bookmark(registry):
    await registry.create("models", model("a"))
    await registry.create("memoryguards", guard())
    async with aclosing(registry.watch("models", WatchQuery(initial_events=True))) as events:
        added, mark = await take(events, 2)
    assert added.type == "ADDED"
    assert mark.type == "BOOKMARK"
    assert mark.object["metadata"] == {
        "resourceVersion": "2",
        "annotations": {INITIAL_EVENTS_END: "true"},
    }


async def test_without_initial_events_only_what_follows_is_told(registry):
    await registry.create("models", model("a"))
    async with aclosing(registry.watch("models", WatchQuery(initial_events=False))) as events:
        pending = asyncio.ensure_future(take(events, 1))
        number = 0
        while not pending.done():
            await registry.create("models", model(f"b{number}"))
            await asyncio.sleep(0)
            number += 1
        assert brief(await pending)[0][1].startswith("b")


async def test_bookmarks_tell_of_progress_made_by_other_kinds(registry, store):
    await registry.create("models", model("a"))
    times = iter(range(0, 100_000, 30))
    watch = watch_kind(
        store,
        MODELS,
        WatchQuery(resource_version="1"),
        clock=lambda: float(next(times)),
        bookmark_seconds=60.0,
    )
    async with aclosing(watch) as events:
        pending = asyncio.ensure_future(take(events, 1))
        for number in range(3):
            await registry.create("memoryguards", guard(f"g{number}"))
            await asyncio.sleep(0)
        assert (await pending)[0].type == "BOOKMARK"
        version = (await pending)[0].object["metadata"]["resourceVersion"]
    assert 2 <= int(version) <= 4


def test_a_bad_selector_is_a_bad_request():
    for labels, fields in (("env in ()", ""), ("", "spec.replicas=1")):
        with pytest.raises(ApiError, match="position") as refusal:
            parse_selector(MODELS, labels, fields)
        assert refusal.value.code == 400
