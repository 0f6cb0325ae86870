"""Models as most are published, in bfloat16: every bit of a row's cache survives both tiers."""

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten
from mlx_lm.models.cache import RotatingKVCache, make_prompt_cache

from tests.support.cached_engine import (
    cached_tokens,
    ids,
    prompt,
    row,
    settings,
)
from tests.support.kv_rows import Rows, feed, tiny
from tests.support.local_engine import local_engine
from tests.support.tiny_configs import WINDOW_TOKENS
from tests.support.tiny_models import tiny_model

# By token, by window, recurrent between attention, and latent attention.
NAMES = ["llama", "gemma3_text", "qwen3_next", "deepseek_v3"]
DTYPE = "bfloat16"
LONG = prompt(300)
# Chunks end where stored beginnings may, so a cold row computes the very same sums as a warm one:
# in 8 bits of mantissa other sums would be other bits.
CHUNK = 16


def bits(caches: list) -> dict[str, tuple[mx.Dtype, bytes]]:
    """Return each array of a row's cache as it is in memory, and of a window what is in it."""
    found = {}
    for name, array in tree_flatten([layer.state for layer in caches]):
        if not isinstance(array, mx.array):
            continue
        window = isinstance(caches[int(name.partition(".")[0])], RotatingKVCache)
        # A chunk leaves more behind than the next token sees.
        seen = array[..., 1 - WINDOW_TOKENS :, :] if window else array
        found[name] = (seen.dtype, bytes(memoryview(mx.contiguous(seen).view(mx.uint8))))
    return found


@pytest.mark.parametrize("name", NAMES)
def test_a_cache_built_of_blocks_has_the_bits_of_one_that_was_never_cut(name):
    model = tiny(name, dtype=DTYPE)
    rows = Rows(model, block_tokens=64)
    rows.run(LONG, 0, CHUNK)
    untouched = make_prompt_cache(model)
    for start in range(0, 299, CHUNK):
        end = min(start + CHUNK, 299)
        feed(model, untouched, LONG[start:end])
        if end in (192, 299):
            restored = rows.codec.build(rows.blocks([*LONG[:end], 999]), end)
            found = bits(restored)
            assert found == bits(untouched)
            assert mx.bfloat16 in {dtype for dtype, _ in found.values()}


@pytest.mark.parametrize("name", NAMES)
def test_an_engine_repeats_branches_and_restarts(name, tmp_path):
    """B28, B29, B30: in bfloat16."""
    model = tiny_model(name, dtype=DTYPE)
    branch = [*LONG[:200], *prompt(60, seed=4)]
    with local_engine(model, chunk_tokens=CHUNK) as engine:
        expected = [ids(engine.run(row("cold", one))["cold"]) for one in (LONG, branch)]
    cache = settings(tmp_path / "kv", block_tokens=64)

    def check(engine) -> None:
        for one, said, cached in zip((LONG, branch), expected, (299, 192), strict=True):
            events = engine.run(row("warm", one))["warm"]
            assert (ids(events), cached_tokens(events) >= cached) == (said, True)

    with local_engine(model, cache, chunk_tokens=CHUNK) as engine:
        engine.settle()
        assert ids(engine.run(row("first", LONG))["first"]) == expected[0]
        check(engine)
    with local_engine(model, cache, chunk_tokens=CHUNK) as engine:
        engine.settle()
        check(engine)
        counters = engine.settle().counters
        assert counters["ssd_hits"] >= 5
        assert (counters["corruptions"], counters["faults"]) == (0, 0)
