"""What requests and engines need, in bytes that can be checked by hand."""

import pytest

from manifests.sizing.estimate import (
    ENGINE_BASE_BYTES,
    LayerGroup,
    LayerKind,
    ModelShape,
    PrefillCase,
    estimate_bytes_per_token,
    estimate_engine,
    estimate_kv_bytes,
    estimate_prefill,
    estimate_tokens_that_fit,
)

MIB = 1 << 20


def shape(*groups: LayerGroup, **changes: object) -> ModelShape:
    values = {
        "model_type": "test",
        "groups": groups,
        "hidden_size": 64,
        "intermediate_size": 128,
        "attention_heads": 4,
        "kv_heads": 2,
        "head_dim": 16,
        "vocab_size": 1000,
        "dtype_bytes": 2,
        "context_tokens": 8192,
    }
    return ModelShape.model_validate(values | changes)


FULL = LayerGroup(kind=LayerKind.FULL, layers=4, bytes_per_token=100)
SLIDING = LayerGroup(kind=LayerKind.SLIDING, layers=3, bytes_per_token=100, window_tokens=512)
CHUNKED = LayerGroup(kind=LayerKind.CHUNKED, layers=3, bytes_per_token=100, window_tokens=512)
RECURRENT = LayerGroup(kind=LayerKind.RECURRENT, layers=2, constant_bytes=5000)
LATENT = LayerGroup(kind=LayerKind.MLA, layers=4, bytes_per_token=10)


@pytest.mark.parametrize(
    ("tokens", "chunk", "held"),
    [(1, 256, 256), (256, 256, 256), (257, 256, 512), (1000, 64, 1024), (1000, 100, 1024)],
)
def test_full_layers_hold_whole_steps(tokens: int, chunk: int, held: int) -> None:
    assert estimate_kv_bytes(shape(FULL), tokens, chunk_tokens=chunk) == 4 * 100 * held


def test_a_sliding_layer_holds_at_most_its_window_and_the_last_chunk() -> None:
    sliding = shape(SLIDING)
    assert estimate_kv_bytes(sliding, 200, chunk_tokens=128) == 3 * 100 * 256
    assert estimate_kv_bytes(sliding, 100_000, chunk_tokens=128) == 3 * 100 * (512 + 128)
    assert estimate_kv_bytes(sliding, 100_000, chunk_tokens=0) == 3 * 100 * 512


def test_a_chunked_layer_holds_its_chunk_and_whole_steps() -> None:
    assert estimate_kv_bytes(shape(CHUNKED), 100_000, chunk_tokens=128) == 3 * 100 * (512 + 256)


def test_a_recurrent_layer_holds_the_same_whatever_the_context() -> None:
    for tokens in (1, 100_000):
        assert estimate_kv_bytes(shape(RECURRENT), tokens, chunk_tokens=256) == 2 * 5000


def test_only_unbounded_layers_grow_at_long_context() -> None:
    assert estimate_bytes_per_token(shape(FULL, SLIDING, CHUNKED, RECURRENT)) == 400


def test_scores_are_a_row_for_each_head_and_a_mask() -> None:
    case = PrefillCase(prompt_tokens=1024, chunk_tokens=64)
    assert estimate_prefill(shape(FULL), case).scores_bytes == 64 * 1024 * (4 * 2 + 1)


def test_scores_of_sliding_layers_end_at_the_window() -> None:
    case = PrefillCase(prompt_tokens=1024, chunk_tokens=64)
    assert estimate_prefill(shape(SLIDING), case).scores_bytes == 64 * 576 * (4 * 2 + 1)


@pytest.mark.parametrize("head_dim", [64, 72, 80, 96, 128])
def test_fused_kernels_leave_only_the_mask(head_dim: int) -> None:
    case = PrefillCase(prompt_tokens=1024, chunk_tokens=64)
    fusable = shape(FULL, head_dim=head_dim)
    assert estimate_prefill(fusable, case, fused=True).scores_bytes == 64 * 1024


