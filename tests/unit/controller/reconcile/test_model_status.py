from typing import Any, cast

from controller.reconcile.model_plan import Wanted, group_engines, plan_engines
from controller.reconcile.model_status import (
    ModelFacts,
    Moment,
    plan_news,
    plan_status,
    progress_left_seconds,
)
from controller.reconcile.observe import observe_engines, placement_request
from manifests.kinds.engine import Engine
from manifests.kinds.meta import Condition, find_condition
from manifests.kinds.model import Model, ModelStatus
from manifests.kinds.scheme import parse_object
from manifests.times import format_time
from tests.support.placing import SOURCE, fleet, node

API = "mlxfleet.dev/v1alpha1"


def moment(seconds: float) -> Moment:
    return Moment(seconds, format_time(seconds))


def model(replicas: int = 1, status: ModelStatus | None = None) -> Model:
    raw = {
        "apiVersion": API,
        "kind": "Model",
        "metadata": {"name": "m", "uid": "u1", "generation": 3},
        "spec": {"source": {"path": SOURCE}, "replicas": replicas},
    }
    found = cast(Model, parse_object(raw))
    return found.model_copy(update={"status": status or ModelStatus()})


def engine(name: str, phase: str, revision: str = "r1", message: str = "") -> Engine:
    meta: dict[str, Any] = {
        "name": name,
        "uid": name,
        "creationTimestamp": format_time(1000),
        "ownerReferences": [{"kind": "Model", "name": "m", "uid": "u1"}],
    }
    spec = {"model": "m", "node": "a", "revision": revision, "source": {"path": SOURCE}}
    status = {"phase": phase, "message": message}
    raw = {"apiVersion": API, "kind": "Engine", "metadata": meta, "spec": spec, "status": status}
    return cast(Engine, parse_object(raw))


def facts(source: Model, *engines: Engine, gib: float = 30) -> ModelFacts:
    wanted = Wanted(placement_request(source), source.spec.replicas, "r1")
    view = fleet(node("a", gib))
    views = observe_engines(engines, source)
    return ModelFacts(
        wanted,
        group_engines(wanted, views, view),
        plan_engines(wanted, views, view),
        view,
        engines,
    )


def ready(source: Model, *engines: Engine, now: float = 1001, gib: float = 30) -> Condition:
    status = plan_status(source, facts(source, *engines, gib=gib), moment(now))
    found = find_condition(status.conditions, "Ready")
    assert found is not None
    return found


def test_ready_says_why_not() -> None:
    assert ready(model()).reason == "Progressing"
    assert ready(model(), engine("e", "Loading")).reason == "Progressing"
    assert ready(model(), engine("e", "Ready")).status == "True"
    assert ready(model(0)).reason == "ScaledToZero"
    assert ready(model(), gib=2).reason == "Unplaceable"
    failed = ready(model(), engine("e", "Failed", message="bad weights"))
    assert failed.reason == "EngineFailed"
    assert failed.message.endswith("e on a failed: bad weights")


def test_copies_of_the_previous_revision_serve_but_do_not_make_it_ready() -> None:
    found = ready(model(), engine("old", "Ready", "r0"), engine("new", "Loading"))
    assert found.status == "False"
    assert "1 of the previous revision still serve" in found.message
    status = plan_status(
        model(),
        facts(model(), engine("old", "Ready", "r0"), engine("new", "Loading")),
        moment(1001),
    )
    assert (status.replicas, status.ready_replicas, status.updated_replicas) == (2, 1, 1)


def test_a_copy_that_was_unloaded_while_idle_is_ready_however_long_ago() -> None:
    for phase in ("Draining", "Stopped", "Pending", "Loading"):
        asleep = engine("e", phase)
        asleep = asleep.model_copy(
            update={"status": asleep.status.model_copy(update={"wakes": True})}
        )
        found = ready(model(), asleep, now=1000 + 601)
        assert (found.status, found.reason) == ("True", "Ready")
        assert (
            found.message == "1 copies are ready; 1 unloaded while idle, back at the next request"
        )
    assert ready(model(), engine("e", "Stopped")).status == "False"


def test_a_copy_that_never_gets_ready_exceeds_the_progress_deadline() -> None:
    late = ready(model(), engine("e", "Loading"), now=1000 + 601)
    assert late.reason == "ProgressDeadlineExceeded"
    assert "rollout.progressDeadline (10m)" in late.message
    loading = facts(model(), engine("e", "Loading"))
    assert progress_left_seconds(model(), loading, moment(1100)) == 500
    done = facts(model(), engine("e", "Ready"))
    assert progress_left_seconds(model(), done, moment(1100)) is None


def test_the_same_facts_later_make_the_same_status() -> None:
    known = facts(model(), engine("e", "Ready"))
    first = plan_status(model(), known, moment(1001))
    assert plan_status(model(1, first), known, moment(2000)) == first
    assert first.observed_generation == 3


def test_news_are_transitions_and_not_repeats() -> None:
    loading = plan_status(model(), facts(model(), engine("e", "Loading")), moment(1))
    done = plan_status(model(1, loading), facts(model(), engine("e", "Ready")), moment(2))
    assert [item.reason for item in plan_news(loading, done)] == ["Ready"]
    assert plan_news(done, done) == ()
    stuck = plan_status(model(1, done), facts(model(), gib=2), moment(3))
    assert [(item.reason, item.warning) for item in plan_news(done, stuck)] == [
        ("Unplaceable", True)
    ]
