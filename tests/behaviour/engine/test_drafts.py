"""Rows say the same with drafts as without, and drafts are verified where they can be."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from node_agent.engine.batching import drafts
from node_agent.engine.messages import (
    CacheSettings,
    Event,
    Finished,
    Generate,
    Heartbeat,
    Restored,
    SamplingParams,
    Tokens,
)
from tests.support.local_engine import LocalEngine
from tests.support.mlx_engine import bare_engine
from tests.support.pools import ending, greedy, token_ids
from tests.support.tiny_models import NAMES, tiny_model

# Every layer of these can take back what it was fed.
DRAFTING = {"deepseek_v3", "llama", "qwen3", "qwen3_moe"}
LOOP = [30, 31, 32, 33] * 8
HOT = CacheSettings(hot_bytes=64 << 20, block_tokens=16)


@pytest.fixture(autouse=True)
def steady_costs(monkeypatch):
    """Passes of these models take so little that their times say nothing; none are learned."""
    monkeypatch.setattr(drafts, "COST_LEARNING_RATE", 0.0)


def engines(name: str, **fields: object) -> tuple[LocalEngine, LocalEngine]:
    """Return an engine without drafts and one with."""
    model = tiny_model(name)
    return LocalEngine(model, drafts=False, **fields), LocalEngine(model, **fields)


@pytest.fixture(scope="module")
def llamas() -> tuple[LocalEngine, LocalEngine]:
    return engines("llama")


def drafted(engine: LocalEngine) -> tuple[int, int]:
    counts = engine.scheduler.counts
    return counts.drafted_tokens, counts.accepted_tokens


def leaning(seed: int, **fields: object) -> SamplingParams:
    """Return sampling that draws now one of two tokens, now another."""
    bias = {30: 14.0, 31: 11.0}
    return SamplingParams(temperature=1, seed=seed, logit_bias=bias, **fields)


SAMPLINGS = {
    "greedy": SamplingParams(temperature=0),
    "logprobs": SamplingParams(temperature=0, top_logprobs=3, logit_bias={30: 5.0}),
    "bias": SamplingParams(temperature=0, logit_bias={30: 4.0}),
    "repetition": SamplingParams(temperature=0, repetition_penalty=1.02),
    "frequency": SamplingParams(temperature=0, frequency_penalty=0.05, presence_penalty=0.1),
    "drawn": leaning(1),
    "drawn top-p": leaning(2, top_p=0.9, top_logprobs=2),
    "drawn top-k": leaning(3, top_k=3, min_p=0.01),
    "drawn with penalties": leaning(4, frequency_penalty=0.02),
}


@pytest.mark.parametrize("name", NAMES)
def test_every_architecture_says_the_same_with_drafts(name):
    """Windows and recurrent states cannot take tokens back; there nothing is drafted."""
    plain, drafting = engines(name)
    for index, prompt in enumerate((LOOP, [5, 6, 7], list(range(20, 90)) * 2)):
        for kind in ("greedy", "drawn"):
            row = greedy(f"{kind}-{index}", prompt, 60, sampling=SAMPLINGS[kind])
            ran = [engine.run(row)[row.request_id] for engine in (plain, drafting)]
            assert token_ids(ran[1]) == token_ids(ran[0])
            assert ending(ran[1]) == ending(ran[0])
    proposed, accepted = drafted(drafting)
    assert drafted(plain) == (0, 0)
    assert (proposed > accepted > 0) if name in DRAFTING else proposed == 0


@pytest.mark.parametrize("kind", sorted(SAMPLINGS))
def test_every_way_of_sampling_says_the_same_with_drafts(kind, llamas):
    plain, drafting = llamas
    before = drafted(drafting)
    for index, prompt in enumerate((LOOP, [5, 6, 7], [9])):
        row = greedy(f"{kind}-{index}", prompt, 80, sampling=SAMPLINGS[kind])
        ran = [engine.run(row)[row.request_id] for engine in (plain, drafting)]
        assert token_ids(ran[1]) == token_ids(ran[0])
        reported = [_logprobs(events) for events in ran]
        assert [one[0] for one in reported[1]] == [one[0] for one in reported[0]]
        assert [one[1] for one in reported[1]] == pytest.approx([one[1] for one in reported[0]])
    assert drafted(drafting)[1] > before[1]


def _logprobs(events: list[Event]) -> list[tuple[list[int], float]]:
    """Return the best tokens of each place and the chosen one's log-probability."""
    found = [one for event in events if isinstance(event, Tokens) for one in event.logprobs]
    return [([token for token, _ in one.top], one.logprob) for one in found]


@pytest.mark.processes
def test_an_engine_says_in_its_heartbeats_what_came_of_drafts():
    with bare_engine(tiny_model("llama")) as engine:
        first = engine.await_event(Heartbeat)
        assert (first.drafted_tokens, first.accepted_tokens) == (0, 0)
        row = greedy("row", LOOP, 60, sampling=leaning(1))
        engine.run(row)
        engine.await_event(Heartbeat)
        last = engine.await_event(Heartbeat)
        assert last.drafted_tokens >= last.accepted_tokens > 0


def test_rows_end_at_every_cap_and_stop_token_as_without_drafts(llamas):
    plain, drafting = llamas
    for cap in range(1, 24):
        row = greedy(f"cap-{cap}", LOOP, cap)
        ran = [engine.run(row)[row.request_id] for engine in (plain, drafting)]
        assert token_ids(ran[1]) == token_ids(ran[0])
        assert ending(ran[1]) == ending(ran[0])
    said = token_ids(plain.run(greedy("said", LOOP, 40, sampling=leaning(6)))["said"])
    for stop in sorted(set(said)):
        for cap in (said.index(stop), said.index(stop) + 1, 40):
            fields = {"sampling": leaning(6), "stop_token_ids": [stop]}
            row = greedy(f"stop-{stop}-{cap}", LOOP, max(1, cap), **fields)
            ran = [engine.run(row)[row.request_id] for engine in (plain, drafting)]
            assert token_ids(ran[1]) == token_ids(ran[0])
            assert ending(ran[1]) == ending(ran[0])