@pytest.mark.parametrize("head_dim", [16, 192, 256])
def test_fused_kernels_do_not_help_a_head_size_they_cannot_take(head_dim: int) -> None:
    case = PrefillCase(prompt_tokens=1000, chunk_tokens=64)
    unfusable = shape(FULL, head_dim=head_dim)
    fused, plain = (estimate_prefill(unfusable, case, fused=one) for one in (True, False))
    assert fused.scores_bytes == plain.scores_bytes
    # A CPU cuts chunks in two and may copy a layer in each half.
    assert plain.peak_bytes - fused.peak_bytes == fused.growth_bytes == 100 * 1024


def test_a_fused_latent_cache_still_writes_its_rotary_scores() -> None:
    case = PrefillCase(prompt_tokens=1024, chunk_tokens=64)
    latent = shape(LATENT, head_dim=128, score_copies=2)
    assert estimate_prefill(latent, case).scores_bytes == 64 * 1024 * (2 * 4 * 2 + 1)
    assert estimate_prefill(latent, case, fused=True).scores_bytes == 64 * 1024 * (4 * 2 + 1)


def test_the_widest_chunk_counts_where_it_ends_and_not_at_the_prompts_end() -> None:
    case = PrefillCase(prompt_tokens=2500, chunk_tokens=2048)
    assert estimate_prefill(shape(FULL), case).scores_bytes == 2048 * 2048 * 9
    later = PrefillCase(prompt_tokens=4000, chunk_tokens=2048)
    assert estimate_prefill(shape(FULL), later).scores_bytes == 4000 * (4000 - 2048) * 9


def test_where_blocks_may_cut_a_prompt_the_widest_chunk_may_end_anywhere() -> None:
    case = PrefillCase(prompt_tokens=2500, chunk_tokens=2048)
    for snapshots in (shape(FULL, SLIDING), shape(FULL, RECURRENT)):
        assert estimate_prefill(snapshots, case).scores_bytes == 2048 * 2500 * 9


@pytest.mark.parametrize(("fused", "halves"), [(False, 2), (True, 1)])
def test_a_latent_cache_is_expanded_for_the_whole_context(fused: bool, halves: int) -> None:
    """On a CPU by each half of a chunk."""
    case = PrefillCase(prompt_tokens=1024, chunk_tokens=64)
    plain = estimate_prefill(shape(LATENT), case, fused=fused)
    expanded = estimate_prefill(shape(LATENT, expanded_elements=128), case, fused=fused)
    extra = expanded.activations_bytes - plain.activations_bytes
    assert extra == pytest.approx(halves * 1024 * 128 * 2 * 1.02, abs=1)


def test_cached_tokens_take_memory_but_no_wide_chunk() -> None:
    cold = estimate_prefill(shape(FULL), PrefillCase(prompt_tokens=1024, chunk_tokens=512))
    case = PrefillCase(prompt_tokens=1024, cached_tokens=768, chunk_tokens=512)
    warm = estimate_prefill(shape(FULL), case)
    assert warm.kv_bytes == cold.kv_bytes == 4 * 100 * 1024
    assert warm.scores_bytes * 2 == cold.scores_bytes
    assert warm.peak_bytes < cold.peak_bytes


def test_a_prefix_that_ends_within_a_step_leaves_buffers_off_whole_steps() -> None:
    at_step = PrefillCase(prompt_tokens=1024, cached_tokens=768)
    within = PrefillCase(prompt_tokens=1024, cached_tokens=769)
    more = estimate_prefill(shape(FULL), within).growth_bytes
    assert more - estimate_prefill(shape(FULL), at_step).growth_bytes == 2 * 100 * 256


def test_a_fully_cached_prompt_still_computes_one_token() -> None:
    case = PrefillCase(prompt_tokens=1000, cached_tokens=1000)
    assert estimate_prefill(shape(FULL), case).scores_bytes == 1000 * 9


def test_output_counts_in_what_is_held() -> None:
    short = estimate_prefill(shape(FULL), PrefillCase(prompt_tokens=512, chunk_tokens=256))
    case = PrefillCase(prompt_tokens=512, max_tokens=100_000, chunk_tokens=256)
    long = estimate_prefill(shape(FULL), case)
    assert short.kv_bytes == 4 * 100 * 512
    assert long.kv_bytes == 4 * 100 * 100_608
    assert long.peak_bytes > long.kv_bytes


