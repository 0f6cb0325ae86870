"""The estimator's arithmetic holds together for every shape and demand."""

from collections.abc import Iterator

from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from manifests.sizing.advice import estimate_need
from manifests.sizing.estimate import (
    LayerGroup,
    LayerKind,
    ModelShape,
    PrefillCase,
    estimate_bytes_per_token,
    estimate_chunk,
    estimate_join_bytes,
    estimate_kv_bytes,
    estimate_prefill,
    estimate_tokens_that_fit,
)
from node_agent.engine.batching.chunking import cut_chunk

CONTEXT = 40_000
CHUNKS = st.sampled_from([1, 16, 64, 100, 256, 300, 512, 2048])
TOKENS = st.integers(1, CONTEXT)
SMALL = ModelShape(
    model_type="small",
    groups=(LayerGroup(kind=LayerKind.FULL, layers=40, bytes_per_token=10_000),),
    hidden_size=1,
    intermediate_size=1,
    attention_heads=1,
    kv_heads=1,
    head_dim=16,
    vocab_size=1,
    dtype_bytes=2,
    context_tokens=CONTEXT,
)


@st.composite
def groups(draw: st.DrawFn) -> LayerGroup:
    kind = draw(st.sampled_from(LayerKind))
    bounded = kind in {LayerKind.SLIDING, LayerKind.CHUNKED}
    recurrent = kind is LayerKind.RECURRENT
    return LayerGroup(
        kind=kind,
        layers=draw(st.integers(1, 60)),
        bytes_per_token=0 if recurrent else draw(st.integers(1, 10_000)),
        constant_bytes=draw(st.integers(1, 1 << 22)) if recurrent else 0,
        window_tokens=draw(st.integers(1, 8192)) if bounded else None,
        retained_row_bytes=draw(st.integers(0, 5000)) if recurrent else 0,
        view_row_bytes=draw(st.integers(0, 1000)) if recurrent else 0,
        block_heads=draw(st.integers(0, 64)) if recurrent else 0,
    )


@st.composite
def shapes(draw: st.DrawFn) -> ModelShape:
    small = st.integers(1, 64)
    return ModelShape(
        model_type="any",
        groups=tuple(draw(st.lists(groups(), min_size=1, max_size=4))),
        hidden_size=draw(st.integers(1, 8192)),
        intermediate_size=draw(st.integers(1, 30_000)),
        attention_heads=draw(small),
        kv_heads=draw(small),
        head_dim=draw(st.sampled_from([16, 64, 72, 80, 96, 128, 256])),
        vocab_size=draw(st.integers(1, 300_000)),
        dtype_bytes=draw(st.sampled_from([2, 4])),
        context_tokens=CONTEXT,
        row_elements=draw(st.integers(0, 100_000)),
        expanded_elements=draw(st.integers(0, 10_000)),
        score_copies=draw(st.integers(1, 3)),
    )


@st.composite
def cases(draw: st.DrawFn) -> PrefillCase:
    prompt_tokens = draw(TOKENS)
    return PrefillCase(
        prompt_tokens=prompt_tokens,
        cached_tokens=draw(st.integers(0, prompt_tokens)),
        max_tokens=draw(st.integers(0, CONTEXT)),
        chunk_tokens=draw(CHUNKS),
        rows=draw(st.integers(1, 8)),
    )


def peak(shape: ModelShape, case: PrefillCase, *, fused: bool = False, **changes: int) -> int:
    return estimate_prefill(shape, case.model_copy(update=changes), fused=fused).peak_bytes


@given(shapes(), cases(), st.integers(1, 1000))
@example(shape=SMALL, case=PrefillCase(prompt_tokens=100, chunk_tokens=2048), more=28)
def test_more_of_anything_never_needs_less(shape: ModelShape, case: PrefillCase, more: int) -> None:
    least = peak(shape, case)
    assert peak(shape, case, prompt_tokens=case.prompt_tokens + more) >= least
    assert peak(shape, case, max_tokens=case.max_tokens + more) >= least
    assert peak(shape, case, rows=case.rows + more) >= least


@given(shapes(), cases(), st.sampled_from([1, 2, 4]))
def test_a_wider_chunk_never_needs_less(
    shape: ModelShape, case: PrefillCase, doublings: int
) -> None:
    narrow = case.model_copy(update={"chunk_tokens": 64})
    assert peak(shape, narrow, chunk_tokens=64 << doublings) >= peak(shape, narrow)


@given(shapes(), cases())
def test_fused_kernels_never_cost_more(shape: ModelShape, case: PrefillCase) -> None:
    assert peak(shape, case, fused=True) <= peak(shape, case)


