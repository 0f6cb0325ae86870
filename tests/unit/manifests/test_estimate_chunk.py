"""What one chunk, and joining a batch, take over what is held; in bytes checked by hand."""

from manifests.sizing.estimate import (
    LayerGroup,
    LayerKind,
    estimate_chunk,
    estimate_join_bytes,
)
from manifests.sizing.shape import ModelShape

FULL = LayerGroup(kind=LayerKind.FULL, layers=4, bytes_per_token=100)
SLIDING = LayerGroup(kind=LayerKind.SLIDING, layers=3, bytes_per_token=100, window_tokens=512)
RECURRENT = LayerGroup(
    kind=LayerKind.RECURRENT,
    layers=2,
    constant_bytes=5000,
    retained_row_bytes=10,
    view_row_bytes=7,
)
# Activations of one token of the shapes below, and scores of one pair of tokens.
ROW_BYTES = 8 * (64 + 128) * 2
PAIR_BYTES = 4 * 2 + 1
# Decoding one token: logits of 1,000 words in fp32, four copies, and the token's own activations.
DECODE_BYTES = 4 * 4 * 1000 + ROW_BYTES


def shape(*groups: LayerGroup) -> ModelShape:
    return ModelShape(
        model_type="test",
        groups=groups,
        hidden_size=64,
        intermediate_size=128,
        attention_heads=4,
        kv_heads=2,
        head_dim=64,
        vocab_size=1000,
        dtype_bytes=2,
        context_tokens=8192,
    )


def transient(end_tokens: int, chunk_tokens: int) -> int:
    return with_slack(chunk_tokens * (ROW_BYTES + end_tokens * PAIR_BYTES))


def with_slack(transient_bytes: int) -> int:
    return transient_bytes + transient_bytes // 50


def test_the_first_chunk_makes_the_buffers() -> None:
    chunk = estimate_chunk(shape(FULL), held_tokens=0, chunk_tokens=64)
    assert chunk == 4 * 100 * 256 + 2 * 100 * 256 + transient(64, 64)


def test_a_chunk_within_the_buffers_room_adds_nothing_that_stays() -> None:
    chunk = estimate_chunk(shape(FULL), held_tokens=64, chunk_tokens=64)
    # On a CPU each half may copy the widest layer all the same.
    assert chunk == 2 * 100 * 256 + transient(128, 64)
    fused = estimate_chunk(shape(FULL), held_tokens=64, chunk_tokens=64, fused=True)
    assert fused == with_slack(64 * (ROW_BYTES + 128))


def test_a_chunk_that_passes_a_step_adds_room_to_all_layers_and_copies_one_twice() -> None:
    chunk = estimate_chunk(shape(FULL), held_tokens=256, chunk_tokens=64)
    assert chunk == 4 * 100 * 256 + 2 * 100 * 512 + transient(320, 64)


def test_a_layer_that_grows_is_copied_once_where_chunks_are_not_cut_in_two() -> None:
    fused = estimate_chunk(shape(FULL), held_tokens=256, chunk_tokens=64, fused=True)
    assert fused == 4 * 100 * 256 + 100 * 512 + with_slack(64 * (ROW_BYTES + 320))


def test_room_is_added_to_what_is_held_where_that_is_no_whole_step() -> None:
    chunk = estimate_chunk(shape(FULL), held_tokens=1000, chunk_tokens=257)
    assert chunk == 4 * 100 * (1512 - 1024) + 2 * 100 * 1512 + transient(1257, 257)


def test_a_full_window_adds_the_chunk_unless_one_as_wide_is_held_already() -> None:
    window = shape(SLIDING)
    copied_and_transient = 2 * 100 * (512 + 64) + transient(512 + 64, 64)
    fresh = estimate_chunk(window, held_tokens=4096, chunk_tokens=64)
    assert fresh == 3 * 100 * 64 + copied_and_transient
    steady = estimate_chunk(window, held_tokens=4096, chunk_tokens=64, last_chunk_tokens=64)
    assert steady == copied_and_transient


def test_a_recurrent_layer_makes_its_state_once() -> None:
    first = estimate_chunk(shape(RECURRENT), held_tokens=0, chunk_tokens=64)
    later = estimate_chunk(shape(RECURRENT), held_tokens=64, chunk_tokens=64)
    assert first - later == 2 * 5000
    assert later == 5000 + with_slack(64 * (ROW_BYTES + 2 * 10))


def test_fused_kernels_spare_the_scores() -> None:
    plain = estimate_chunk(shape(FULL), held_tokens=960, chunk_tokens=64)
    fused = estimate_chunk(shape(FULL), held_tokens=960, chunk_tokens=64, fused=True)
    scores = with_slack(64 * 1024 * 4 * 2)
    # On a CPU each half of a chunk may copy a layer.
    assert plain - fused - 2 * 100 * 1024 in {scores, scores + 1}


def test_a_first_row_takes_one_layers_copy_and_a_token() -> None:
    alone = estimate_join_bytes(shape(FULL), [], 700)
    assert alone == 100 * 768 + DECODE_BYTES + 700 * PAIR_BYTES


def test_rows_of_one_length_are_joined_one_layer_at_a_time() -> None:
    joined = estimate_join_bytes(shape(FULL), [700, 700], 700)
    assert joined == 3 * (100 * 768 + DECODE_BYTES + 700 * PAIR_BYTES)


def test_a_short_row_is_padded_to_the_longest_and_stays_so() -> None:
    equal = estimate_join_bytes(shape(FULL), [700], 700)
    assert estimate_join_bytes(shape(FULL), [700], 200) - equal == 4 * 100 * (768 - 256)
    assert estimate_join_bytes(shape(FULL), [200], 700) - equal == 4 * 100 * (768 - 256)


def test_windows_and_states_need_no_padding_beyond_themselves() -> None:
    bounded = shape(SLIDING, RECURRENT)
    equal = estimate_join_bytes(bounded, [4096], 4096)
    assert estimate_join_bytes(bounded, [4096], 1024) == equal
