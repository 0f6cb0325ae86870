"""What went wrong with prefix caches in the field, against one of our engines in this process."""

import json
import os
import shutil
from collections.abc import Callable
from itertools import takewhile
from pathlib import Path

import mlx.core as mx
import pytest

from node_agent.engine.messages import Event, Generate, Load, SamplingParams
from node_agent.pool.process import Launcher
from node_agent.sources.content import ContentDigests
from tests.support.cached_engine import (
    await_report,
    cached_tokens,
    ids,
    prompt,
    row,
    settings,
)
from tests.support.damage import DAMAGE
from tests.support.local_engine import LocalEngine, local_engine
from tests.support.mlx_engine import BareEngine
from tests.support.tiny_models import tiny_model

LLAMA = "llama"
LONG = prompt(130)


def ask(engine: LocalEngine, tokens: list[int], name: str = "row") -> list[Event]:
    return engine.run(row(name, tokens))[name]


def drawn(name: str, seed: int | None) -> Generate:
    sampling = SamplingParams(temperature=1, seed=seed)
    return Generate(request_id=name, prompt=LONG, max_tokens=10, sampling=sampling)


def test_seeds_draw_the_same_from_a_cached_prompt_as_from_a_cold_one() -> None:
    """B25: seeds differ, alone and together; without a seed answers vary."""
    seeded = [drawn(f"seed-{seed}", seed) for seed in range(4)]
    with local_engine(tiny_model(LLAMA)) as cold:
        expected = [ids(cold.run(one)[one.request_id]) for one in seeded]
    assert len({tuple(said) for said in expected}) == 4
    with local_engine(tiny_model(LLAMA), settings(block_tokens=32)) as engine:
        for _ in range(2):
            assert [ids(engine.run(one)[one.request_id]) for one in seeded] == expected
        together = engine.run(*seeded)
        assert [ids(events) for events in together.values()] == expected
        assert {cached_tokens(events) for events in together.values()} == {129}
        free = [ids(engine.run(drawn("free", None))["free"]) for _ in range(5)]
        assert len({tuple(said) for said in free}) == 5


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "qwen3_next"])
def test_an_answer_hangs_on_no_conversation_before_it(name: str) -> None:
    """B28, B29, B30: beginnings shared by 0, 1, block-1, block, block+1 tokens; edits anywhere."""
    base, size = prompt(100), 32
    others = [[*base[:shared], *prompt(40, seed=5)] for shared in (0, 1, 31, 32, 33)]
    edited = [[*base[:at], 950, *base[at + 1 :]] for at in (0, 50, 98)]
    prompts = [base, *others, *edited]
    with local_engine(tiny_model(name)) as cold:
        expected = [ids(ask(cold, tokens)) for tokens in prompts]
    for order in (range(len(prompts)), range(len(prompts) - 1, -1, -1)):
        with local_engine(tiny_model(name), settings(block_tokens=size)) as engine:
            for place, number in enumerate(order):
                events = ask(engine, prompts[number])
                assert ids(events) == expected[number]
                earlier = [prompts[one] for one in order[:place]]
                shared = [count_shared(prompts[number], one) for one in earlier]
                assert cached_tokens(events) <= max(shared, default=0)


def count_shared(one: list[int], other: list[int]) -> int:
    pairs = takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    return sum(1 for _ in pairs)


def scale_weights(model: Path) -> None:
    weights = mx.load(str(model / "model.safetensors"))
    changed = {name: -value if "down_proj" in name else value for name, value in weights.items()}
    mx.save_safetensors(str(model / "model.safetensors"), changed, {"format": "mlx"})


def change_rope(model: Path) -> None:
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"rope_theta": 20000.0}))


def touch(model: Path) -> None:
    for path in model.iterdir():
        os.utime(path)


def change_tokenizer(model: Path) -> None:
    """The prompt's ids are the same here, and on them alone and the weights hangs the cache."""
    with (model / "tokenizer_config.json").open("a") as file:
        file.write(" ")


