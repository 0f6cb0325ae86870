"""Events: told once per change, counted when repeated."""

from dataclasses import replace

import pytest

from manifests.kinds.engine import EnginePhase, EngineSpec
from manifests.kinds.meta import Condition, ConditionStatus
from manifests.kinds.node import PressureLevel
from manifests.kinds.scheme import parse_object
from node_agent.memory.enforcer_plan import AbortRow, Action, Evict, ReclaimCache, ShrinkHotCache
from node_agent.pool.base import EngineView, EngineWant
from node_agent.sync.occurrences import (
    Occurrence,
    Subject,
    build_event,
    look,
    merge_occurrence,
    plan_action_occurrence,
    plan_condition_occurrences,
    plan_level_occurrence,
    plan_occurrences,
    plan_repeat,
)

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


ENGINE, NODE = Subject("Engine", "a", "u1"), Subject("Node", "here", "n1")


@pytest.mark.parametrize(
    ("action", "type_", "reason", "words"),
    [
        (AbortRow("a", "r", "held 9"), "Warning", "PrefillAborted", "held 9"),
        (ReclaimCache("a"), "Normal", "Reclaimed", "cached buffers"),
        (ShrinkHotCache(0), "Normal", "HotCacheShrunk", "0 B"),
    ],
)
def test_each_measure_of_the_enforcer_is_told(
    action: Action, type_: str, reason: str, words: str
) -> None:
    told = plan_action_occurrence(action, ENGINE)
    assert told is not None
    assert (told.kind, told.name, told.type, told.reason) == ("Engine", "a", type_, reason)
    assert words in told.message


def test_an_unload_is_told_once_by_the_engines_view_whoever_began_it() -> None:
    assert plan_action_occurrence(Evict("a", "x"), ENGINE) is None
    ready = view(EnginePhase.READY)
    leaving = replace(
        ready, phase=EnginePhase.DRAINING, evicted=True, reason="IdleTTL", message="no request"
    )
    stopped = replace(leaving, phase=EnginePhase.STOPPED, freed_bytes=1 << 30)
    (told,) = plan_occurrences(look([ready]), [leaving])
    assert (told.reason, told.message) == ("IdleTTL", "unloaded: no request")
    (after,) = plan_occurrences(look([leaving]), [stopped])
    assert (after.reason, "1.00 GiB" in after.message) == ("Unloaded", True)
    assert plan_occurrences(look([stopped]), [stopped]) == ()


def test_a_load_that_is_refused_for_memory_is_told_as_such() -> None:
    refused = view(EnginePhase.FAILED, reason="InsufficientMemory", message="needs 9 GiB")
    assert reasons(view(EnginePhase.PENDING), refused) == ["LoadRefused"]


def test_only_the_beginning_and_the_end_of_pressure_are_told() -> None:
    ok, soft, hard, _ = PressureLevel
    begun, ended = (
        plan_level_occurrence(ok, hard, "x", NODE),
        plan_level_occurrence(soft, ok, "x", NODE),
    )
    assert begun is not None
    assert ended is not None
    assert (begun.reason, begun.type) == ("AdmissionPaused", "Warning")
    assert (ended.reason, ended.type) == ("AdmissionResumed", "Normal")
    assert plan_level_occurrence(soft, hard, "x", NODE) is None


def condition(type_: str, status: ConditionStatus) -> Condition:
    return Condition(type=type_, status=status, reason="r", message="what to do")


def test_a_condition_that_comes_true_is_told_once() -> None:
    true = (condition("WiredLimitLow", ConditionStatus.TRUE),)
    false = (condition("WiredLimitLow", ConditionStatus.FALSE),)
    assert [item.reason for item in plan_condition_occurrences((), true, NODE)] == ["WiredLimitLow"]
    assert plan_condition_occurrences(true, true, NODE) == ()
    assert plan_condition_occurrences(true, false, NODE) == ()
    assert plan_condition_occurrences((), (condition("Ready", ConditionStatus.TRUE),), NODE) == ()


def test_repeats_that_wait_are_posted_as_one_with_their_count() -> None:
    one = plan_action_occurrence(ReclaimCache("a"), ENGINE)
    other = plan_action_occurrence(AbortRow("a", "r", "x"), ENGINE)
    assert one is not None
    assert other is not None
    waiting: tuple[Occurrence, ...] = ()
    for item in (one, other, one, one):
        waiting = merge_occurrence(waiting, item)
    assert [(item.reason, item.count) for item in waiting] == [
        ("Reclaimed", 3),
        ("PrefillAborted", 1),
    ]
    event = build_event(waiting[0], "here", NOW)
    assert event["count"] == 3
    assert plan_repeat({"count": 4}, event)["count"] == 7
