"""Stored prefixes under eviction, edits of the budget, damage, and beside other engines."""

from pathlib import Path

import pytest

from manifests.wire.prefix_chain import ChainRoot, chain_digests
from node_agent.engine.messages import CacheLimits, CacheReport
from tests.support.cached_engine import (
    DISK_BYTES,
    HOT_BYTES,
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

LENGTHS = (300, 513, 90, 700)


def run(engine: BareEngine, name: str, tokens: list[int], max_tokens: int = 8) -> list:
    return engine.run(row(name, tokens, max_tokens))[name]


def prompts() -> list[list[int]]:
    return [prompt(length, seed) for seed, length in enumerate(LENGTHS)]


@pytest.mark.parametrize(
    ("name", "chunk_tokens"), [("llama", 16), ("gemma3_text", 64), ("qwen3_5", 256)]
)
def test_rows_in_a_batch_say_the_same_warm_as_cold(name, chunk_tokens):
    """Others of the batch start cold, warm and part-way; the tail of a chunk differs."""
    model = tiny_model(name)
    with bare_engine(model, chunk_tokens=chunk_tokens) as cold:
        expected = [
            ids(events)
            for events in cold.run(*(row(f"r{i}", p) for i, p in enumerate(prompts()))).values()
        ]
    with cached_engine(model, settings(), chunk_tokens=chunk_tokens) as engine:
        first = engine.run(*(row(f"a{i}", p) for i, p in enumerate(prompts()) if i != 1))
        assert [ids(events) for events in first.values()] == [expected[i] for i in (0, 2, 3)]
        second = engine.run(*(row(f"b{i}", p) for i, p in enumerate(prompts())))
        assert [ids(events) for events in second.values()] == expected
        warm = [cached_tokens(events) for events in second.values()]
        assert warm == [299, 0, 89, 699]


@pytest.mark.parametrize("name", ["llama", "gemma3_text"])
def test_under_eviction_rows_say_the_same_and_limits_hold(name, tmp_path):
    """B39: the RAM tier holds about one prompt, the disk about two."""
    model = tiny_model(name)
    with bare_engine(model, chunk_tokens=64) as cold:
        expected = [ids(run(cold, f"r{i}", p)) for i, p in enumerate(prompts())]
    small = settings(tmp_path / "kv", hot_bytes=1 << 20, size_bytes=2 << 20)
    with cached_engine(model, small, chunk_tokens=64) as engine:
        for turn in range(3):
            said = [ids(run(engine, f"{turn}-{i}", p)) for i, p in enumerate(prompts())]
            assert said == expected
        report = await_report(engine, hot_evictions=1)
        assert report.hot_used_bytes <= 1 << 20
        assert report.ssd_used_bytes <= 2 << 20


def test_an_edited_budget_takes_effect_at_once(tmp_path):
    with cached_engine(tiny_model("llama"), settings(tmp_path / "kv")) as engine:
        for number, tokens in enumerate(prompts()):
            run(engine, f"r{number}", tokens)
        report = await_report(engine, saves_persisted=6)
        assert report.hot_used_bytes > 0
        engine.send(CacheLimits(size_bytes=64 << 10, hot_bytes=0))
        while report.hot_used_bytes or report.ssd_blocks:
            report = engine.await_event(CacheReport)
        assert cached_tokens(run(engine, "again", prompts()[0])) == 0
        engine.send(CacheLimits(size_bytes=DISK_BYTES, hot_bytes=HOT_BYTES))
        run(engine, "filled", prompts()[0])
        assert cached_tokens(run(engine, "repeat", prompts()[0])) == 299


def test_a_flipped_byte_is_a_miss_never_other_words(tmp_path):
    """B37: the damaged block is set aside, and what comes before it is still used."""
    model, tokens = tiny_model("llama"), prompt(700)
    cache = settings(tmp_path / "kv", hot_bytes=0)
    with cached_engine(model, cache, chunk_tokens=64) as engine:
        expected = ids(run(engine, "first", tokens))
        await_report(engine, saves_persisted=4)
    files = sorted((tmp_path / "kv" / "blocks").rglob("*.safetensors"))
    assert len(files) >= 4
    for path in files:
        flip(path)
    with cached_engine(model, cache, chunk_tokens=64) as engine:
        await_report(engine)
        events = run(engine, "again", tokens)
        assert (ids(events), cached_tokens(events)) == (expected, 0)
        report = await_report(engine, corruptions=1)
        assert report.counters["faults"] == 0


def test_two_engines_share_the_disk(tmp_path):
    cache, tokens = settings(tmp_path / "kv"), prompt(600)
    model = tiny_model("llama")
    with cached_engine(model, cache) as one, cached_engine(model, cache) as other:
        said = ids(run(one, "first", tokens))
        report = await_report(one, saves_persisted=3)
        # What another engine stored is told as well.
        await_held(other, set(chain_digests(ChainRoot(report.fingerprint), tokens, 256)))
        events = run(other, "again", tokens)
        assert (ids(events), cached_tokens(events)) == (said, 599)


def test_without_room_in_ram_rows_still_share_what_is_in_flight(tmp_path):
    shared = prompt(300)
    rows = [row(f"row-{i}", [*shared, 30 + i]) for i in range(3)]
    cache = settings(tmp_path / "kv", hot_bytes=0)
    with cached_engine(tiny_model("llama"), cache, chunk_tokens=512) as engine:
        await_report(engine)
        answers = engine.run(*rows)
        assert [cached_tokens(events) for events in answers.values()] == [0, 300, 300]


def flip(path: Path) -> None:
    """Change one byte in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
