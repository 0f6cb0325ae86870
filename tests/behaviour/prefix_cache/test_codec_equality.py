"""Caches cut into blocks and built again let every kind of model go on as if they never were."""

import pytest

from tests.support.cached_engine import prompt
from tests.support.kv_rows import Rows, cold, go_on, tiny
from tests.support.tiny_models import NAMES

LONG = prompt(300)
SAID = 12


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("chunk_tokens", [16, 64, 256])
def test_cold_and_warm_say_the_same_whatever_the_chunks(name, chunk_tokens):
    """B28, B29, B30: a repeat, a longer prompt, a branch and the next turn."""
    model = tiny(name)
    rows = Rows(model, block_tokens=64)

    def check(tokens: list[int], cached: range) -> None:
        warm = rows.run(tokens, SAID, chunk_tokens)
        assert warm.said == cold(model, tokens, SAID, chunk_tokens)
        assert warm.cached_tokens in cached

    first = rows.run(LONG, SAID, chunk_tokens)
    assert first.said == cold(model, LONG, SAID, chunk_tokens)
    check(LONG, range(299, 300))
    check([*LONG, *prompt(50, seed=3)], range(299, 301))
    check([*LONG[:200], *prompt(60, seed=4)], range(192, 201))
    rows.finish(LONG, first)
    turn = [*LONG, *first.said, *prompt(30, seed=5)]
    check(turn, range(311, 312))
    check(LONG[:129], range(128, 129))
    # Its last token is the last of a block, and is fed again: plain KV is cut in that block.
    check(LONG[:128], range(64, 128))


@pytest.mark.parametrize("name", NAMES)
def test_a_row_goes_on_unmoved_after_its_end_was_stored(name):
    model = tiny(name)
    rows = Rows(model, block_tokens=64)
    warm = rows.run(LONG, SAID, 50)
    rows.finish(LONG, warm)
    more = go_on(model, warm.caches, warm.said[-1], SAID)
    assert [*warm.said, *more] == cold(model, LONG, 2 * SAID, 50)
