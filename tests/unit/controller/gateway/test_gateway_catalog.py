"""Public names: what is listed, what resolves, and why a model has no engine (B11, B58)."""

from typing import Any

from controller.gateway.nodes.catalog import (
    FleetView,
    explain_no_engine,
    is_catching_up,
    list_models,
    plan_names,
    resolve,
)
from controller.gateway.nodes.endpoints import EndpointKey, EndpointView
from controller.gateway.nodes.routing import Asking
from manifests.errors import Code, Refusal, Retryable
from manifests.kinds.engine import Engine, EnginePhase
from manifests.kinds.model import Model
from manifests.kinds.node import PressureLevel
from manifests.kinds.scheme import parse_object
from tests.support import scripted_source


def endpoint(engine: str, model: str, *aliases: str, accepting: bool = True) -> EndpointView:
    return EndpointView(
        key=EndpointKey("n", engine),
        address="http://n",
        model=model,
        aliases=aliases,
        phase=EnginePhase.READY,
        accepting=accepting,
        running=0,
        waiting=0,
        max_running=1,
        max_waiting=1,
        context_tokens=1,
        tokens_fit_now=1,
        prefill_tokens_per_second=1.0,
        decode_tokens_per_second=1.0,
        pressure=PressureLevel.OK,
        reported_seconds=0.0,
    )


def models(*items: dict[str, Any]) -> dict[str, Model]:
    parsed = [parse_object(item) for item in items]
    return {str(item.metadata.name): item for item in parsed if isinstance(item, Model)}


def engines(*items: dict[str, Any]) -> dict[str, Engine]:
    parsed = [parse_object(item) for item in items]
    return {str(item.metadata.name): item for item in parsed if isinstance(item, Engine)}


def view(declared: dict[str, Model], *endpoints: EndpointView, **more: Any) -> FleetView:
    return FleetView(True, endpoints, declared, names=plan_names(declared, endpoints), **more)


A = scripted_source.model("a", aliases=("org/x", "b"))
B = scripted_source.model("b", aliases=("org/x",))


def test_a_models_own_name_beats_an_alias_and_the_first_owner_keeps_one() -> None:
    names = plan_names(models(A, B), ())
    assert names == {"a": "a", "b": "b", "org/x": "a"}


def test_names_match_exactly() -> None:
    fleet = view(models(A))
    assert resolve(fleet, "org/x", Asking()) == ("a",)
    for wrong in ("A", "a ", "x", "org"):
        refusal = resolve(fleet, wrong, Asking())
        assert isinstance(refusal, Refusal)
        assert (refusal.code, refusal.param) == (Code.MODEL_NOT_FOUND, "model")
        assert "a, b, org/x" in refusal.hint


def test_a_long_list_of_names_is_cut() -> None:
    many = models(*[scripted_source.model(f"m{i:03}") for i in range(500)])
    refusal = resolve(view(many), "other", Asking())
    assert isinstance(refusal, Refusal)
    assert "480 more" in refusal.hint


def test_before_the_fleet_is_seen_nothing_is_called_unknown() -> None:
    refusal = resolve(FleetView(), "a", Asking())
    assert isinstance(refusal, Refusal)
    assert (refusal.code, refusal.retryable) == (Code.NO_READY_ENGINE, Retryable.LATER)


def test_only_what_a_ready_engine_serves_is_listed_once() -> None:
    fleet = view(
        models(A, B),
        endpoint("a-1", "a", "org/x"),
        endpoint("a-2", "a", "org/x"),
        endpoint("b-1", "b", accepting=False),
    )
    assert [item["id"] for item in list_models(fleet, 7)] == ["a", "org/x"]
    assert list_models(view(models(A)), 7) == []


def test_a_model_known_only_from_reports_is_served_with_a_default_age() -> None:
    listed = list_models(view({}, endpoint("a-1", "a")), 7)
    assert [(item["id"], item["created"]) for item in listed] == [("a", 7)]


def test_a_model_without_engines_is_explained_by_engines_and_conditions() -> None:
    said = {"type": "Placed", "status": "False", "reason": "TooBig", "message": "needs 9 GiB"}
    fine = {"type": "Valid", "status": "True", "reason": "Ok", "message": "all good"}
    declared = models(scripted_source.model("a", conditions=[said, fine]))
    copies = engines(
        scripted_source.engine("a-1", of="a", on="n", phase="Loading", message="40%"),
        scripted_source.engine("a-2", of="a", on="n", phase="Ready"),
        scripted_source.engine("z-1", of="z", on="n", phase="Failed"),
    )
    refusal = explain_no_engine(view(declared, engines=copies), "a")
    assert (refusal.code, refusal.http_status) == (Code.NO_READY_ENGINE, 503)
    assert "a-1 on n is Loading (40%)" in refusal.hint
    assert "a-2 is Ready, but node n is not open" in refusal.hint
    assert "needs 9 GiB" in refusal.hint
    assert "all good" not in refusal.hint
    assert "z-1" not in refusal.hint
    assert explain_no_engine(view({}), "a").hint == "No node runs it."


def test_a_report_behind_what_is_declared_is_worth_a_moment_and_a_dead_node_is_not() -> None:
    ready = engines(scripted_source.engine("a-1", of="a", on="n", phase="Ready"))
    loading = engines(scripted_source.engine("a-1", of="a", on="n", phase="Loading"))
    behind = endpoint("a-1", "a", accepting=False)
    assert is_catching_up(view(models(A), behind, engines=ready), "a")
    assert is_catching_up(view(models(A), engines=ready), "a")
    assert not is_catching_up(view(models(A), endpoint("a-1", "a"), engines=ready), "a")
    assert not is_catching_up(view(models(A), behind, engines=loading), "a")
    assert not is_catching_up(view(models(A), behind, engines=ready), "b")
    gone = view(models(A), behind, engines=ready, down=frozenset({"n"}))
    assert not is_catching_up(gone, "a")
