"""Whatever rows came before, a row's caches hold just its own tokens, each kind what it should."""

import mlx.core as mx
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.kv_recorder import CHUNK_TOKENS, WINDOW_TOKENS, Recorder, held
from tests.support.kv_rows import Rows, feed

# Ids of the two never meet, and no two are alike, so a token at a wrong place is seen.
FIRST, SECOND = range(1, 200), range(300, 500)
# What the snapshots of one prompt may take: none, a few, all.
BUDGETS = st.sampled_from([0, 600, 2000, 1 << 20])


@st.composite
def prompts(draw: st.DrawFn) -> list[int]:
    """Return the start of one text, and some of another."""
    shared = draw(st.integers(0, 60))
    start, own = draw(st.integers(0, 3)), draw(st.integers(0 if shared > 1 else 2, 40))
    return [*FIRST[:shared], *SECOND[start : start + own]]


def check(caches: list, tokens: list[int]) -> None:
    plain, listed, window, chunked = caches
    assert held(plain) == held(listed[1]) == tokens
    assert listed[0][0].tolist() == [[float(sum(tokens))] * 3]
    assert held(window) == tokens[-WINDOW_TOKENS:]
    assert held(chunked) == tokens[-CHUNK_TOKENS:]
    assert {layer.offset for layer in (plain, listed[1], window, chunked)} == {len(tokens)}


@given(
    turns=st.lists(
        st.tuples(prompts(), st.integers(1, 70), st.integers(0, 12)), min_size=2, max_size=3
    ),
    block_tokens=st.sampled_from([1, 3, 8, 16]),
    budget=BUDGETS,
)
@settings(max_examples=40, deadline=None)
def test_rows_start_from_each_other_and_hold_their_own_tokens(turns, block_tokens, budget):
    rows = Rows(Recorder(), block_tokens, budget)
    for number, (prompt, chunk_tokens, decoded) in enumerate(turns):
        warm = rows.run(prompt, 0, chunk_tokens)
        fed = prompt[:-1]
        if fed:
            check(warm.caches, fed)
        assert warm.cached_tokens <= len(fed)
        for token in [prompt[-1], *range(700, 700 + decoded)]:
            feed(rows.model, warm.caches, [token])
            fed.append(token)
            check(warm.caches, fed)
        rows.keep_end(fed, warm.caches)
        again = rows.run([*fed, 999], 0, chunk_tokens)
        check(again.caches, fed)
        # Later rows may end at a block that is there without a snapshot, and stays so.
        if budget >= 1 << 20 and number == 0:
            assert again.cached_tokens == len(fed)
        for token in (999, 998):
            feed(rows.model, again.caches, [token])
            check(again.caches, [*fed, *range(999, token - 1, -1)])
    mx.clear_cache()
