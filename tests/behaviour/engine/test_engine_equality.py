"""A row gives the same tokens alone and in a batch, whatever shares the batch."""

import pytest
from msgspec import structs

from node_agent.engine.messages import (
    Finished,
    Generate,
    PrefillProgress,
    SamplingParams,
    Tokens,
)
from tests.support.mlx_engine import bare_engine
from tests.support.pools import ending, greedy, token_ids
from tests.support.tiny_models import NAMES, tiny_model

pytestmark = pytest.mark.processes

# The last one is longer than two chunks of 64, so it joins late and its prefill is shared.
PROMPTS = [list(range(20, 20 + length)) for length in (3, 41, 7, 150, 1)]


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma3_text", "mamba2", "gpt_oss", "llama4"])
def test_greedy_rows_are_the_same_alone_and_together(name):
    """llama4 has caches that cannot be merged and runs one row at a time."""
    with bare_engine(tiny_model(name), chunk_tokens=32) as engine:
        alone = [
            token_ids(engine.run(greedy(f"alone-{i}", prompt, 12))[f"alone-{i}"])
            for i, prompt in enumerate(PROMPTS)
        ]
        together = engine.run(*(greedy(f"row-{i}", prompt, 12) for i, prompt in enumerate(PROMPTS)))
        assert [token_ids(together[f"row-{i}"]) for i in range(len(PROMPTS))] == alone
        assert all(len(tokens) == 12 for tokens in alone)
        assert len({tuple(tokens) for tokens in alone}) > 1


def _mixed(index: int, prefix: str) -> Generate:
    settings = [
        SamplingParams(temperature=0),
        SamplingParams(temperature=1, seed=1),
        SamplingParams(temperature=1, seed=2, top_p=0.9),
        SamplingParams(temperature=0.7, seed=3, top_k=20, min_p=0.02),
        SamplingParams(temperature=0, repetition_penalty=1.3),
        SamplingParams(temperature=0, presence_penalty=1.0, frequency_penalty=0.5),
        SamplingParams(temperature=0, logit_bias={30: 100.0}),
        SamplingParams(temperature=1, seed=-5, logit_bias={31: -100.0}, frequency_penalty=1.0),
    ]
    return Generate(
        request_id=f"{prefix}-{index}",
        prompt=PROMPTS[index % len(PROMPTS)],
        max_tokens=16,
        sampling=settings[index % len(settings)],
    )


def test_rows_with_different_sampling_do_not_touch_each_other():
    """B25, B52: penalties, bias and seeds affect only their own row."""
    with bare_engine(tiny_model("llama"), chunk_tokens=32) as engine:
        alone = [token_ids(engine.run(_mixed(i, "alone"))[f"alone-{i}"]) for i in range(16)]
        # A stranger without a seed shares the batch and draws from the shared generator.
        stranger = Generate(
            request_id="stranger", prompt=[5, 6], max_tokens=30, sampling=SamplingParams()
        )
        together = engine.run(stranger, *(_mixed(i, "row") for i in range(16)))
        assert [token_ids(together[f"row-{i}"]) for i in range(16)] == alone
        assert set(alone[6]) == {30}


@pytest.mark.parametrize("name", ["llama", "llama4"])
def test_a_row_goes_on_as_if_it_had_never_been_cut(name):
    """What was said elsewhere is drawn already, and counts as output for the penalties."""
    with bare_engine(tiny_model(name), chunk_tokens=32) as engine:
        for index in range(8):
            command = _mixed(index, "whole")
            said = token_ids(engine.run(command)[command.request_id])
            rests = [
                structs.replace(
                    command,
                    request_id=f"rest-{index}-{cut}",
                    prompt=[*command.prompt, *said[:cut]],
                    max_tokens=len(said) - cut,
                    said_tokens=cut,
                )
                for cut in (1, 7, 15)
            ]
            events = engine.run(*rests)
            for rest in rests:
                assert token_ids(events[rest.request_id]) == said[rest.said_tokens :]


def test_seeds_repeat_and_differ_and_no_seed_varies():
    """B25."""
    with bare_engine(tiny_model("llama")) as engine:

        def draw(name: str, seed: int | None) -> tuple[int, ...]:
            command = Generate(
                request_id=name,
                prompt=[1, 2, 3],
                max_tokens=12,
                sampling=SamplingParams(temperature=1, seed=seed),
            )
            return tuple(token_ids(engine.run(command)[name]))

        assert draw("a", 1) == draw("b", 1)
        assert len({draw(f"seed-{seed}", seed) for seed in range(8)}) == 8
        assert len({draw(f"free-{index}", None) for index in range(5)}) == 5