@pytest.mark.parametrize(
    ("change", "matters"),
    [(scale_weights, True), (change_rope, True), (touch, False), (change_tokenizer, False)],
)
async def test_blocks_belong_to_what_made_them_and_not_to_its_name(
    change: Callable[[Path], None], matters: bool, tmp_path: Path
) -> None:
    """B32."""
    model, memory = tmp_path / "model", tmp_path / "digests"
    shutil.copytree(tiny_model(LLAMA), model)
    cache = settings(tmp_path / "kv", block_tokens=32, hot_bytes=0)
    name = await ContentDigests(memory).of_directory(model)
    with local_engine(model, cache, fingerprint=name) as engine:
        engine.settle()
        before = ids(ask(engine, LONG))
        engine.settle()
        assert cached_tokens(ask(engine, LONG)) == 129
    change(model)
    with local_engine(model) as cold:
        expected = ids(ask(cold, LONG))
    assert (expected != before) is matters
    name = await ContentDigests(memory).of_directory(model)
    with local_engine(model, cache, fingerprint=name) as engine:
        engine.settle()
        events = ask(engine, LONG)
        assert (ids(events), cached_tokens(events)) == (expected, 0 if matters else 129)


@pytest.mark.processes
def test_a_process_with_another_hash_seed_and_locale_finds_the_blocks(tmp_path: Path) -> None:
    """B33."""
    cache = settings(tmp_path / "kv", block_tokens=32)
    with local_engine(tiny_model(LLAMA), cache) as engine:
        engine.settle()
        expected = ids(ask(engine, LONG))
    other = (("PYTHONHASHSEED", "4711"), ("LC_ALL", "tr_TR.UTF-8"), ("PYTHONUTF8", "0"))
    process = BareEngine(launcher=Launcher(environment=other))
    load = Load(model_path=str(tiny_model(LLAMA)), model_fingerprint="model-a", cache=cache)
    try:
        process.send(load)
        process.await_loaded()
        await_report(process)
        events = process.run(row("again", LONG))["again"]
    finally:
        process.stop()
    assert (ids(events), cached_tokens(events)) == (expected, 129)


def test_a_line_that_changes_at_the_front_costs_the_hit_and_nothing_else() -> None:
    """B35: prompts are never altered; that nothing was restored is told, and counted."""
    first, second = ([900 + turn, *LONG] for turn in range(2))
    with local_engine(tiny_model(LLAMA)) as cold:
        expected = [ids(ask(cold, tokens)) for tokens in (first, second)]
    with local_engine(tiny_model(LLAMA), settings(block_tokens=32)) as engine:
        for tokens, said in zip((first, second), expected, strict=True):
            events = ask(engine, tokens)
            assert (ids(events), cached_tokens(events)) == (said, 0)
        assert engine.settle().counters["misses"] == 2
        assert cached_tokens(ask(engine, first)) == len(first) - 1


def test_bad_files_cost_a_prompt_its_cache_and_never_its_answer(tmp_path: Path) -> None:
    """B37: each kind of damage to a block of a prompt of its own, and two files exchanged."""
    cache = settings(tmp_path / "kv", block_tokens=32, hot_bytes=0)
    prompts = [prompt(40, seed=seed) for seed in range(len(DAMAGE))]
    blocks, named = tmp_path / "kv" / "blocks", {}
    with local_engine(tiny_model(LLAMA), cache) as engine:
        engine.settle()
        expected = []
        for number, tokens in enumerate(prompts):
            before = set(blocks.glob("*.safetensors"))
            expected.append(ids(ask(engine, tokens)))
            engine.settle()
            named[number] = sorted(set(blocks.glob("*.safetensors")) - before)
    with local_engine(tiny_model(LLAMA), cache) as engine:
        engine.settle()
        for number, damage in enumerate(DAMAGE.values()):
            for path in named[number]:
                damage(path)
        for _ in range(2):
            said = [ids(ask(engine, tokens)) for tokens in prompts]
            assert said == expected
            engine.settle()
        assert [cached_tokens(ask(engine, tokens)) for tokens in prompts] == [39] * len(prompts)
        counters = engine.settle().counters
        assert counters["corruptions"] >= len(prompts)
        assert counters["faults"] == 0


