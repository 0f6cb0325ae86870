import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from manifests.kinds.model import Model
from manifests.wire.informer import Informer, Retry
from manifests.wire.listwatch import ObjectList, RawObject, WatchEvent, WatchType
from manifests.wire.status import ApiError


def model(name: str, version: int, replicas: int = 1, uid: str = "") -> RawObject:
    return {
        "apiVersion": "mlxfleet.dev/v1alpha1",
        "kind": "Model",
        "metadata": {"name": name, "uid": uid or f"uid-{name}", "resourceVersion": str(version)},
        "spec": {"source": {"path": "/models/x"}, "replicas": replicas},
    }


def event(type_: str, obj: RawObject) -> WatchEvent:
    return WatchEvent(WatchType(type_), obj)


class ScriptedSource:
    """Plays lists and watches in order; when the script ends it hangs, as an idle watch does."""

    def __init__(
        self,
        lists: list[ObjectList | Exception],
        watches: list[list[WatchEvent | Exception]],
    ) -> None:
        self._lists, self._watches = iter(lists), iter(watches)
        self.watched_from: list[str] = []
        self.listed = 0
        self.idle = asyncio.Event()

    async def list_objects(self, plural: str, **selectors: str) -> ObjectList:
        self.listed += 1
        answer = next(self._lists)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def watch_objects(
        self, plural: str, *, resource_version: str, **selectors: str
    ) -> AsyncIterator[WatchEvent]:
        self.watched_from.append(resource_version)
        script = next(self._watches, None)
        if script is None:
            self.idle.set()
            await asyncio.Event().wait()
        for item in script or ():
            if isinstance(item, Exception):
                raise item
            yield item


class Run:
    """An informer over a script, run until the script is over, without waiting for real time."""

    def __init__(self, source: ScriptedSource) -> None:
        self.source, self.delays, self.told = source, cast("list[float]", []), cast("list[str]", [])
        self.now = 0.0
        retry = Retry(clock=lambda: self.now, sleep=self._sleep, random=lambda: 1.0)
        self.informer = Informer(cast(Any, source), "models", retry=retry)
        self.informer.subscribe(self.told.append)

    async def _sleep(self, seconds: float) -> None:
        self.delays.append(seconds)
        await asyncio.sleep(0)

    async def to_the_end(self) -> Informer:
        task = asyncio.create_task(self.informer.run())
        try:
            async with asyncio.timeout(10):
                await self.source.idle.wait()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        return self.informer


def replicas(informer: Informer) -> dict[str, int]:
    return {name: cast(Model, obj).spec.replicas for name, obj in informer.objects.items()}


def listed(version: int, *objects: RawObject) -> ObjectList:
    return ObjectList(objects, str(version))


async def test_a_list_and_the_watch_after_it_make_the_copy() -> None:
    source = ScriptedSource(
        [listed(5, model("a", 3), model("b", 4))],
        [
            [
                event("MODIFIED", model("a", 6, 2)),
                event("DELETED", model("b", 7)),
                event("ADDED", model("c", 8)),
            ]
        ],
    )
    run = Run(source)
    informer = await run.to_the_end()
    assert replicas(informer) == {"a": 2, "c": 1}
    assert run.told == ["a", "b", "a", "b", "c"]
    assert source.watched_from == ["5", "8"]
    assert informer.raw("c") == model("c", 8)
    assert informer.synced


async def test_a_bookmark_moves_the_version_and_tells_nobody() -> None:
    mark = event("BOOKMARK", {"kind": "Model", "metadata": {"resourceVersion": "90"}})
    run = Run(ScriptedSource([listed(5)], [[mark]]))
    await run.to_the_end()
    assert run.source.watched_from == ["5", "90"]
    assert run.told == []


@pytest.mark.parametrize("as_event", [True, False])
async def test_a_version_too_old_is_repaired_by_a_fresh_list(as_event: bool) -> None:
    """B81: 410 as an ERROR line inside the stream, or as the answer itself."""
    expired = ApiError(410, "too old")
    fault = event("ERROR", expired.to_status()) if as_event else expired
    source = ScriptedSource([listed(5, model("a", 3)), listed(50, model("a", 40, 3))], [[fault]])
    run = Run(source)
    informer = await run.to_the_end()
    assert replicas(informer) == {"a": 3}
    assert source.watched_from == ["5", "50"]
    assert informer.counts.faults == 1


async def test_a_delete_missed_while_disconnected_is_noticed() -> None:
    """B83: X deleted, Y made, Z deleted and made anew while the link was down."""
    source = ScriptedSource(
        [
            listed(5, model("x", 1), model("z", 2, uid="old")),
            listed(50, model("y", 40), model("z", 45, uid="new")),
        ],
        [[ApiError(410, "too old")]],
    )
    run = Run(source)
    informer = await run.to_the_end()
    assert sorted(informer.objects) == ["y", "z"]
    assert informer.objects["z"].metadata.uid == "new"
    assert run.told == ["x", "z", "x", "y", "z"]