@given(shapes(), cases())
def test_a_whole_prompt_in_one_chunk_never_needs_less(shape: ModelShape, case: PrefillCase) -> None:
    cached_tokens = min(case.cached_tokens, case.prompt_tokens // 256 * 256)
    whole = case.prompt_tokens + 256
    most = peak(shape, case, cached_tokens=0, prompt_tokens=whole, chunk_tokens=whole)
    assert peak(shape, case, cached_tokens=cached_tokens) <= most


@given(shapes(), cases(), st.booleans(), st.lists(st.integers(1, CONTEXT), max_size=3))
@settings(max_examples=200)
def test_the_peak_covers_every_chunk_that_the_engine_cuts(
    shape: ModelShape, case: PrefillCase, fused: bool, ends: list[int]
) -> None:
    most = peak(shape, case, fused=fused)
    kept = any(group.kind in {LayerKind.SLIDING, LayerKind.RECURRENT} for group in shape.groups)
    stops = sorted(end // 256 * 256 for end in ends) if kept else []
    for held_tokens, last_tokens, chunk_tokens in cuts(case, stops):
        held = estimate_kv_bytes(shape, held_tokens, chunk_tokens=last_tokens)
        if not held_tokens:
            held = 0
        more = estimate_chunk(
            shape,
            held_tokens=held_tokens,
            chunk_tokens=chunk_tokens,
            last_chunk_tokens=last_tokens,
            fused=fused,
        )
        assert case.rows * held + more <= most


def cuts(case: PrefillCase, stops: list[int]) -> Iterator[tuple[int, int, int]]:
    """Yield what is held, the last chunk's width and the next one's, for up to 40 chunks."""
    last = case.prompt_tokens - 1
    steps = max(1, (last - case.cached_tokens) // case.chunk_tokens - 38)
    held, before = case.cached_tokens, 0
    for _ in range(40):
        width = cut_chunk(held, last, case.chunk_tokens, stops)
        if not width:
            return
        yield held, before, width
        held, before = held + width, width
        skipped = max(0, steps - 1) * case.chunk_tokens
        if skipped and held + skipped < last and case.chunk_tokens % 256 == 0:
            held, steps = held + skipped, 1


@given(shapes(), st.integers(0, CONTEXT), CHUNKS, st.integers(1, 300), st.booleans())
def test_a_longer_chunk_never_needs_less(
    shape: ModelShape, held_tokens: int, chunk: int, more: int, fused: bool
) -> None:
    def need(chunk_tokens: int) -> int:
        return estimate_chunk(
            shape, held_tokens=held_tokens, chunk_tokens=chunk_tokens, fused=fused
        )

    assert 0 < need(chunk) <= need(chunk + more)


@given(shapes(), st.integers(0, CONTEXT), CHUNKS, st.integers(1, 50))
def test_a_chunk_after_more_steps_never_needs_less(
    shape: ModelShape, held_tokens: int, chunk: int, steps: int
) -> None:
    growing = tuple(group for group in shape.groups if group.window_tokens is None)
    assume(growing)
    shape = shape.model_copy(update={"groups": growing})
    later = max(1, held_tokens) + 256 * steps
    need = estimate_chunk(shape, held_tokens=max(1, held_tokens), chunk_tokens=chunk)
    assert need <= estimate_chunk(shape, held_tokens=later, chunk_tokens=chunk)


@given(shapes(), st.integers(1, CONTEXT), CHUNKS)
def test_a_windowed_layer_costs_at_most_its_window_and_the_chunk(
    shape: ModelShape, tokens: int, chunk: int
) -> None:
    for group in shape.groups:
        if group.window_tokens is not None:
            one = shape.model_copy(update={"groups": (group,)})
            held = estimate_kv_bytes(one, tokens, chunk_tokens=chunk)
            room = group.window_tokens + -(-chunk // 256) * 256
            assert held <= group.layers * group.bytes_per_token * room


@given(shapes(), TOKENS, st.integers(0, 6), st.integers(1, 500))
def test_joining_never_needs_less_for_more_rows_or_longer_ones(
    shape: ModelShape, tokens: int, rows: int, more: int
) -> None:
    need = estimate_join_bytes(shape, [tokens] * rows, tokens)
    assert 0 < need <= estimate_join_bytes(shape, [tokens] * (rows + 1), tokens)
    assert need <= estimate_join_bytes(shape, [tokens + more] * rows, tokens + more)
    assert need <= estimate_join_bytes(shape, [tokens + more] * rows, tokens)


@given(shapes(), cases())
def test_the_peak_covers_its_parts(shape: ModelShape, case: PrefillCase) -> None:
    estimate = estimate_prefill(shape, case)
    assert estimate.peak_bytes >= estimate.kv_bytes > 0
    assert estimate.peak_bytes >= estimate.scores_bytes + estimate.activations_bytes
    assert min(estimate.model_dump().values()) >= 0


@given(shapes(), TOKENS, TOKENS, CHUNKS)
def test_kv_grows_by_at_least_the_marginal_rate_over_whole_steps(
    shape: ModelShape, tokens: int, steps: int, chunk: int
) -> None:
    grown = estimate_kv_bytes(shape, tokens + 256 * steps, chunk_tokens=chunk)
    rate = estimate_bytes_per_token(shape)
    assert grown - estimate_kv_bytes(shape, tokens, chunk_tokens=chunk) >= rate * 256 * steps


@given(
    shapes(),
    st.integers(0, 1 << 36),
    CHUNKS,
    st.integers(0, CONTEXT + 10),
    st.booleans(),
    st.floats(0.5, 4.0),
)
def test_what_fits_is_the_inverse_of_the_peak(
    shape: ModelShape, free_bytes: int, chunk: int, max_tokens: int, fused: bool, ratio: float
) -> None:
    tokens = estimate_tokens_that_fit(
        shape,
        free_bytes,
        chunk_tokens=chunk,
        max_tokens=max_tokens,
        fused=fused,
        transient_ratio=ratio,
    )

    def need(prompt_tokens: int) -> int:
        case = PrefillCase(prompt_tokens=prompt_tokens, max_tokens=max_tokens, chunk_tokens=chunk)
        return estimate_need(shape, case, fused=fused, transient_ratio=max(1.0, ratio)).need_bytes

    most = max(0, CONTEXT - max_tokens)
    assert 0 <= tokens <= most
    assert tokens == 0 or need(tokens) <= free_bytes
    assert tokens == most or need(tokens + 1) > free_bytes
