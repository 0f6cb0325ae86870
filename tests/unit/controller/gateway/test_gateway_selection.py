"""Filters, scores and the pick: which engine a request goes to (B57, B62)."""

import random
from collections import Counter
from typing import Any

import pytest

from controller.gateway.endpoints import EndpointKey, EndpointView, NodeReport, plan_endpoints
from controller.gateway.filters import Demand, Hold, filter_fitting, find_roomiest
from controller.gateway.picker import pick
from controller.gateway.reservations import Reservations, Reserved, plan_hold
from controller.gateway.scorers import Scored, estimate_seconds, load_of, score_endpoints
from controller.gateway.selection import Circumstances, select_endpoint
from manifests.engine import EnginePhase
from manifests.node import PressureLevel
from manifests.wire.report import EngineLoad, LoadReport

SMALL = Demand(prompt_tokens=100, output_tokens=100)


def endpoint(node: str, **changes: Any) -> EndpointView:
    figures: dict[str, Any] = {
        "key": EndpointKey(node, f"m-{node}"),
        "address": f"http://{node}",
        "model": "m",
        "aliases": (),
        "phase": EnginePhase.READY,
        "accepting": True,
        "running": 0,
        "waiting": 0,
        "max_running": 4,
        "max_waiting": 4,
        "context_tokens": 1000,
        "tokens_fit_now": 1000,
        "prefill_tokens_per_second": 100.0,
        "decode_tokens_per_second": 10.0,
        "pressure": PressureLevel.OK,
        "reported_seconds": 10.0,
    }
    return EndpointView(**{**figures, **changes})


def chosen(*endpoints: EndpointView, demand: Demand = SMALL, **around: Any) -> str | None:
    found = select_endpoint(endpoints, demand, Circumstances(**{"holds": {}, **around}), 0.0)
    return None if found is None else found.key.node


def test_nothing_is_chosen_when_nothing_accepts() -> None:
    assert chosen() is None
    assert chosen(endpoint("a", accepting=False)) is None


def test_an_endpoint_that_was_tried_is_not_tried_again() -> None:
    both = endpoint("a"), endpoint("b")
    assert chosen(*both, tried={both[0].key}) == "b"
    assert chosen(*both, tried={item.key for item in both}) is None


def test_an_open_breaker_is_avoided_unless_nothing_else_is_left() -> None:
    both = endpoint("a"), endpoint("b")
    assert chosen(*both, blocked={both[0].key}) == "b"
    assert chosen(*both, blocked={item.key for item in both}) == "a"


def test_memory_context_and_queue_decide_what_fits() -> None:
    assert chosen(endpoint("a", tokens_fit_now=150), endpoint("b")) == "b"
    assert chosen(endpoint("a", context_tokens=100), endpoint("b")) == "b"
    assert chosen(endpoint("a", running=4, waiting=4), endpoint("b", waiting=1)) == "b"


def test_our_own_unreported_requests_take_room() -> None:
    tight = endpoint("a", tokens_fit_now=300)
    hold = Hold(requests=1, unseen_requests=1, unseen_tokens=150)
    assert filter_fitting([tight], SMALL, {}) == (tight,)
    assert filter_fitting([tight], SMALL, {tight.key: hold}) == ()


def test_what_fits_nowhere_by_estimate_goes_to_the_roomiest() -> None:
    huge = Demand(prompt_tokens=5000, output_tokens=0)
    rooms = endpoint("a", tokens_fit_now=900), endpoint("b", tokens_fit_now=950)
    assert chosen(*rooms, demand=huge) == "b"
    limited = endpoint("c", tokens_fit_now=9000, context_tokens=100)
    assert find_roomiest([*rooms, limited], {}) == (rooms[1],)
    assert find_roomiest([], {}) == ()


def test_a_faster_or_idler_endpoint_is_chosen_by_seconds() -> None:
    slow = endpoint("a", prefill_tokens_per_second=10.0, decode_tokens_per_second=1.0)
    assert chosen(slow, endpoint("b", running=3)) == "b"
    assert chosen(endpoint("a", running=3), endpoint("b", running=1)) == "b"


def test_estimates_are_in_seconds_and_grow_with_the_load() -> None:
    alone = estimate_seconds(SMALL, load=0, prefill_rate=100, decode_rate=10)
    assert alone == 11.0
    assert estimate_seconds(SMALL, load=3, prefill_rate=100, decode_rate=10) == 44.0


