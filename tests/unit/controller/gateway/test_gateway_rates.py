"""How fast an endpoint is taken to be: measured, excused, and never written off for good."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.gateway.choice.demand import Demand, Hold
from controller.gateway.choice.rates import believe_rate, depth_ratio, even_depth_tokens, plan_rates
from controller.gateway.choice.reservations import Amount, Reservations
from controller.gateway.choice.scorers import estimate_ahead_seconds, score_endpoints
from controller.gateway.choice.selection import Circumstances, decide
from controller.gateway.nodes.endpoints import EndpointView
from manifests.sizing.shape import LayerGroup, LayerKind, ModelShape
from tests.unit.controller.gateway.test_gateway_selection import chosen, endpoint

PROMPT = Demand(prompt_tokens=100, output_tokens=20)
LLAMA_8B = ModelShape(
    model_type="llama",
    groups=(LayerGroup(kind=LayerKind.FULL, layers=32, bytes_per_token=4096),),
    hidden_size=4096,
    intermediate_size=14336,
    attention_heads=32,
    kv_heads=8,
    head_dim=128,
    vocab_size=128256,
    dtype_bytes=2,
    context_tokens=131072,
)


def serve(nodes: tuple[EndpointView, ...], requests: int) -> Counter[str]:
    """Send requests one after the other, each done before the next; who got how many."""
    reservations, counts = Reservations(settle_seconds=0.5), Counter[str]()
    for index in range(requests):
        around = Circumstances(passed=reservations.passed, last_used=reservations.last_used)
        made = decide(nodes, PROMPT, around, 0.0)
        assert made.winner is not None
        reservations.note_passed(made.passed)
        reservations.reserve(made.winner.key, Amount(1), float(index)).release()
        counts[made.winner.key.node] += 1
    return counts


@pytest.mark.parametrize("slowness", [2.0, 5.0, 10.0])
def test_a_node_that_looked_slow_once_is_tried_again_and_costs_the_fleet_little(
    slowness: float,
) -> None:
    slow = endpoint("slow", prefill_tokens_per_second=100.0 / slowness)
    counts = serve((slow, endpoint("fast")), 1000)
    assert counts["slow"] >= 2
    # The extra seconds of those tries, as a share of what all requests take.
    assert counts["slow"] * (slowness - 1) / 1000 < 0.06


def test_an_endpoint_that_gets_a_request_is_judged_by_what_it_measures_again() -> None:
    slow, fast = endpoint("slow", prefill_tokens_per_second=20.0), endpoint("fast")
    reservations = Reservations(settle_seconds=0.5)
    for _ in range(200):
        reservations.note_passed([slow.key])
    assert chosen(slow, fast, passed=reservations.passed, last_used={fast.key: 1.0}) == "slow"
    reservations.reserve(slow.key, Amount(1), 0.0).release()
    assert chosen(slow, fast, passed=reservations.passed) == "fast"
    reservations.note_passed([slow.key])
    reservations.forget([fast])
    assert reservations.passed == {}


@given(
    st.floats(0.0, 1e5),
    st.floats(1.0, 1e5),
    st.floats(1.0, 1e3),
)
def test_credit_never_takes_a_rate_below_what_was_measured_or_over_the_best(
    measured: float, best: float, credit: float
) -> None:
    best = max(best, measured)
    believed = believe_rate(measured, best, credit)
    assert measured <= believed <= best
    assert believed <= believe_rate(measured, best, credit * 2)


def test_a_generous_limit_does_not_outweigh_where_the_prefix_is() -> None:
    warm = endpoint("warm", decode_tokens_per_second=9.0, context_tokens=10**6)
    cold = endpoint("cold", decode_tokens_per_second=10.0, context_tokens=10**6)
    generous = Demand(prompt_tokens=900, output_tokens=100_000)
    cached = {warm.key: 850}
    scored = score_endpoints((warm, cold), generous, {}, cached=cached)
    assert scored[0].seconds < scored[1].seconds


def test_a_restore_that_was_slow_once_does_not_make_a_warm_node_worse_than_a_cold_one() -> None:
    warm = endpoint("warm", restore_tokens_per_second=1.0)
    scored = score_endpoints((warm, endpoint("cold")), PROMPT, {}, cached={warm.key: 90})
    assert scored[0].seconds <= scored[1].seconds


def test_a_node_that_fed_a_long_prompt_is_not_taken_to_be_slow_for_a_short_one() -> None:
    assert even_depth_tokens(LLAMA_8B) == pytest.approx(26_600, rel=0.01)
    deep = endpoint(
        "deep", prefill_tokens_per_second=40.0, prefill_context_tokens=53_000.0, shape=LLAMA_8B
    )
    assert depth_ratio(deep, 50.0) == pytest.approx(3.0, rel=0.01)
    assert depth_ratio(deep, 60_000.0) == 1.0
    rates = plan_rates((deep, endpoint("shallow")), PROMPT, {}, {})
    assert rates[0].prefill == rates[1].prefill == 100.0


def test_a_shape_without_attention_or_an_agent_that_does_not_tell_depth_changes_nothing() -> None:
    recurrent = LLAMA_8B.model_copy(
        update={"groups": (LayerGroup(kind=LayerKind.RECURRENT, layers=4),)}
    )
    deep = endpoint("a", prefill_context_tokens=9000.0, shape=recurrent)
    assert depth_ratio(deep, 10.0) == 1.0
    assert depth_ratio(endpoint("a", shape=LLAMA_8B), 10.0) == 1.0


def ahead(item: EndpointView, hold: Hold, now: float) -> float:
    return estimate_ahead_seconds(item, PROMPT, hold, 100.0, now)


def test_a_prompt_that_takes_longer_than_thought_is_still_ahead() -> None:
    ours = Hold(requests=1, feeding=((500, 0.0),))
    late = endpoint("a", running=1, reported_seconds=10.0, prompt_tokens_left=300)
    assert ahead(late, ours, 10.0) == pytest.approx(3.0)
    done = endpoint("a", running=1, reported_seconds=10.0, prompt_tokens_left=0)
    assert ahead(done, ours, 10.0) == 0.0
    untold = endpoint("a", running=1, reported_seconds=10.0)
    assert ahead(untold, ours, 10.0) == 0.0


def test_others_prompts_count_as_long_as_their_node_says_they_are() -> None:
    busy = endpoint("a", waiting=1, reported_seconds=10.0, prompt_tokens_left=9000)
    assert ahead(busy, Hold(), 10.0) == pytest.approx(90.0)
    # What was computed since, and how far an old report is believed.
    assert ahead(busy, Hold(), 11.0) == pytest.approx(89.0)
    assert ahead(busy, Hold(), 30.0) < 0.1


def test_cached_tokens_of_our_own_prompts_in_the_line_are_no_work() -> None:
    ours = Hold(requests=2, feeding=((50, 0.0), (60, 0.0)))
    item = endpoint("a", running=1, waiting=1, reported_seconds=10.0, prompt_tokens_left=4000)
    assert ahead(item, ours, 10.0) == pytest.approx(1.1)