def test_an_engine_started_under_a_smaller_budget_is_under_it_at_once(tmp_path: Path) -> None:
    """B39: blocks of a model nobody runs go first, files of others stay."""
    directory = tmp_path / "kv"
    large = settings(directory, block_tokens=32, hot_bytes=0)
    with local_engine(tiny_model(LLAMA), large, fingerprint="gone") as engine:
        engine.settle()
        for seed in range(8):
            ask(engine, prompt(130, seed))
    foreign = directory / "blocks" / "holiday.mov"
    foreign.write_bytes(bytes(300_000))
    with local_engine(tiny_model(LLAMA), large) as engine:
        engine.settle()
        said = ids(ask(engine, LONG))
        used_bytes = engine.settle().ssd_used_bytes
    small = settings(directory, block_tokens=32, hot_bytes=0, size_bytes=used_bytes // 2)
    with local_engine(tiny_model(LLAMA), small) as engine:
        report = engine.settle()
        held = sum(
            path.stat().st_blocks * 512 for path in (directory / "blocks").glob("*.safetensors")
        )
        assert 0 < held <= report.ssd_used_bytes <= used_bytes // 2
        events = ask(engine, LONG)
        assert (ids(events), cached_tokens(events)) == (said, 129)
    assert foreign.stat().st_size == 300_000


def test_a_repeat_writes_nothing_and_what_is_counted_is_what_is_on_the_disk(tmp_path: Path) -> None:
    """B42: nor does a promotion into RAM."""
    directory = tmp_path / "kv"
    cache = settings(directory, block_tokens=32)
    with local_engine(tiny_model(LLAMA), cache) as engine:
        engine.settle()
        ask(engine, LONG)
        written_bytes = engine.settle().counters["written_bytes"]
        on_disk = sum(path.stat().st_size for path in (directory / "blocks").glob("*.safetensors"))
        assert abs(written_bytes - on_disk) <= on_disk * 0.05
        for _ in range(10):
            ask(engine, LONG)
        assert engine.settle().counters["written_bytes"] == written_bytes
    with local_engine(tiny_model(LLAMA), cache) as engine:
        engine.settle()
        for _ in range(3):
            assert cached_tokens(ask(engine, LONG)) == 129
        counters = engine.settle().counters
        assert (counters["written_bytes"], counters["ssd_hits"] > 0) == (0, True)
        assert counters["hot_hits"] > counters["ssd_hits"]


@pytest.mark.parametrize("tier", ["ram", "disk"])
def test_what_is_used_stays_while_others_come_once(tier: str, tmp_path: Path) -> None:
    """B49: ten blocks; a prefix of three is used at every second request."""
    own = LONG[:97]
    with local_engine(tiny_model(LLAMA), settings(block_tokens=32)) as engine:
        ask(engine, own)
        report = engine.settle()
        block_bytes = report.hot_used_bytes // report.hot_blocks
    size = 12 * block_bytes
    small = settings(block_tokens=32, hot_bytes=size)
    if tier == "disk":
        # Each file is larger than its tensors, and the index takes some, too.
        room = {"hot_bytes": 0, "size_bytes": 10 * (block_bytes + 8192) + (200 << 10)}
        small = settings(tmp_path / "kv", block_tokens=32, **room)
    with local_engine(tiny_model(LLAMA), small) as engine:
        engine.settle()
        ask(engine, own)
        for seed in range(1, 25):
            engine.settle()
            ask(engine, prompt(33, seed))
            engine.settle()
            assert cached_tokens(ask(engine, own)) == 96
        counters = engine.settle().counters
        assert counters["hot_evictions" if tier == "ram" else "ssd_evictions"] > 10