def test_a_stop_token_that_comes_where_it_was_drafted_ends_the_row(llamas):
    """The prompt has it in the text that repeats."""
    plain, drafting = llamas
    prompt, before = [30, 30, 30, 30, 31] * 6, drafted(drafting)
    for seed in range(12):
        fields = {"sampling": leaning(seed), "stop_token_ids": [31]}
        row = greedy(f"stop-{seed}", [*prompt, 30, 30], 60, **fields)
        ran = [engine.run(row)[row.request_id] for engine in (plain, drafting)]
        assert token_ids(ran[1]) == token_ids(ran[0])
        assert ending(ran[1]) == ending(ran[0])
    assert drafted(drafting)[1] > before[1]


def test_a_lone_row_drafts_until_another_joins_and_again_after(llamas):
    plain, drafting = llamas
    rows = {
        "long": greedy("long", LOOP, 120, sampling=leaning(7)),
        "other": greedy("other", [9, 8, 7], 20, sampling=leaning(8)),
    }
    alone = {name: token_ids(plain.run(row)[name]) for name, row in rows.items()}
    ran: dict[str, list[Event]] = {name: [] for name in rows}
    scheduler = drafting.scheduler
    before = drafted(drafting)
    drafting.note(ran, scheduler.submit(rows["long"]))
    while len(token_ids(ran["long"])) < 20:
        drafting.note(ran, scheduler.step())
    first = drafted(drafting)
    drafting.note(ran, scheduler.submit(rows["other"]))
    while not token_ids(ran["other"]):
        drafting.note(ran, scheduler.step())
    joined = drafted(drafting)
    while not isinstance(ran["other"][-1], Finished):
        assert drafted(drafting) == joined
        drafting.note(ran, scheduler.step())
    drafting.finish(ran)
    assert {name: token_ids(events) for name, events in ran.items()} == alone
    assert first[1] > before[1]
    assert drafted(drafting)[1] > joined[1]


def test_a_row_goes_on_elsewhere_as_if_it_had_never_been_cut(llamas):
    plain, drafting = llamas
    whole = greedy("whole", LOOP, 60, sampling=leaning(5))
    said = token_ids(plain.run(whole)["whole"])
    for cut in (1, 17, 43):
        fields = {"sampling": leaning(5), "said_tokens": cut}
        rest = greedy(f"rest-{cut}", [*LOOP, *said[:cut]], 60 - cut, **fields)
        assert token_ids(drafting.run(rest)[rest.request_id]) == said[cut:]


@pytest.fixture(params=["llama", "deepseek_v3"])
def caching(request) -> Iterator[LocalEngine]:
    engine = LocalEngine(tiny_model(request.param), HOT)
    yield engine
    engine.close()


def _cold(model: Path, row: Generate) -> list[int]:
    return token_ids(LocalEngine(model, drafts=False).run(row)[row.request_id])


def test_what_a_row_leaves_in_the_cache_is_what_it_said(caching, request):
    """Blocks end in the middle of what a pass accepts, and so do rows."""
    model = tiny_model(request.node.callspec.params["caching"])
    for cap in (5, 33, 70):
        first = greedy(f"first-{cap}", [cap, *LOOP], cap, sampling=leaning(cap))
        said = token_ids(caching.run(first)[first.request_id])
        assert said == _cold(model, first)
        turn = greedy(f"turn-{cap}", [*first.prompt, *said, 40, 41, 42], 40)
        events = caching.run(turn)[turn.request_id]
        assert token_ids(events) == _cold(model, turn)
        restored = next(event for event in events if isinstance(event, Restored))
        assert restored.tokens == len(first.prompt) + len(said)
    assert drafted(caching)[1] > 0


def test_full_blocks_are_stored_while_a_row_still_decodes(caching):
    ran: dict[str, list[Event]] = {"long": []}
    row = greedy("long", LOOP, 100, sampling=leaning(1))
    caching.note(ran, caching.scheduler.submit(row))
    while len(token_ids(ran["long"])) < 70:
        caching.note(ran, caching.scheduler.step())
    assert drafted(caching)[1] > 0
    tokens = [*LOOP, *token_ids(ran["long"])]
    assert caching.prefixes is not None
    plan = caching.prefixes.plan(greedy("again", [*tokens, 1], 1))
    assert plan.cached_tokens >= len(tokens) // 16 * 16 - 16
    caching.finish(ran)


def test_a_cancelled_row_leaves_what_it_had_said(caching, request):
    model = tiny_model(request.node.callspec.params["caching"])
    ran: dict[str, list[Event]] = {"long": []}
    row = greedy("long", LOOP, 100, sampling=leaning(1))
    caching.note(ran, caching.scheduler.submit(row))
    while len(token_ids(ran["long"])) < 40:
        caching.note(ran, caching.scheduler.step())
    caching.note(ran, caching.scheduler.cancel("long"))
    assert ending(ran["long"]).reason == "cancelled"
    said = token_ids(ran["long"])
    turn = greedy("turn", [*LOOP, *said, 40, 41, 42], 30)
    events = caching.run(turn)["turn"]
    assert token_ids(events) == _cold(model, turn)
    restored = next(event for event in events if isinstance(event, Restored))
    assert restored.tokens >= len(LOOP) + len(said) - 1