async def test_a_lost_link_resumes_from_the_last_version_seen() -> None:
    source = ScriptedSource(
        [listed(5)], [[event("ADDED", model("a", 6)), ConnectionError("reset")]]
    )
    run = Run(source)
    informer = await run.to_the_end()
    assert source.watched_from == ["5", "6"]
    assert source.listed == 1
    assert list(informer.objects) == ["a"]


async def test_the_last_state_stays_while_the_api_is_down() -> None:
    gone = ConnectionError("refused")
    source = ScriptedSource(
        [listed(5, model("a", 3)), gone, ApiError(503, "starting"), listed(9, model("a", 3))],
        [[ApiError(410, "too old")]],
    )
    run = Run(source)
    seen: list[tuple[bool, int]] = []
    original = source.list_objects

    async def watching(plural: str, **selectors: str) -> ObjectList:
        seen.append((run.informer.connected, len(run.informer.objects)))
        return await original(plural, **selectors)

    source.list_objects = watching  # type: ignore[method-assign]
    informer = await run.to_the_end()
    assert seen == [(False, 0), (False, 1), (False, 1), (False, 1)]
    assert run.told == ["a"]
    assert informer.connected


async def test_faults_in_a_row_wait_longer_up_to_five_seconds() -> None:
    down: list[ObjectList | Exception] = [ConnectionError("refused") for _ in range(8)]
    run = Run(ScriptedSource([*down, listed(1)], []))
    await run.to_the_end()
    assert run.delays == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0]


async def test_a_server_that_hangs_up_at_once_is_not_asked_in_a_tight_loop() -> None:
    run = Run(ScriptedSource([listed(5)], [[] for _ in range(5)]))
    await run.to_the_end()
    assert run.delays == [0.2, 0.4, 0.8, 1.6, 3.2]


async def test_an_event_without_name_or_version_leads_to_a_fresh_list() -> None:
    garbage = event("ADDED", {"kind": "Model", "metadata": {}})
    source = ScriptedSource([listed(5), listed(6, model("a", 6))], [[garbage]])
    informer = await Run(source).to_the_end()
    assert source.listed == 2
    assert list(informer.objects) == ["a"]


async def test_an_error_line_is_never_taken_for_an_object() -> None:
    odd = event("ERROR", {"kind": "Status", "metadata": {"name": "a", "resourceVersion": "6"}})
    source = ScriptedSource([listed(5), listed(5)], [[odd]])
    informer = await Run(source).to_the_end()
    assert informer.objects == {}


async def test_an_object_from_a_newer_version_is_skipped_and_counted() -> None:
    newer = model("new", 6)
    newer["spec"]["quantumEngine"] = True
    source = ScriptedSource([listed(5, newer, model("a", 3))], [])
    informer = await Run(source).to_the_end()
    assert list(informer.objects) == ["a"]
    assert informer.counts.unparsable == 1


async def test_an_object_that_becomes_unreadable_keeps_its_last_readable_form() -> None:
    newer = model("a", 6, 9)
    newer["spec"]["quantumEngine"] = True
    other = model("b", 7, 9, uid="another")
    other["spec"]["quantumEngine"] = True
    source = ScriptedSource(
        [listed(5, model("a", 3), model("b", 3))],
        [[event("MODIFIED", newer), event("MODIFIED", other)]],
    )
    informer = await Run(source).to_the_end()
    assert replicas(informer) == {"a": 1}


async def test_a_snapshot_does_not_change_under_its_reader() -> None:
    source = ScriptedSource([listed(5, model("a", 3))], [[event("DELETED", model("a", 6))]])
    run = Run(source)
    snapshots = [run.informer.objects]
    run.informer.subscribe(lambda name: snapshots.append(run.informer.objects))
    await run.to_the_end()
    assert [list(snapshot) for snapshot in snapshots] == [[], ["a"], []]
    with pytest.raises(TypeError):
        snapshots[1]["b"] = snapshots[1]["a"]  # type: ignore[index]


async def test_one_failing_subscriber_does_not_starve_the_others() -> None:
    source = ScriptedSource([listed(5, model("a", 3))], [])
    run = Run(source)

    def broken(name: str) -> None:
        raise RuntimeError(name)

    late: list[str] = []
    run.informer.subscribe(broken)
    end = run.informer.subscribe(late.append)
    await run.to_the_end()
    assert late == ["a"]
    assert run.informer.counts.faults == 0
    end()
