"""Breakers and node health: what takes an endpoint out, and what brings it back (B57, B59)."""

import pytest

from controller.gateway.nodes.breaker import (
    CLOSED,
    OPEN_SECONDS,
    OPEN_SECONDS_MAX,
    Breaker,
    Breakers,
    Verdict,
    begin,
    is_blocked,
    transition,
)
from controller.gateway.nodes.endpoints import EndpointKey
from controller.gateway.nodes.health import Health, Phase, StreamEvent
from controller.gateway.nodes.health import transition as next_health

KEY = EndpointKey("a", "m-a")


def after(*verdicts: Verdict, now: float = 0.0) -> Breaker:
    breaker = CLOSED
    for verdict in verdicts:
        breaker = transition(breaker, verdict, now)
    return breaker


def test_the_third_fault_in_a_row_opens_it_for_a_while() -> None:
    assert not is_blocked(after(Verdict.FAULT, Verdict.FAULT), 0.0)
    opened = after(Verdict.FAULT, Verdict.FAULT, Verdict.FAULT)
    assert is_blocked(opened, OPEN_SECONDS - 0.01)
    assert not is_blocked(opened, OPEN_SECONDS)


def test_an_answer_between_faults_starts_the_count_anew() -> None:
    mixed = [Verdict.FAULT, Verdict.FAULT, Verdict.ALIVE, Verdict.FAULT, Verdict.FAULT]
    assert not is_blocked(after(*mixed), 0.0)


def test_an_unreachable_endpoint_is_left_alone_at_once() -> None:
    assert is_blocked(after(Verdict.UNREACHABLE), 0.0)


@pytest.mark.parametrize("verdict", [Verdict.NOTHING, Verdict.ALIVE])
def test_what_is_no_fault_never_opens_it(verdict: Verdict) -> None:
    assert after(*[verdict] * 20) == CLOSED


def test_half_open_lets_one_trial_through_and_believes_it() -> None:
    opened = after(Verdict.UNREACHABLE)
    trial = begin(opened)
    assert is_blocked(trial, OPEN_SECONDS)
    assert transition(trial, Verdict.ALIVE, OPEN_SECONDS) == CLOSED
    assert not is_blocked(transition(trial, Verdict.NOTHING, OPEN_SECONDS), OPEN_SECONDS)
    again = transition(trial, Verdict.FAULT, OPEN_SECONDS)
    assert is_blocked(again, OPEN_SECONDS + 2 * OPEN_SECONDS - 0.01)
    assert not is_blocked(again, OPEN_SECONDS + 2 * OPEN_SECONDS)


def test_the_wait_is_bounded() -> None:
    breaker = after(*[Verdict.FAULT] * 100)
    assert breaker.open_until_seconds <= OPEN_SECONDS_MAX


def test_the_table_forgets_endpoints_that_are_gone() -> None:
    breakers = Breakers()
    breakers.record(KEY, Verdict.UNREACHABLE, 0.0)
    assert breakers.blocked(0.0) == {KEY}
    breakers.forget(keep=[])
    assert breakers.blocked(0.0) == frozenset()


def health_after(*events: StreamEvent) -> Health:
    health = Health()
    for now, event in enumerate(events):
        health = next_health(health, event, float(now))
    return health


R, L, S = StreamEvent.REPORT, StreamEvent.LOST, StreamEvent.SILENT


@pytest.mark.parametrize(
    ("events", "phase"),
    [
        ((), Phase.UNSEEN),
        ((R,), Phase.LIVE),
        ((R, L), Phase.LIVE),
        ((R, L, R), Phase.LIVE),
        ((R, L, R, L), Phase.LIVE),
        ((R, L, L), Phase.DOWN),
        ((R, S), Phase.DOWN),
        ((L,), Phase.UNSEEN),
        ((L, L, R), Phase.LIVE),
        ((R, S, R), Phase.DOWN),
        ((R, S, R, R), Phase.LIVE),
        ((R, S, R, L, R), Phase.DOWN),
    ],
)
def test_one_hiccup_does_not_take_a_node_out_and_one_report_does_not_bring_it_back(
    events: tuple[StreamEvent, ...], phase: Phase
) -> None:
    health = health_after(*events)
    assert health.phase is phase
    assert health.routable is (phase is Phase.LIVE)
