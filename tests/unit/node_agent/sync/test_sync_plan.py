"""What declared engines and the pool's views mean: wants, statuses, finalizers."""

from dataclasses import replace
from typing import Any

from manifests.kinds.engine import ENGINE_FINALIZER, Engine, EnginePhase
from manifests.kinds.meta import find_condition
from manifests.kinds.scheme import parse_object
from node_agent.pool.base import EngineView, EngineWant
from node_agent.sync.plan import (
    EngineFigures,
    Sent,
    StatusReport,
    is_report_due,
    plan_status,
    plan_stopped,
    plan_sync,
    plan_wanted,
)

NOW = 1_800_000_000.0


def engine(name: str = "a", *, uid: str = "u1", node: str = "here", **meta: Any) -> Engine:
    raw = {
        "apiVersion": "mlxfleet.dev/v1alpha1",
        "kind": "Engine",
        "metadata": {"name": name, "uid": uid, "generation": 3, **meta},
        "spec": {"model": "m", "node": node, "revision": "r", "source": {"path": "/m"}},
    }
    parsed = parse_object(raw)
    assert isinstance(parsed, Engine)
    return parsed


def deleted(name: str = "a", *, uid: str = "u1", others: tuple[str, ...] = ()) -> Engine:
    return engine(
        name,
        uid=uid,
        deletionTimestamp="2026-11-01T00:00:00Z",
        finalizers=[*others, ENGINE_FINALIZER],
    )


def view_of(obj: Engine, phase: EnginePhase = EnginePhase.READY, **more: Any) -> EngineView:
    want = EngineWant(obj.metadata.name or "", obj.metadata.uid or "", 3, obj.spec)
    return EngineView(want, phase, **{"making_progress": phase is EnginePhase.READY, **more})


def plan(engines: list[Engine], views: list[EngineView]) -> Any:
    named = {item.metadata.name or "": item for item in engines}
    return plan_sync(named, views, {}, "here", NOW)


def test_what_is_bound_here_and_not_being_deleted_is_wanted() -> None:
    objects = [engine("a"), deleted("b"), engine("c", node="elsewhere")]
    assert list(plan_wanted(objects, "here")) == ["a"]
    assert list(plan(objects, []).wanted) == ["a"]


def test_a_deleted_engine_is_let_go_only_when_its_process_is_gone() -> None:
    gone = deleted(others=("other/finalizer",))
    stopping = plan([gone], [view_of(gone, EnginePhase.DRAINING)])
    assert stopping.removals == ()
    assert stopping.reports[0].status.phase is EnginePhase.DRAINING
    (removal,) = plan([gone], []).removals
    assert (removal.name, removal.uid, removal.finalizers) == ("a", "u1", ("other/finalizer",))


def test_a_deleted_engine_without_our_finalizer_is_left_alone() -> None:
    obj = engine(deletionTimestamp="2026-11-01T00:00:00Z", finalizers=["other/finalizer"])
    assert plan([obj], []).removals == ()


def test_an_old_process_does_not_speak_for_a_new_engine_of_the_same_name() -> None:
    old, new = deleted(uid="u1"), engine(uid="u2")
    assert plan([new], [view_of(old, EnginePhase.DRAINING)]).reports == ()
    (removal,) = plan([deleted(uid="u2")], [view_of(old, EnginePhase.DRAINING)]).removals
    assert removal.uid == "u2"


def test_a_ready_engine_reports_ready_with_its_figures() -> None:
    obj = engine()
    figures = EngineFigures(5, 6, 7, 8, 9)
    status = plan_status(obj, view_of(obj, pid=42, restarts=2), figures, NOW)
    assert (status.phase, status.pid, status.restarts) == (EnginePhase.READY, 42, 2)
    assert (status.observed_generation, status.tokens_fit_now, status.tokens_fit_ever) == (3, 8, 9)
    ready = find_condition(status.conditions, "Ready")
    assert ready is not None
    assert (ready.status, ready.reason) == ("True", "EngineReady")


def test_an_engine_without_progress_is_not_ready_whatever_its_phase_says() -> None:
    obj = engine()
    status = plan_status(obj, view_of(obj, making_progress=False), EngineFigures(), NOW)
    ready = find_condition(status.conditions, "Ready")
    assert ready is not None
    assert (ready.status, ready.reason) == ("False", "NoProgress")


def test_progress_is_told_only_while_there_is_some() -> None:
    obj = engine()
    loading = view_of(obj, EnginePhase.LOADING, progress_done_bytes=3, progress_total_bytes=9)
    status = plan_status(obj, loading, EngineFigures(), NOW)
    assert status.progress is not None
    assert (status.progress.done, status.progress.total) == (3, 9)
    assert plan_status(obj, view_of(obj), EngineFigures(), NOW).progress is None


def test_a_restart_time_does_not_flicker_by_rounding() -> None:
    obj = engine()
    failed = view_of(obj, EnginePhase.FAILED, restart_in_seconds=10.0)
    first = plan_status(obj, failed, EngineFigures(), NOW)
    seen = obj.model_copy(update={"status": first})
    later = plan_status(seen, replace(failed, restart_in_seconds=9.2), EngineFigures(), NOW + 1)
    assert later.next_restart_time == first.next_restart_time


def sent_and_next(**changes: Any) -> tuple[Sent, StatusReport]:
    obj = engine()
    status = plan_status(obj, view_of(obj), EngineFigures(), NOW)
    return Sent("u1", status, NOW), StatusReport("a", "u1", status.model_copy(update=changes))


def test_a_transition_is_reported_at_once_and_figures_every_so_often() -> None:
    sent, same = sent_and_next()
    assert not is_report_due(sent, same, NOW + 60, 10)
    _, figures = sent_and_next(running=5, footprint_bytes=7)
    assert not is_report_due(sent, figures, NOW + 9, 10)
    assert is_report_due(sent, figures, NOW + 10, 10)
    _, transition = sent_and_next(phase=EnginePhase.FAILED)
    assert is_report_due(sent, transition, NOW, 10)


def test_a_first_report_and_a_new_object_of_the_same_name_are_due() -> None:
    sent, report = sent_and_next()
    assert is_report_due(None, report, NOW, 10)
    assert is_report_due(replace(sent, uid="u0"), report, NOW, 10)


def test_when_the_agent_stops_every_engine_here_is_said_to_be_stopped() -> None:
    named = {"a": engine("a"), "b": engine("b", node="elsewhere")}
    (report,) = plan_stopped(named, "here", NOW)
    assert (report.name, report.status.phase) == ("a", EnginePhase.STOPPED)
    assert (report.status.reason, report.status.pid) == ("AgentStopped", None)
