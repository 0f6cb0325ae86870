from typing import Any, cast

from controller.registry.registry import Registry
from controller.runtime.events import EventRecorder
from controller.store.memory import MemoryStore
from manifests.kinds.event import Event
from manifests.kinds.model import Model
from manifests.kinds.scheme import parse_object
from manifests.wire.status import ApiError


def model() -> Model:
    raw = {
        "apiVersion": "mlxfleet.dev/v1alpha1",
        "kind": "Model",
        "metadata": {"name": "qwen", "uid": "u1"},
        "spec": {"source": {"path": "/models/x"}},
    }
    return cast(Model, parse_object(raw))


async def stored(registry: Registry) -> list[Event]:
    listed = await registry.list_objects("events")
    return [cast(Event, parse_object(item)) for item in listed.items]


async def test_the_same_happening_again_raises_the_count_of_one_event() -> None:
    registry = Registry(MemoryStore())
    now = [1_000_000.0]
    recorder = EventRecorder(registry, "controller", clock=lambda: now[0])
    await recorder.record(model(), "Unplaceable", "needs 60 GiB", warning=True)
    now[0] += 60
    await recorder.record(model(), "Unplaceable", "needs 60 GiB", warning=True)
    (event,) = await stored(registry)
    assert (event.count, event.type, event.involved_object.uid) == (2, "Warning", "u1")
    assert event.first_timestamp == "1970-01-12T13:46:40Z"
    assert event.last_timestamp == "1970-01-12T13:47:40Z"


async def test_another_message_is_another_event() -> None:
    registry = Registry(MemoryStore())
    recorder = EventRecorder(registry, "controller")
    await recorder.record(model(), "Placed", "on a")
    await recorder.record(model(), "Placed", "on b")
    assert sorted(event.message for event in await stored(registry)) == ["on a", "on b"]


async def test_a_failure_to_record_never_reaches_the_caller() -> None:
    class Down:
        async def create(self, plural: str, obj: Any) -> Any:
            raise ApiError(503, "the store is full")

    await EventRecorder(cast(Any, Down()), "controller").record(model(), "Placed", "on a")