def test_logprobs_are_sorted_finite_and_of_the_chosen_token():
    with bare_engine(tiny_model("llama")) as engine:
        for top in (0, 3, 20):
            sampling = SamplingParams(temperature=0, top_logprobs=top)
            events = engine.run(greedy(f"top-{top}", [4, 5], 4, sampling=sampling))[f"top-{top}"]
            reported = [one for event in events for one in getattr(event, "logprobs", [])]
            assert len(reported) == 4
            for token, one in zip(token_ids(events), reported, strict=True):
                assert len(one.top) == top
                assert one.top == sorted(one.top, key=lambda pair: -pair[1])
                assert -9999 <= one.logprob <= 0
                if top:
                    assert one.top[0] == (token, one.logprob)
        plain = engine.run(greedy("plain", [4, 5], 2))["plain"]
        assert all(getattr(event, "logprobs", []) == [] for event in plain)


def test_stop_tokens_end_a_row_uncounted_even_on_the_last_token_allowed():
    """B08: an end token on the cap-th token is a stop, and it is neither sent nor counted."""
    with bare_engine(tiny_model("llama")) as engine:
        free = token_ids(engine.run(greedy("free", [9, 8, 7], 8))["free"])
        stop = next(token for token in free[2:] if free.index(token) >= 2)
        at = free.index(stop)

        def run(name: str, cap: int, **fields: object) -> tuple[list[int], Finished]:
            command = greedy(name, [9, 8, 7], cap, stop_token_ids=[stop], **fields)
            events = engine.run(command)[name]
            end = ending(events)
            assert isinstance(end, Finished)
            return token_ids(events), end

        for name, cap in (("early", 8), ("exactly", at + 1)):
            tokens, end = run(name, cap)
            assert tokens == free[:at]
            assert (end.reason, end.completion_tokens) == ("stop", at)
        tokens, end = run("before", at)
        assert (tokens, end.reason, end.completion_tokens) == (free[:at], "length", at)
        tokens, end = run("ignored", 8, ignore_eos=True)
        assert (tokens, end.reason) == (free, "length")


@pytest.mark.parametrize("tokens", [5, 41])
def test_a_prompt_that_ends_with_a_stop_token_is_answered(tokens):
    """The last token of the longer one goes through the model as if it had been drawn."""
    stop = 61
    prompt = [*range(70, 70 + tokens - 1), stop]
    with bare_engine(tiny_model("llama")) as engine:
        free = token_ids(engine.run(greedy("free", prompt, 6))["free"])
        assert stop not in free
        beside = greedy("beside", list(range(20, 40)), 12)
        said = engine.run(beside, greedy("ends", prompt, 6, stop_token_ids=[stop]))["ends"]
        assert token_ids(said) == free


@pytest.mark.parametrize("name", [one for one in NAMES if one != "llama4"])
def test_prompts_that_walk_together_say_what_each_says_alone(name):
    """All kinds of caches; the prompts end apart, and windows turn on the way."""
    prompts = [[(at * (7 + seed)) % 90 + 5 for at in range(190 + 9 * seed)] for seed in range(4)]
    with bare_engine(tiny_model(name), chunk_tokens=48) as engine:
        alone = [
            token_ids(engine.run(greedy(f"alone-{i}", prompt, 10))[f"alone-{i}"])
            for i, prompt in enumerate(prompts)
        ]
        engine.send(*(greedy(f"row-{i}", prompt, 10) for i, prompt in enumerate(prompts)))
        said: dict[str, list[int]] = {}
        fed_after_speech = 0
        ends = 0
        for event in engine.events:
            if isinstance(event, Tokens):
                said.setdefault(event.request_id, []).extend(event.ids)
            fed_after_speech += bool(said) and isinstance(event, PrefillProgress)
            ends += isinstance(event, Finished)
            if ends == len(prompts):
                break
        assert [said[f"row-{i}"] for i in range(len(prompts))] == alone
        # Nobody spoke before all were through: they did walk together.
        assert fed_after_speech == 0