def test_rows_are_held_together_but_feed_one_at_a_time() -> None:
    mixed = shape(FULL, SLIDING, RECURRENT)
    one = estimate_prefill(mixed, PrefillCase(prompt_tokens=900, max_tokens=50))
    three = estimate_prefill(mixed, PrefillCase(prompt_tokens=900, max_tokens=50, rows=3))
    assert three.kv_bytes == 3 * one.kv_bytes
    assert three.scores_bytes == one.scores_bytes
    assert three.activations_bytes == one.activations_bytes
    held = estimate_kv_bytes(mixed, 900, chunk_tokens=512)
    assert three.peak_bytes == one.peak_bytes + 2 * held


def test_a_mamba_layer_keeps_its_block_matrices() -> None:
    mamba = LayerGroup(kind=LayerKind.RECURRENT, layers=2, retained_row_bytes=10, block_heads=3)
    case = PrefillCase(prompt_tokens=5120, chunk_tokens=1024)
    bare = shape(mamba.model_copy(update={"block_heads": 0, "retained_row_bytes": 0}))
    extra = (
        estimate_prefill(shape(mamba), case).activations_bytes
        - estimate_prefill(bare, case).activations_bytes
    )
    assert extra == pytest.approx(((2 + 2) * 3 * 256 * 256 * 4 + 2 * 10 * 1024) * 1.02, abs=1)


def test_slices_of_a_chunk_are_held_by_rows_that_wait() -> None:
    conv = LayerGroup(kind=LayerKind.RECURRENT, layers=2, constant_bytes=5000, view_row_bytes=10)
    assert estimate_kv_bytes(shape(conv), 4096, chunk_tokens=512) == 2 * (5000 + 10 * 512)
    assert estimate_kv_bytes(shape(conv), 4096, chunk_tokens=0) == 2 * 5000


def test_the_longest_prompt_that_fits_fits_and_one_more_does_not() -> None:
    mixed = shape(FULL, SLIDING, RECURRENT)
    tokens = estimate_tokens_that_fit(mixed, MIB, chunk_tokens=64, max_tokens=32)
    assert 0 < tokens < 8000

    def peak(prompt_tokens: int) -> int:
        case = PrefillCase(prompt_tokens=prompt_tokens, max_tokens=32, chunk_tokens=64)
        return estimate_prefill(mixed, case).peak_bytes

    assert peak(tokens) <= MIB < peak(tokens + 1)


def test_no_prompt_fits_in_nothing() -> None:
    assert estimate_tokens_that_fit(shape(FULL), 0, chunk_tokens=64) == 0
    assert estimate_tokens_that_fit(shape(FULL), -5, chunk_tokens=64) == 0


def test_the_longest_prompt_leaves_room_in_the_context_for_the_output() -> None:
    fits = estimate_tokens_that_fit(shape(FULL), 1 << 40, chunk_tokens=64, max_tokens=192)
    assert fits == 8000
    assert estimate_tokens_that_fit(shape(FULL), 1 << 40, chunk_tokens=64, max_tokens=9000) == 0


def test_an_engine_needs_weights_one_full_context_and_itself() -> None:
    engine = estimate_engine(shape(FULL), 7 * MIB, context_tokens=4096, chunk_tokens=256)
    case = PrefillCase(prompt_tokens=4096, chunk_tokens=256)
    assert engine.weights_bytes == 7 * MIB
    assert engine.context_bytes == estimate_prefill(shape(FULL), case).peak_bytes
    assert engine.needed_bytes == 7 * MIB + engine.context_bytes + ENGINE_BASE_BYTES


def test_a_short_last_chunk_has_the_logits_of_all_its_tokens() -> None:
    for prompt_tokens, chunk_tokens, said_tokens in ((20, 64, 20), (1000, 64, 32), (1000, 16, 16)):
        case = PrefillCase(prompt_tokens=prompt_tokens, chunk_tokens=chunk_tokens)
        small, large = (
            estimate_prefill(shape(FULL).model_copy(update={"vocab_size": size}), case).peak_bytes
            for size in (1_000_000, 1_100_000)
        )
        assert large - small == said_tokens * 100_000 * 4
