"""Deletion, finalizers and preconditions (B79), and keeping Events bounded."""

import pytest

from controller.reconcile.event_plan import plan_event_prune
from controller.reconcile.event_pruner import EventPruner
from controller.registry.registry import DeleteOptions, Registry
from controller.store.memory import MemoryStore
from manifests.times import format_time
from manifests.wire.status import ApiError
from tests.support.objects import engine, event, model

HELD = {"metadata": {"finalizers": ["mlxfleet.dev/engine-stopped"]}}


@pytest.fixture
def registry() -> Registry:
    return Registry(MemoryStore())


async def refused(awaitable, code: int, words: str = ".") -> None:
    with pytest.raises(ApiError, match=words) as refusal:
        await awaitable
    assert refusal.value.code == code


async def test_without_finalizers_the_object_is_gone_at_once(registry):
    await registry.create("models", model())
    deleted = await registry.delete_with("models", "m", DeleteOptions())
    assert deleted.gone
    await refused(registry.get("models", "m"), 404)
    await refused(registry.delete("models", "m"), 404)


async def test_finalizers_hold_the_object_and_the_last_one_lets_it_go(registry):
    await registry.create("engines", engine())
    await registry.patch("engines", "m-1", HELD)
    deleted = await registry.delete_with("engines", "m-1", DeleteOptions())
    assert not deleted.gone
    assert "deletionTimestamp" in deleted.object["metadata"]
    again = await registry.delete_with("engines", "m-1", DeleteOptions())
    assert again.object == deleted.object
    status = {"status": {"phase": "Draining"}}
    await registry.patch("engines", "m-1", status, subresource="status")
    await registry.patch("engines", "m-1", {"metadata": {"finalizers": None}})
    await refused(registry.get("engines", "m-1"), 404)


async def test_an_unknown_finalizer_is_kept_and_respected(registry):
    await registry.create("models", model())
    await registry.patch("models", "m", {"metadata": {"finalizers": ["a.dev/x", "b.dev/y"]}})
    await registry.delete("models", "m")
    left = await registry.patch("models", "m", {"metadata": {"finalizers": ["a.dev/x"]}})
    assert left["metadata"]["finalizers"] == ["a.dev/x"]
    assert (await registry.get("models", "m"))["metadata"]["finalizers"] == ["a.dev/x"]


async def test_what_is_being_deleted_takes_no_new_spec_and_no_new_finalizer(registry):
    await registry.create("models", model())
    await registry.patch("models", "m", HELD)
    await registry.delete("models", "m")
    await refused(registry.patch("models", "m", {"spec": {"replicas": 2}}), 409, "being deleted")
    more = {"metadata": {"finalizers": [*HELD["metadata"]["finalizers"], "c.dev/z"]}}
    await refused(registry.patch("models", "m", more), 409, "no finalizer can be added")


async def test_preconditions_protect_a_namesake(registry):
    first = await registry.create("models", model())
    uid = first["metadata"]["uid"]
    await registry.delete("models", "m", uid=uid)
    await registry.create("models", model())
    await refused(registry.delete("models", "m", uid=uid), 409, "uid")
    stale = DeleteOptions(resource_version="1")
    await refused(registry.delete_with("models", "m", stale), 409)


def test_old_and_superfluous_events_are_pruned():
    now = 1_000_000.0
    events = [event(f"e{age}", format_time(now - age)) for age in (0, 10, 20, 30, 5000)]
    assert plan_event_prune(events, now) == ("e5000",)
    assert plan_event_prune(events, now, keep_count=2) == ("e20", "e30", "e5000")


def test_an_event_without_times_is_as_old_as_its_object():
    plain = event("e")
    plain["metadata"]["creationTimestamp"] = format_time(990.0)
    assert plan_event_prune([plain], 1000.0) == ()
    assert plan_event_prune([plain], 99_000.0) == ("e",)


async def test_the_pruner_deletes_what_is_due(registry):
    await registry.create("events", event("old", format_time(0.0)))
    await registry.create("events", event("new", format_time(9_999.0)))
    assert await EventPruner(registry, clock=lambda: 10_000.0).prune() == 1
    assert [e["metadata"]["name"] for e in (await registry.list_objects("events")).items] == ["new"]
