"""Engines that were unloaded to make room: when a request is sent to wake one, and which."""

from dataclasses import replace
from typing import Any

import pytest

from controller.gateway.choice.demand import Demand
from controller.gateway.choice.scorers import estimate_wake_seconds
from controller.gateway.choice.selection import Circumstances, decide
from controller.gateway.nodes.catalog import FleetView, list_models, plan_names
from controller.gateway.nodes.endpoints import EndpointKey, EndpointView, NodeReport, plan_endpoints
from controller.gateway.sending.refusals import plan_candidates
from manifests.kinds.engine import EnginePhase
from manifests.kinds.node import PressureLevel
from manifests.wire.report import EngineLoad, LoadReport

SMALL = Demand(prompt_tokens=100, output_tokens=100)


def ready(node: str, **changes: Any) -> EndpointView:
    awake = EndpointView(
        key=EndpointKey(node, f"m-{node}"),
        address=f"http://{node}",
        model="m",
        aliases=("short",),
        phase=EnginePhase.READY,
        accepting=True,
        running=0,
        waiting=0,
        max_running=4,
        max_waiting=4,
        context_tokens=1000,
        tokens_fit_now=1000,
        prefill_tokens_per_second=100.0,
        decode_tokens_per_second=10.0,
        pressure=PressureLevel.OK,
        reported_seconds=10.0,
        tokens_fit_ever=1000,
    )
    return replace(awake, **changes)


def unloaded(node: str, **changes: Any) -> EndpointView:
    fields: dict[str, Any] = {
        "phase": EnginePhase.STOPPED,
        "accepting": False,
        "wakes": True,
        "tokens_fit_now": 0,
    }
    return ready(node, **{**fields, **changes})


def chosen(*endpoints: EndpointView, demand: Demand = SMALL, **around: Any) -> str | None:
    found = decide(endpoints, demand, Circumstances(**around), 0.0).winner
    return None if found is None else found.key.node


def test_a_loaded_engine_with_room_is_preferred_however_slow() -> None:
    slow = ready("a", prefill_tokens_per_second=0.1, decode_tokens_per_second=0.1)
    assert chosen(slow, unloaded("b", load_seconds=0.1)) == "a"


def test_an_unloaded_engine_is_woken_when_nothing_loaded_has_room() -> None:
    assert chosen(unloaded("b")) == "b"
    assert chosen(ready("a", tokens_fit_now=10), unloaded("b")) == "b"
    assert chosen(ready("a", running=4, waiting=4), unloaded("b")) == "b"


def test_what_fits_an_unloaded_engine_is_judged_by_what_its_node_can_ever_give() -> None:
    assert chosen(ready("a", tokens_fit_now=10), unloaded("b", tokens_fit_ever=50)) == "a"
    assert chosen(ready("a", tokens_fit_now=10), unloaded("b", tokens_fit_ever=0)) == "b"
    assert chosen(unloaded("a", tokens_fit_ever=50), unloaded("b", tokens_fit_ever=60)) == "b"


def test_the_engine_that_is_back_soonest_is_woken() -> None:
    slow, quick = unloaded("a", load_seconds=60), unloaded("b", load_seconds=3)
    assert chosen(slow, quick) == "b"
    on_its_way = unloaded("c", load_seconds=20, phase=EnginePhase.LOADING)
    assert chosen(unloaded("a", load_seconds=20), on_its_way) == "c"


@pytest.mark.parametrize(
    ("endpoint", "seconds"),
    [
        (ready("a", load_seconds=30), 0),
        (unloaded("a"), 10),
        (unloaded("a", load_seconds=30), 30),
        (unloaded("a", load_seconds=30, phase=EnginePhase.LOADING), 15),
        (unloaded("a", load_seconds=30, phase=EnginePhase.DRAINING), 30),
    ],
)
def test_waking_costs_the_last_load_or_ten_seconds(endpoint: EndpointView, seconds: float) -> None:
    assert estimate_wake_seconds(endpoint) == seconds


def test_an_unloaded_engine_that_was_tried_is_not_tried_again() -> None:
    both = unloaded("a"), unloaded("b")
    assert chosen(*both, tried={both[0].key}) == "b"
    assert chosen(*both, tried={item.key for item in both}) is None
    assert [item.key.node for item in plan_candidates(both, [])] == ["a", "b"]


def report(accepting: bool, **load: Any) -> NodeReport:
    fields: dict[str, Any] = {"name": "m-a", "model": "m", "aliases": ("short",)}
    one = EngineLoad(**{**fields, "phase": EnginePhase.STOPPED, "accepting": False, **load})
    told = LoadReport(node="a", instance="i", sequence=1, accepting=accepting, engines=(one,))
    return NodeReport("a", "http://a", told, 10.0, routable=True)


def test_an_engine_wakes_only_on_a_node_that_is_open() -> None:
    (open_,) = plan_endpoints(report(True, wakes=True, load_seconds=4.5))
    assert (open_.wakes, open_.accepting, open_.load_seconds) == (True, False, 4.5)
    (closed,) = plan_endpoints(report(False, wakes=True))
    (plain,) = plan_endpoints(report(True))
    (lost,) = plan_endpoints(replace(report(True, wakes=True), routable=False))
    assert not (closed.wakes or plain.wakes or lost.wakes)


def listed(*endpoints: EndpointView) -> list[str]:
    view = FleetView(endpoints=endpoints, names=plan_names({}, endpoints))
    return [item["id"] for item in list_models(view, 0)]


def test_a_model_whose_engines_are_all_unloaded_is_still_listed() -> None:
    assert listed(unloaded("a")) == ["m", "short"]
    assert listed(unloaded("a", wakes=False)) == []
