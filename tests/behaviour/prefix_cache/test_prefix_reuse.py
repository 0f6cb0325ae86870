"""Rows of a real engine start from what earlier rows left, and say the same as without."""

from pathlib import Path

import pytest

from manifests.wire.prefix_chain import ChainRoot, chain_digests
from node_agent.engine.messages import Cancel, Finished, PrefillProgress, Tokens
from tests.support.cached_engine import (
    await_held,
    await_report,
    cached_engine,
    cached_tokens,
    ids,
    prompt,
    row,
    settings,
)
from tests.support.mlx_engine import BareEngine, bare_engine
from tests.support.tiny_models import tiny_model

pytestmark = pytest.mark.processes

# Sliceable, rotating and mixed with it, recurrent and mixed with it.
SHARING = ["llama", "gemma3_text", "mamba2", "qwen3_5"]
LONG = prompt(600)


def run(engine: BareEngine, name: str, tokens: list[int], max_tokens: int = 8) -> list:
    return engine.run(row(name, tokens, max_tokens))[name]


# Every other architecture goes through the codec alone, in test_codec_equality.py.
@pytest.fixture(scope="module", params=[*SHARING, "deepseek_v3"])
def model(request) -> Path:
    return tiny_model(request.param)


def test_a_repeat_feeds_one_token_and_a_next_turn_only_what_is_new(model, tmp_path):
    """B28, B29, B30: the same tokens as without a cache, for each kind of layer."""
    with bare_engine(model, chunk_tokens=64) as cold:
        first = ids(run(cold, "first", LONG))
        turn = [*LONG, *first, *prompt(40, seed=3)]
        expected = ids(run(cold, "turn", turn))
        branch = [*LONG[:530], *prompt(50, seed=4)]
        expected_branch = ids(run(cold, "branch", branch))
    with cached_engine(model, settings(), chunk_tokens=64) as engine:
        cold_row = run(engine, "first", LONG)
        assert (ids(cold_row), cached_tokens(cold_row)) == (first, 0)
        repeat = run(engine, "repeat", LONG)
        assert (ids(repeat), cached_tokens(repeat)) == (first, 599)
        fed = [event for event in repeat if isinstance(event, PrefillProgress)]
        assert [event.chunk_tokens for event in fed] == [1]
        later = run(engine, "turn", turn)
        assert ids(later) == expected
        # One that runs its rows one at a time has not fed its last token.
        assert cached_tokens(later) >= 607
        other = run(engine, "branch", branch)
        assert ids(other) == expected_branch
        # Plain KV is cut in the middle of a block.
        assert cached_tokens(other) in (512, 530)


def test_a_restarted_engine_starts_from_the_disk(model, tmp_path):
    """B33."""
    cache = settings(tmp_path / "kv", memory_file=str(tmp_path / "memory"))
    with cached_engine(model, cache, chunk_tokens=64) as engine:
        first = ids(run(engine, "first", LONG))
    with cached_engine(model, cache, chunk_tokens=64) as engine:
        repeat = run(engine, "repeat", LONG)
        assert (ids(repeat), cached_tokens(repeat)) == (first, 599)
        again = run(engine, "again", LONG)
        assert (ids(again), cached_tokens(again)) == (first, 599)
        report = await_report(engine, ssd_hits=1, hot_hits=1)
        assert report.counters["tokens_saved"] == 2 * 599
        assert report.state_reason == ""
    with cached_engine(model, cache, fingerprint="model-b", chunk_tokens=64) as engine:
        await_report(engine)
        assert cached_tokens(run(engine, "stranger", LONG)) == 0


@pytest.mark.parametrize("name", SHARING)
def test_rows_that_come_together_feed_a_shared_prefix_once(name):
    model, shared = tiny_model(name), prompt(300)
    rows = [row(f"row-{i}", [*shared, *prompt(20, seed=9 + i)]) for i in range(4)]
    with bare_engine(model, chunk_tokens=512) as cold:
        expected = [ids(events) for events in cold.run(*rows).values()]
    with cached_engine(model, settings(), chunk_tokens=512) as engine:
        answers = engine.run(*rows)
        assert [ids(events) for events in answers.values()] == expected
        # Plain KV is cut in the middle of the block where they part.
        shared_tokens = 300 if name == "llama" else 256
        found = [cached_tokens(events) for events in answers.values()]
        assert found == [0, *[shared_tokens] * 3]


def test_a_cancelled_row_leaves_its_blocks_and_frees_those_who_waited():
    shared = prompt(1500)
    with cached_engine(tiny_model("llama"), settings(), chunk_tokens=2000) as engine:
        first = row("first", shared, max_tokens=2000)
        second = row("second", [*shared, 7], max_tokens=4)
        engine.send(first, second)
        ends = {}
        for event in engine.events:
            if isinstance(event, Tokens) and event.request_id == "first":
                engine.send(Cancel(request_id="first"))
            if isinstance(event, Finished):
                ends[event.request_id] = event
            if len(ends) == 2:
                break
        assert ends["first"].reason == "cancelled"
        assert (ends["second"].reason, ends["second"].cached_tokens > 1000) == ("length", True)
        said = [
            token
            for event in engine.seen
            if isinstance(event, Tokens) and event.request_id == "first"
            for token in event.ids
        ]
        # What the cancelled row had said is there for the next turn, but for a token just drawn.
        turn = run(engine, "turn", [*shared, *said, 5, 6])
        assert cached_tokens(turn) >= 1500 + len(said) - 1


def test_keys_keep_rows_apart_and_names_of_what_is_held_are_told():
    with cached_engine(tiny_model("llama"), settings(), chunk_tokens=64) as engine:
        run(engine, "first", LONG)
        other = engine.run(row("other", LONG, extra_keys=["tenant-2"]))["other"]
        assert cached_tokens(other) == 0
        same = engine.run(row("same", LONG, extra_keys=["tenant-2"]))["same"]
        assert cached_tokens(same) == 599
        report = await_report(engine, restores=1)
        names = chain_digests(ChainRoot(report.fingerprint), LONG, 256)
        await_held(engine, set(names))
