"""Events: told once per change, counted when repeated."""

from manifests.engine import EnginePhase, EngineSpec
from manifests.scheme import parse_object
from node_agent.pool.base import EngineView, EngineWant
from node_agent.sync.occurrences import build_event, look, plan_occurrences, plan_repeat

SPEC = EngineSpec.model_validate_json(
    '{"model": "m", "node": "here", "revision": "r", "source": {"path": "/m"}}'
)
WANT = EngineWant("a", "u1", 1, SPEC)
NOW = 1_800_000_000.0


def view(phase: EnginePhase, restarts: int = 0, reason: str = "", message: str = "") -> EngineView:
    return EngineView(WANT, phase, reason, message, restarts=restarts)


def reasons(before: EngineView | None, after: EngineView) -> list[str]:
    seen = look([before]) if before is not None else {}
    return [item.reason for item in plan_occurrences(seen, [after])]


def test_becoming_ready_is_told_once() -> None:
    ready = view(EnginePhase.READY)
    assert reasons(view(EnginePhase.LOADING), ready) == ["Ready"]
    assert reasons(ready, ready) == []


def test_a_failure_is_told_with_the_pools_reason() -> None:
    failed = view(EnginePhase.FAILED, reason="LoadFailed", message="no such file")
    assert reasons(view(EnginePhase.LOADING), failed) == ["LoadFailed"]
    assert reasons(None, failed) == ["LoadFailed"]


def test_a_restart_is_told_as_a_warning() -> None:
    (item,) = plan_occurrences(
        look([view(EnginePhase.READY)]),
        [view(EnginePhase.LOADING, restarts=1, message="killed by signal 9")],
    )
    assert (item.type, item.reason) == ("Warning", "Restarted")
    assert "killed by signal 9" in item.message


def test_a_repeat_finds_the_first_by_name_and_raises_its_count() -> None:
    (item,) = plan_occurrences({}, [view(EnginePhase.READY)])
    first, again = build_event(item, "here", NOW), build_event(item, "here", NOW + 60)
    assert first["metadata"] == again["metadata"]
    assert (first["involvedObject"]["uid"], first["count"]) == ("u1", 1)
    assert parse_object(first).kind == "Event"
    patch = plan_repeat({"count": 4}, again)
    assert (patch["count"], patch["lastTimestamp"]) == (5, again["lastTimestamp"])


def test_events_of_different_objects_have_different_names() -> None:
    other = EngineView(EngineWant("a", "u2", 1, SPEC), EnginePhase.READY)
    names = {
        build_event(item, "here", NOW)["metadata"]["name"]
        for item in plan_occurrences({}, [view(EnginePhase.READY), other])
    }
    assert len(names) == 2
