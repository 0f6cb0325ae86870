"""Sampling against plain Python references."""

import math

import mlx.core as mx
import pytest
from mlx_lm.sample_utils import greedy_sampler

from node_agent.engine.batching.logprobs import LOWEST_LOGPROB, pick_logprobs
from node_agent.engine.batching.sampling import (
    Samplers,
    SeededSampler,
    filter_logprobs,
    processors_for,
    seed_words,
)
from node_agent.engine.messages import SamplingParams

PROBABILITIES = [0.05, 0.4, 0.25, 0.2, 0.1]


def logprobs() -> mx.array:
    return mx.log(mx.array([PROBABILITIES]))


def kept(**fields) -> set[int]:
    filtered = filter_logprobs(logprobs(), SamplingParams(**fields)).tolist()[0]
    return {token for token, value in enumerate(filtered) if value != -math.inf}


def test_each_filter_keeps_what_its_definition_says():
    assert kept() == {0, 1, 2, 3, 4}
    assert kept(top_k=2) == {1, 2}
    assert kept(top_k=50) == {0, 1, 2, 3, 4}
    assert kept(top_p=0.6) == {1, 2}
    assert kept(top_p=0.66) == {1, 2, 3}
    assert kept(min_p=0.5) == {1, 2, 3}
    assert kept(min_p=0.3) == {1, 2, 3}


def test_at_least_the_best_token_survives_every_filter():
    assert kept(top_p=1e-9) == {1}
    assert kept(min_p=1.0) == {1}
    assert kept(top_k=1, top_p=1e-9, min_p=1.0) == {1}


def test_temperature_comes_before_the_filters():
    # At temperature 2 the distribution is flatter, so the same top_p keeps more.
    assert kept(top_p=0.6, temperature=2.0) == {1, 2, 3}


def test_top_k_keeps_exactly_k_of_equal_tokens():
    flat = mx.zeros((1, 10))
    filtered = filter_logprobs(flat, SamplingParams(top_k=3)).tolist()[0]
    assert sum(value != -math.inf for value in filtered) == 3


def test_rows_of_a_batch_are_filtered_each_by_itself():
    two = mx.concatenate([logprobs(), logprobs()[:, ::-1]])
    filtered = filter_logprobs(two, SamplingParams(top_k=1)).tolist()
    assert [row.index(max(row)) for row in filtered] == [1, 3]


def test_draws_follow_the_distribution():
    sampler = Samplers().sampler_for(SamplingParams(temperature=1.0))
    mx.random.seed(7)
    drawn = sampler(mx.broadcast_to(logprobs(), (20_000, 5))).tolist()
    for token, probability in enumerate(PROBABILITIES):
        assert abs(drawn.count(token) / 20_000 - probability) < 0.02


def test_alike_rows_share_a_sampler_and_seeded_ones_do_not():
    samplers = Samplers()
    assert samplers.sampler_for(SamplingParams(temperature=0, top_p=0.5)) is greedy_sampler
    assert samplers.sampler_for(SamplingParams(temperature=1e-9)) is greedy_sampler
    one, two = (samplers.sampler_for(SamplingParams(top_k=5)) for _ in range(2))
    assert one is two
    assert samplers.sampler_for(SamplingParams(top_k=6)) is not one
    seeded = SamplingParams(seed=1)
    assert samplers.sampler_for(seeded) is not samplers.sampler_for(seeded)


def test_a_seed_draws_alike_whatever_was_drawn_before():
    flat = mx.zeros((1, 1000))

    def draws(seed: int) -> list[int]:
        sampler = SeededSampler(SamplingParams(), seed)
        return [sampler(flat).item() for _ in range(20)]

    first = draws(1)
    mx.random.seed(99)
    assert draws(1) == first
    assert len(set(first)) > 10, "each token needs a key of its own"
    assert len({tuple(draws(seed)) for seed in range(8)}) == 8
    # Near seeds must not give shifted copies of each other.
    assert draws(2)[:-1] != first[1:]


def test_seeds_of_any_size_and_sign_give_two_words():
    for seed in (0, -1, 2**63, 2**64 - 1):
        assert all(0 <= word < 2**32 for word in seed_words(seed))
    assert seed_words(0) != seed_words(1)


def apply(params: SamplingParams, tokens: list[int], prompt_tokens: int) -> list[float]:
    logits = mx.array([[2.0, -2.0, 1.0, 0.5]])
    context = mx.array(tokens, dtype=mx.int32)
    for process in processors_for(params, prompt_tokens):
        logits = process(context, logits)
    return [round(value, 5) for value in logits.tolist()[0]]


def test_repetition_counts_the_prompt_and_is_applied_once_per_token():
    params = SamplingParams(repetition_penalty=2.0)
    assert apply(params, [0, 0, 1], prompt_tokens=2) == [1.0, -4.0, 1.0, 0.5]


def test_presence_and_frequency_count_only_the_output():
    params = SamplingParams(presence_penalty=0.5, frequency_penalty=0.25)
    assert apply(params, [0, 1, 2, 2], prompt_tokens=2) == [2.0, -2.0, 0.0, 0.5]
    assert apply(params, [0, 1], prompt_tokens=2) == [2.0, -2.0, 1.0, 0.5]


def test_logit_bias_is_added_and_unknown_ids_are_left_out():
    params = SamplingParams(logit_bias={3: 10.0, 0: -100.0, 99: 5.0, -1: 5.0})
    assert apply(params, [1], prompt_tokens=1) == [-98.0, -2.0, 1.0, 10.5]
    assert apply(SamplingParams(logit_bias={99: 5.0}), [1], 1) == [2.0, -2.0, 1.0, 0.5]


def test_plain_rows_have_no_processor():
    assert processors_for(SamplingParams(temperature=0.3, top_p=0.5), 3) == []


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16, mx.float32])
def test_processors_keep_the_logits_type(dtype):
    params = SamplingParams(
        repetition_penalty=1.1, presence_penalty=0.1, frequency_penalty=0.1, logit_bias={1: 1.0}
    )
    logits = mx.zeros((1, 4), dtype=dtype)
    for process in processors_for(params, 1):
        logits = process(mx.array([0, 1]), logits)
    assert logits.dtype == dtype


def test_reported_logprobs_are_sorted_finite_and_cut_to_the_vocabulary():
    row = mx.array([-1.0, -math.inf, -0.5, -0.5, math.nan])
    few, all_of_them = pick_logprobs([(row, 0, 2), (row, 1, 50)])
    assert few.logprob == -1.0
    assert few.top == [(2, -0.5), (3, -0.5)]
    assert all_of_them.logprob == LOWEST_LOGPROB
    assert len(all_of_them.top) == 5
    assert all(math.isfinite(value) for _, value in all_of_them.top)
