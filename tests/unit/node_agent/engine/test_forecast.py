"""Predictions for one chunk, and what measured chunks teach."""

import pytest

from node_agent.engine.rows import JoinCost
from node_agent.engine.scheduling.forecast import (
    FILTER_PLACES,
    MAX_FACTOR,
    MIN_LEARNED_BYTES,
    SPARE_PLACES,
    Correction,
    Forecast,
)
from tests.support.counting_runner import FORECAST, SHAPE
from tests.support.pools import SHAPE as TINY

BIG = 10 * MIN_LEARNED_BYTES


def test_a_longer_chunk_never_costs_less_and_neither_does_a_longer_context():
    forecast = Forecast(TINY, fused=False)
    costs = [forecast.chunk_bytes(512, tokens) for tokens in range(1, 600)]
    assert costs == sorted(costs)
    aligned = [forecast.chunk_bytes(held, 64) for held in range(0, 4096, 256)]
    assert aligned[1:] == sorted(aligned[1:])


def test_only_the_chunk_that_crosses_a_step_pays_for_the_step():
    forecast = Forecast(SHAPE, fused=False)
    inside, crossing = forecast.chunk_bytes(192, 64), forecast.chunk_bytes(256, 64)
    assert crossing - inside > 256 * 64


def test_the_rest_of_a_prompt_costs_at_least_its_next_chunk_and_all_of_its_kv():
    assert FORECAST.finish_bytes(256, 320, 64) >= FORECAST.chunk_bytes(256, 64)
    assert FORECAST.finish_bytes(256, 4096, 64) > (4096 - 256) * 64
    assert FORECAST.finish_bytes(0, 4096, 256) > FORECAST.finish_bytes(0, 4096, 16)


def test_joining_costs_padding_one_layer_and_the_logits_of_every_row():
    cost = JoinCost(rows=3, added_bytes=1000, copied_bytes=200)
    assert FORECAST.join_bytes(cost) == 1200 + (3 + SPARE_PLACES) * SHAPE.vocab_size * 16


def test_joining_costs_more_for_each_row_with_filters_and_nothing_more_for_others():
    costs = [FORECAST.join_bytes(JoinCost(rows=3, filtered_rows=rows)) for rows in range(4)]
    each_bytes = FILTER_PLACES * SHAPE.vocab_size * 16
    assert costs == [costs[0] + rows * each_bytes for rows in range(4)]


def test_verifying_costs_a_chunk_the_logits_of_every_place_and_filters():
    verify_bytes = FORECAST.verify_bytes(300, 8)
    places = 8 + SPARE_PLACES + FILTER_PLACES
    assert verify_bytes == FORECAST.chunk_bytes(300, 8) + places * SHAPE.vocab_size * 16
    assert verify_bytes < FORECAST.verify_bytes(300, 9)


def test_a_bigger_chunk_than_predicted_counts_at_once_and_fades_slowly():
    correction = Correction().observed(BIG, 2 * BIG)
    assert correction.factor == 2
    assert correction.apply(100) == 200
    correction = correction.observed(BIG, BIG)
    assert correction.factor == pytest.approx(1.21)
    for _ in range(20):
        correction = correction.observed(BIG, BIG // 2)
    assert correction.factor == 1


def test_no_measurement_can_shut_the_door_for_good():
    """A public guard latched: one outlier made a prompt of 163 tokens need 85 GB."""
    correction = Correction().observed(BIG, 1000 * BIG)
    assert correction.factor == MAX_FACTOR
    for _ in range(20):
        correction = correction.eased()
    assert correction.factor < 1.05


def test_predictions_near_nothing_teach_nothing():
    assert Correction().observed(MIN_LEARNED_BYTES - 1, BIG).factor == 1