def test_an_unmeasured_endpoint_is_taken_to_be_as_fast_as_the_fastest() -> None:
    fresh = endpoint("a", prefill_tokens_per_second=0.0, decode_tokens_per_second=0.0)
    scored = score_endpoints([fresh, endpoint("b")], SMALL, {})
    assert scored[0].seconds == scored[1].seconds
    assert score_endpoints([fresh], SMALL, {})[0].seconds > 0


def test_the_load_is_never_less_than_our_own_requests() -> None:
    item = endpoint("a", running=1, waiting=1)
    assert load_of(item, {}) == 2
    assert load_of(item, {item.key: Hold(requests=5)}) == 5
    assert load_of(item, {item.key: Hold(requests=1, unseen_requests=1)}) == 3


def test_near_ties_are_shared_and_clear_winners_are_not() -> None:
    ties = [Scored(endpoint("a"), 10.0), Scored(endpoint("b"), 10.5), Scored(endpoint("c"), 20.0)]
    draws = {pick(ties, draw).key.node for draw in (0.0, 0.49, 0.51, 0.999)}  # type: ignore[union-attr]
    assert draws == {"a", "b"}
    assert pick([], 0.5) is None


def test_equal_idle_nodes_share_short_requests() -> None:
    nodes = [endpoint(name, prefill_tokens_per_second=100.0 + i) for i, name in enumerate("abcd")]
    rng = random.Random(7)
    counts: Counter[str] = Counter()
    for _ in range(200):
        found = select_endpoint(nodes, SMALL, Circumstances({}), rng.random())
        assert found is not None
        counts[found.key.node] += 1
    assert len(counts) == 4
    assert max(counts.values()) <= 100


def test_a_burst_before_any_report_spreads_by_our_own_reservations() -> None:
    nodes = [endpoint("fast"), endpoint("slow", decode_tokens_per_second=2.0)]
    reservations, rng = Reservations(settle_seconds=0.5), random.Random(7)
    held: list[Any] = []
    counts: Counter[str] = Counter()
    for _ in range(6):
        around = Circumstances(reservations.holds(nodes))
        found = select_endpoint(nodes, SMALL, around, rng.random())
        assert found is not None
        counts[found.key.node] += 1
        hold = reservations.reserve(found.key, SMALL.total_tokens, now=11.0)
        hold.__enter__()
        held.append(hold)
    assert counts["fast"] > counts["slow"] >= 1
    assert reservations.total == 6
    for hold in held:
        hold.__exit__(None, None, None)
    assert reservations.total == 0
    assert reservations.holds(nodes) == {}


def test_a_reservation_counts_in_tokens_until_a_later_report_must_hold_it() -> None:
    reserved = [Reserved(100, since_seconds=1.0), Reserved(200, since_seconds=3.0)]
    assert plan_hold(reserved, counted_until_seconds=2.0) == Hold(2, 1, 200)
    assert plan_hold(reserved, counted_until_seconds=9.0) == Hold(2, 0, 0)


def test_a_reservation_is_released_when_its_request_fails() -> None:
    reservations = Reservations(settle_seconds=0.5)
    with (
        pytest.raises(ConnectionError),
        reservations.reserve(EndpointKey("a", "m-a"), 5, now=0.0),
    ):
        raise ConnectionError
    assert reservations.total == 0


def report(**changes: Any) -> NodeReport:
    loads = (
        EngineLoad(name="b", model="m", phase=EnginePhase.READY, accepting=True),
        EngineLoad(name="a", model="m", phase=EnginePhase.LOADING, accepting=True),
    )
    node = LoadReport(node="n", instance="i", sequence=1, accepting=True, engines=loads)
    given: dict[str, Any] = {
        "node": "n",
        "address": "http://n",
        "report": node,
        "received_seconds": 1.0,
        "routable": True,
    }
    return NodeReport(**{**given, **changes})


def test_an_endpoint_accepts_only_when_engine_agent_and_link_all_do() -> None:
    assert [item.accepting for item in plan_endpoints(report())] == [False, True]
    assert not any(item.accepting for item in plan_endpoints(report(routable=False)))
    draining = report().report.model_copy(update={"accepting": False})
    assert not any(item.accepting for item in plan_endpoints(report(report=draining)))
