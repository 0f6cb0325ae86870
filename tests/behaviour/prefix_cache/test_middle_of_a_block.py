"""Rows that turn off in the middle of a stored block start there, and say the same as without."""

import random

import pytest

from manifests.wire.prefix_chain import CUT_TOKENS
from node_agent.kvcache.layer_kinds import LayerKind
from tests.support.cached_engine import (
    await_report,
    cached_engine,
    cached_tokens,
    ids,
    prompt,
    row,
    settings,
)
from tests.support.kv_rows import Rows, cold, tiny
from tests.support.mlx_engine import bare_engine
from tests.support.tiny_models import NAMES, tiny_model

LONG = prompt(600)
SAID = 8


def exact(shared: int, block_tokens: int) -> int:
    """Return what must be found: to the token, but for the first few tokens of a block."""
    return shared if shared % block_tokens >= CUT_TOKENS else shared - shared % block_tokens


@pytest.mark.parametrize("name", NAMES)
def test_branches_of_one_prompt_say_the_same_from_wherever_they_turn_off(name):
    model = tiny(name)
    rows = Rows(model, block_tokens=64)
    rows.run(LONG[:300], SAID)
    plain = all(one.kind is LayerKind.SLICEABLE for one in rows.codec.layout.layers)
    source = random.Random(1)
    for seed in range(8):
        shared = source.randrange(1, 299)
        branch = [*LONG[:shared], 1000 - seed, *prompt(source.randrange(1, 90), seed=seed + 10)]
        warm = rows.run(branch, SAID)
        assert warm.said == cold(model, branch, SAID)
        assert warm.cached_tokens <= shared
        if plain:
            assert warm.cached_tokens >= exact(shared, 64)


@pytest.mark.processes
def test_an_engine_starts_a_branch_in_the_middle_of_a_block_from_ram_and_from_the_disk(tmp_path):
    model = tiny_model("llama")
    branches = [[*LONG[:at], *prompt(40, seed=4)] for at in (300, 470, 599)]
    with bare_engine(model, chunk_tokens=64) as engine:
        expected = [ids(engine.run(row("cold", one))["cold"]) for one in branches]
    cache = settings(tmp_path / "kv", memory_file=str(tmp_path / "memory"))

    def check(engine, count: int) -> None:
        for one, said in list(zip(branches, expected, strict=True))[:count]:
            events = engine.run(row("warm", one))["warm"]
            assert ids(events) == said
            shared = len(one) - 40
            assert exact(shared, 256) <= cached_tokens(events) < len(one)

    with cached_engine(model, cache, chunk_tokens=64) as engine:
        engine.run(row("first", LONG))
        check(engine, 1)
    with cached_engine(model, cache, chunk_tokens=64) as engine:
        await_report(engine)
        check(engine, 3)
        report = await_report(engine, restores=3, ssd_hits=1)
        assert (report.counters["corruptions"], report.counters["faults"]) == (0, 0)


@pytest.mark.processes
def test_a_request_id_that_comes_again_with_another_prompt_gets_its_own_answer():
    with bare_engine(tiny_model("llama"), chunk_tokens=64) as engine:
        expected = ids(engine.run(row("same", prompt(90, seed=2)))["same"])
    with cached_engine(tiny_model("llama"), settings(), chunk_tokens=64) as engine:
        engine.run(row("same", prompt(90, seed=1)))
        again = engine.run(row("same", prompt(90, seed=2)))["same"]
    assert (ids(again), cached_tokens(again)) == (expected, 0)
