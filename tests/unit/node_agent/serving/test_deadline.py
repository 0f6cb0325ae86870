"""How much of a request's time is left."""

import math

from node_agent.serving.deadline import engine_deadline_seconds, left_seconds


def test_without_a_deadline_time_does_not_end_and_the_engine_gets_none() -> None:
    assert left_seconds(None, 1e9) == math.inf
    assert engine_deadline_seconds(math.inf) == 0.0


def test_waiting_eats_up_the_time_and_nothing_is_left_below_zero() -> None:
    assert left_seconds(5.0, 2.0) == 3.0
    assert left_seconds(5.0, 7.0) == 0.0


def test_an_overdue_request_does_not_become_one_without_a_deadline() -> None:
    assert engine_deadline_seconds(0.0) > 0
    assert engine_deadline_seconds(3.0) == 3.0
