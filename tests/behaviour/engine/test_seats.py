"""Rows take the places that others left in a batch, and say what they would say alone."""

from collections.abc import Sequence
from functools import cache

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.models.cache import make_prompt_cache

from node_agent.engine.batching.decode_group import DecodeGroup
from node_agent.engine.batching.row_batch import Newcomer
from node_agent.engine.batching.sampling import Samplers
from node_agent.engine.batching.seats import MOST_VACANT_STEPS
from node_agent.engine.messages import SamplingParams
from tests.support.cached_engine import prompt
from tests.support.kv_rows import feed, tiny

# Every layer plain KV, MLA, experts; and windows and states, whose places are not kept.
PLAIN = ("llama", "qwen3_moe", "deepseek_v3")
OTHERS = ("gemma3_text", "qwen3_5")


class Batch:
    """One decode group, and what each of its rows has said."""

    def __init__(self, name: str) -> None:
        self.model = tiny(name)
        self.group: DecodeGroup | None = None
        self.said: dict[int, list[int]] = {}
        self.samplers = Samplers()

    def add(self, length: int, max_tokens: int, seed: int = -1) -> int:
        """Take a row in; with a seed it draws, without it is greedy."""
        uid, tokens = len(self.said), prompt(length, seed=length)
        sampling = SamplingParams(temperature=0 if seed < 0 else 1, seed=seed)
        sampler = self.samplers.sampler_for(sampling, 0)
        newcomer = Newcomer(uid, tokens, max_tokens, sampler)
        caches = make_prompt_cache(self.model)
        if tokens[:-1]:
            feed(self.model, caches, tokens[:-1])
        self.said[uid] = []
        if self.group is None or not self.group.uids:
            self.group = DecodeGroup(self.model, newcomer, caches)
        else:
            self.group.add(newcomer, caches)
        return uid

    def step(self, count: int = 1) -> list[int]:
        """Decode; return who ended."""
        ended = []
        for _ in range(count if self.group is not None and self.group.uids else 0):
            for one in (*self.group.take_first(), *self.group.decode()):
                self.said[one.uid].append(one.token)
                if one.finish_reason is not None:
                    ended.append(one.uid)
        return ended

    def finish(self) -> dict[int, list[int]]:
        while self.group is not None and self.group.uids:
            self.step()
        return self.said


@cache
def alone(name: str, length: int, max_tokens: int, seed: int = -1) -> Sequence[int]:
    batch = Batch(name)
    batch.add(length, max_tokens, seed)
    return batch.finish()[0]


def three_rows(name: str) -> Batch:
    """Return a batch whose first row has just ended, beside two that go on."""
    batch = Batch(name)
    for length, max_tokens in ((40, 6), (45, 60), (30, 60)):
        batch.add(length, max_tokens)
    while not batch.step():
        pass
    return batch


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("length", [1, 2, 20, 52, 53, 90, 300])
def test_a_row_takes_the_place_of_one_that_ended(name, length):
    """Of one token, whose cache is empty; shorter, as long, longer: then the others move."""
    batch = three_rows(name)
    assert batch.group.uids == [1, 2]
    assert batch.group.places == 3
    batch.add(length, 40)
    assert batch.group.uids == [3, 1, 2]
    assert batch.group.places == 3
    assert batch.finish()[3] == alone(name, length, 40)
    assert [batch.said[uid] for uid in (1, 2)] == [alone(name, 45, 60), alone(name, 30, 60)]


def test_a_row_hears_nothing_of_the_one_before_it():
    """Of its NaN either: masked, they would still spoil a sum."""
    batch = three_rows("llama")
    for layer in batch.group.cache:
        layer.values[0:1] = mx.nan
    batch.add(20, 12)
    said = batch.finish()
    assert said[3] == alone("llama", 20, 12)
    assert said[1] == alone("llama", 45, 60)


def test_a_place_that_nobody_takes_is_given_back_after_a_few_steps():
    batch = three_rows("llama")
    held_bytes = sum(layer.nbytes for layer in batch.group.cache)
    batch.step(MOST_VACANT_STEPS)
    assert batch.group.places == 3
    batch.step()
    assert batch.group.places == 2
    assert sum(layer.nbytes for layer in batch.group.cache) <= held_bytes * 2 // 3


def test_places_are_given_back_when_told_and_before_buffers_grow_for_nobody():
    batch = three_rows("llama")
    batch.group.compact()
    assert (batch.group.places, batch.group.uids) == (2, [1, 2])
    batch.add(250, 2)
    while not batch.step():
        pass
    assert batch.group.places == 3
    batch.step(MOST_VACANT_STEPS - 2)
    assert batch.group.places == 2
    assert {layer.keys.shape[0] for layer in batch.group.cache} == {2}
    assert [batch.finish()[uid] for uid in (1, 2)] == [
        alone("llama", 45, 60),
        alone("llama", 30, 60),
    ]


def test_a_row_that_is_taken_out_leaves_no_place():
    """Who cancels may do so to have the memory back."""
    batch = three_rows("llama")
    batch.group.remove(1)
    assert (batch.group.uids, batch.group.places) == ([2], 1)


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("length", [1, 52])
def test_places_of_windows_and_states_are_not_kept(name, length):
    batch = three_rows(name)
    assert batch.group.places == 2
    batch.add(length, 20)
    assert batch.finish()[3] == alone(name, length, 20)


def test_the_last_row_is_alone():
    batch = three_rows("llama")
    batch.group.remove(2)
    batch.add(300, 10)
    while not batch.step():
        pass
    assert batch.group.places == 1


ROWS = st.tuples(
    st.sampled_from([1, 2, 3, 20, 45, 60, 130, 250, 300]),
    st.sampled_from([1, 2, 5, 9, 20]),
    st.sampled_from([-1, 1, 2]),
    st.integers(0, 12),
)


@settings(max_examples=25, deadline=None)
@given(st.lists(ROWS, min_size=2, max_size=10))
def test_rows_that_come_and_go_say_what_they_say_alone(rows):
    """Padding grows and is given back, places are taken in any order, seeds stay their own."""
    batch = Batch("llama")
    for length, max_tokens, seed, steps in rows:
        batch.add(length, max_tokens, seed)
        batch.step(steps)
        mx.clear_cache()
    said = batch.finish()
    assert [said[uid] for uid in range(len(rows))] == [
        alone("llama", length, max_tokens, seed) for length, max_tokens, seed, _ in rows
    ]
