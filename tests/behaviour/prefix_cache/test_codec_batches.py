"""Rows taken out of a decode batch, with padding or a turned window, are stored like any other."""

import mlx.core as mx
import pytest
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.sample_utils import greedy_sampler

from node_agent.engine.batching.decode_group import DecodeGroup
from node_agent.engine.batching.row_batch import Newcomer
from node_agent.engine.prefix.kv_codec import RestoreError
from tests.support.cached_engine import prompt
from tests.support.kv_rows import Rows, cold, feed, tiny
from tests.support.tiny_models import NAMES

# mlx-lm cannot merge chunked caches, so llama4 runs its rows one at a time.
BATCHED = [name for name in NAMES if name != "llama4"]
LENGTHS = (150, 37, 90)


def newcomer(uid: int, tokens: list[int]) -> Newcomer:
    return Newcomer(uid, tokens, 1000, greedy_sampler)


def decode_together(rows: Rows, prompts: list[list[int]], steps: int) -> DecodeGroup:
    """Start rows one after the other, some steps apart, and decode them in one batch."""
    group = None
    for uid, tokens in enumerate(prompts):
        caches = make_prompt_cache(rows.model)
        feed(rows.model, caches, tokens[:-1])
        if group is None:
            group = DecodeGroup(rows.model, newcomer(uid, tokens), caches)
        else:
            group.add(newcomer(uid, tokens), caches)
        for _ in range(steps):
            group.decode()
    assert group is not None
    return group


@pytest.mark.parametrize("name", BATCHED)
def test_the_next_turn_of_each_row_of_a_batch_goes_on_from_its_end(name):
    model = tiny(name)
    rows = Rows(model, block_tokens=64)
    prompts = [prompt(length, seed=at) for at, length in enumerate(LENGTHS)]
    group = decode_together(rows, prompts, 25)
    for uid in group.uids:
        rows.keep_end(group.tokens(uid), group.view(uid))
    for uid in group.uids:
        held = group.tokens(uid)
        assert held[: LENGTHS[uid]] == prompts[uid]
        turn = [*held, *prompt(20, seed=7)]
        warm = rows.run(turn, 8)
        assert warm.cached_tokens == len(held)
        assert warm.said == cold(model, turn, 8)


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "mamba2", "qwen3_5"])
def test_a_row_left_behind_when_others_leave_is_still_its_own(name):
    model = tiny(name)
    rows = Rows(model, block_tokens=64)
    prompts = [prompt(length, seed=at) for at, length in enumerate(LENGTHS)]
    group = decode_together(rows, prompts, 5)
    group.remove(0)
    group.remove(2)
    group.decode()
    held = group.tokens(1)
    rows.keep_end(held, group.view(1))
    turn = [*held, 5, 6]
    warm = rows.run(turn, 8)
    assert (warm.cached_tokens, warm.said) == (len(held), cold(model, turn, 8))


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "mamba2"])
def test_a_whole_batch_is_not_taken_for_a_row(name):
    rows = Rows(tiny(name), block_tokens=64)
    group = decode_together(rows, [prompt(20), prompt(30)], 1)
    mx.eval([layer.state for layer in group.cache])
    with pytest.raises(RestoreError):
        rows.codec.cut(group.cache, 0, 20, snapshot=True)
