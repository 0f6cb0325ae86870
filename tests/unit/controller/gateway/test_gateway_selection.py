"""Filters, scores and the pick: which engine a request goes to (B57, B62)."""

import random
from collections import Counter
from typing import Any

import pytest

from controller.gateway.choice.demand import Demand, Hold
from controller.gateway.choice.filters import find_roomiest
from controller.gateway.choice.fit import plan_fit
from controller.gateway.choice.picker import pick
from controller.gateway.choice.reservations import Amount, Reservations, Reserved, plan_hold
from controller.gateway.choice.scorers import (
    FRESH_SECONDS,
    Parts,
    Scored,
    count_requests,
    score_endpoints,
    trust_ratio,
)
from controller.gateway.choice.selection import Circumstances, Outcome, decide
from controller.gateway.nodes.endpoints import EndpointKey, EndpointView, NodeReport, plan_endpoints
from manifests.kinds.engine import EnginePhase
from manifests.kinds.node import PressureLevel
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
    found = decide(endpoints, demand, Circumstances(**around), 0.0).winner
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


def test_when_every_place_is_taken_the_request_waits_here() -> None:
    full = [endpoint("a", running=4, waiting=4), endpoint("b", running=8)]
    assert decide(full, SMALL, Circumstances(), 0.0).outcome is Outcome.WAIT


def test_our_own_unreported_requests_take_room() -> None:
    tight = endpoint("a", tokens_fit_now=300)
    hold = Hold(requests=1, unseen_requests=1, unseen_tokens=150)
    assert plan_fit(tight, SMALL).fits_now
    assert not plan_fit(tight, SMALL, hold).fits_now


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


def parts(
    item: EndpointView, hold: Hold | None = None, now: float = 10.0, cached: int = 0
) -> Parts:
    holds = {} if hold is None else {item.key: hold}
    (scored,) = score_endpoints([item], SMALL, holds, cached={item.key: cached}, now_seconds=now)
    return scored.parts


def test_an_idle_engine_costs_its_prefill_and_what_is_cached_costs_less() -> None:
    assert parts(endpoint("a")) == Parts(prefill=1.0)
    warm = parts(endpoint("a", restore_tokens_per_second=450.0), cached=90)
    assert (warm.prefill, warm.restore) == (0.1, 0.2)
    # The last token is always computed.
    assert parts(endpoint("a"), cached=100).prefill == 0.01


def test_prompts_ahead_and_a_full_batch_are_a_queue_and_neighbours_slow_the_decode() -> None:
    assert parts(endpoint("a", waiting=2)).queue == 2.0
    assert parts(endpoint("a", running=4)).queue == 2.5
    assert parts(endpoint("a", running=2)).decode == 5.0


def test_what_we_sent_is_ahead_until_it_must_be_computed() -> None:
    hold = Hold(requests=2, feeding=((300, 10.0), (100, 10.5)))
    assert parts(endpoint("a", running=2), hold, now=11.0).queue == 3.0
    assert parts(endpoint("a", running=2), hold, now=99.0).queue == 0.0


def test_a_node_that_panicked_or_must_wake_its_engine_costs_more() -> None:
    assert parts(endpoint("a", wakes=True, load_seconds=7.0)).wake == 7.0


def test_an_old_report_fades_towards_what_we_have_there_ourselves() -> None:
    busy = endpoint("a", running=4, waiting=4)
    assert trust_ratio(FRESH_SECONDS) == 1.0
    assert count_requests(busy, Hold(requests=1), 0.0) == 8.0
    faded = [count_requests(busy, Hold(requests=1), age) for age in (2.0, 4.0, 60.0)]
    assert faded == sorted(faded, reverse=True)
    assert faded[-1] == pytest.approx(1.0)


def test_an_unmeasured_endpoint_is_taken_to_be_as_fast_as_the_fastest() -> None:
    fresh = endpoint("a", prefill_tokens_per_second=0.0, decode_tokens_per_second=0.0)
    scored = score_endpoints([fresh, endpoint("b")], SMALL, {})
    assert scored[0].seconds == scored[1].seconds
    assert score_endpoints([fresh], SMALL, {})[0].seconds > 0


def test_the_load_is_never_less_than_our_own_requests() -> None:
    item = endpoint("a", running=1, waiting=1)
    assert count_requests(item, Hold()) == 2
    assert count_requests(item, Hold(requests=5)) == 5
    assert count_requests(item, Hold(requests=1, unseen_requests=1)) == 3


def test_near_ties_are_shared_and_clear_winners_are_not() -> None:
    ties = [
        Scored(endpoint(name), Parts(prefill=seconds))
        for name, seconds in (("a", 10.0), ("b", 10.5), ("c", 20.0))
    ]
    assert picked(ties) == {"a", "b"}
    assert pick([], 0.5) is None


def picked(ties: list[Scored], **used: float) -> set[str]:
    last = {EndpointKey(node, f"m-{node}"): when for node, when in used.items()}
    found = [pick(ties, draw, last) for draw in (0.0, 0.49, 0.51, 0.999)]
    return {item.endpoint.key.node for item in found if item is not None}


def test_of_equals_the_one_used_longest_ago_goes_next() -> None:
    ties = [Scored(endpoint(name), Parts(prefill=1.0)) for name in "abc"]
    assert picked(ties, a=5.0, b=4.0) == {"c"}
    assert picked(ties, a=5.0, b=4.0, c=6.0) == {"b"}


def test_equal_idle_nodes_share_short_requests() -> None:
    nodes = [endpoint(name, prefill_tokens_per_second=100.0 + i) for i, name in enumerate("abcd")]
    rng = random.Random(7)
    counts: Counter[str] = Counter()
    for _ in range(200):
        found = decide(nodes, SMALL, Circumstances(), rng.random()).winner
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
        around = Circumstances(reservations.holds(nodes), now_seconds=11.0)
        found = decide(nodes, SMALL, around, rng.random()).winner
        assert found is not None
        counts[found.key.node] += 1
        hold = reservations.reserve(found.key, Amount(SMALL.total_tokens, 100), now=11.0)
        held.append(hold)
    assert counts["fast"] > counts["slow"] >= 1
    assert reservations.total == 6
    for hold in held:
        hold.release()
        hold.release()
    assert reservations.total == 0
    assert reservations.holds(nodes) == {}


def test_a_reservation_counts_in_tokens_until_a_later_report_must_hold_it() -> None:
    reserved = [Reserved(Amount(100, 80, 7), 1.0), Reserved(Amount(200, 150, 9), 3.0)]
    feeding = ((80, 1.0), (150, 3.0))
    assert plan_hold(reserved, 2.0) == Hold(2, 1, 200, 9, feeding)
    assert plan_hold(reserved, 9.0) == Hold(2, 0, 0, 0, feeding)


def test_bytes_held_on_one_engine_are_gone_for_the_other_engines_of_its_node() -> None:
    mine, twin, other = endpoint("a"), endpoint("a", key=EndpointKey("a", "x")), endpoint("b")
    reservations = Reservations(settle_seconds=0.5)
    reservations.reserve(mine.key, Amount(1, 1, 77), now=11.0)
    holds = reservations.holds([mine, twin, other])
    assert holds[mine.key].requests == 1
    assert (holds[twin.key].requests, holds[twin.key].unseen_bytes) == (0, 77)
    assert other.key not in holds


def test_a_reservation_is_released_when_its_request_fails() -> None:
    reservations = Reservations(settle_seconds=0.5)
    with (
        pytest.raises(ConnectionError),
        reservations.reserve(EndpointKey("a", "m-a"), Amount(5), now=0.0),
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
