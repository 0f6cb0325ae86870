"""Chunks fed in parts side by side: the same caches, and BLAS as it was."""

from typing import ClassVar

import mlx.core as mx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx_lm.models.cache import KVCache, make_prompt_cache
from mlx_lm.utils import load_model
from threadpoolctl import ThreadpoolController

from node_agent.engine.batching.lanes import MIN_PART_TOKENS, Lanes, cut_parts, lanes_for
from tests.support.tiny_models import NAMES, tiny_model

CHUNKS = (24, 37, 5, 64)
TOKENS = [10 + (7 * place) % 90 for place in range(sum(CHUNKS))]


def fed(lanes: Lanes, rows: int) -> list[mx.array]:
    """Feed the chunks; return what the last token says, and what a token after it says."""
    cache, start = make_prompt_cache(lanes.model), 0
    logits = None
    for width in CHUNKS:
        chunk = [TOKENS[start : start + width]] * rows
        start += width
        logits = lanes.feed(chunk, cache, said=start == len(TOKENS))
        assert (logits is None) == (start < len(TOKENS))
    return [logits, lanes.model(mx.array([[9]] * rows), cache=cache)]


def alike(ours: list[mx.array], theirs: list[mx.array]) -> bool:
    return all(
        one.shape == other.shape and bool(mx.allclose(one, other, atol=1e-4))
        for one, other in zip(ours, theirs, strict=True)
    )


@pytest.mark.parametrize("name", NAMES)
def test_parts_leave_what_the_whole_chunk_leaves(name):
    """Every kind of layer: windows turn, recurrent states go on, from one part to the next."""
    model, _ = load_model(tiny_model(name))
    whole = fed(Lanes(model), 1)
    assert alike(fed(Lanes(model, 2), 1), whole)
    assert alike(fed(Lanes(model, 3), 1), whole)


def test_rows_in_lockstep_are_cut_alike():
    model, _ = load_model(tiny_model("llama"))
    whole = fed(Lanes(model), 3)
    assert whole[0].shape[:2] == (3, 1)
    assert alike(fed(Lanes(model, 2), 3), whole)


def test_blas_has_one_thread_while_parts_are_under_way_and_only_then():
    blas = ThreadpoolController().select(user_api="blas")
    if not blas.info():
        pytest.skip("NumPy has no BLAS here whose threads can be held; install NumPy's own wheel")

    def threads() -> list[int]:
        return [one["num_threads"] for one in blas.info()]

    class Watching(KVCache):
        """A layer's cache that notes BLAS's threads whenever it is to be evaluated."""

        seen: ClassVar[list[list[int]]] = []

        @property
        def state(self) -> object:
            self.seen.append(threads())
            return super().state

    model, _ = load_model(tiny_model("llama"))
    lanes, cache = Lanes(model, 2, blas), [Watching() for _ in make_prompt_cache(model)]
    with blas.limit(limits=2):
        free = threads()
        lanes.feed([TOKENS[: MIN_PART_TOKENS - 1]], cache, said=False)
        assert Watching.seen == [free] * len(cache)
        lanes.feed([TOKENS[:40]], cache, said=False)
        assert Watching.seen[len(cache) :] == [[1] * len(free)] * len(cache)
        assert threads() == free


@given(st.integers(1, 8), st.integers(1, 600), st.integers(1, 4))
def test_parts_are_even_follow_each_other_and_are_worth_it(rows, tokens, lanes):
    parts = cut_parts(rows, tokens, lanes)
    assert [start for start, _ in parts] == [0, *(end for _, end in parts[:-1])]
    assert parts[-1][1] == tokens
    widths = [end - start for start, end in parts]
    assert 1 <= len(parts) <= lanes
    assert max(widths) - min(widths) <= 1
    if len(parts) > 1:
        assert min(widths) >= 2
        assert rows * tokens >= MIN_PART_TOKENS * len(parts)


@pytest.mark.parametrize(
    ("libraries", "expected"),
    [
        ([("libopenblas", "pthreads", 2)], 2),
        ([("libopenblas", "pthreads", 1)], 1),
        # NumPy's own is another library, of another name.
        ([("libscipy_openblas", "pthreads", 2), ("libopenblas", "pthreads", 2)], 2),
        ([("libscipy_openblas", "pthreads", 2)], 1),
        # Its number of threads is of the calling thread.
        ([("libopenblas", "openmp", 2)], 1),
        # Four lanes would hold more copies than the estimator counts.
        ([("libopenblas", "pthreads", 4)], 1),
        ([("libmkl_rt", "intel", 2)], 1),
        ([], 1),
    ],
)
def test_there_are_as_many_lanes_as_a_blas_has_threads_that_can_be_held(libraries, expected):
    found = [
        {"prefix": prefix, "threading_layer": layer, "num_threads": threads}
        for prefix, layer, threads in libraries
    ]
    assert lanes_for(found) == expected
