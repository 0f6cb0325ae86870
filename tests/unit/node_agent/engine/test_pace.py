"""How many tokens a chunk may have so that rows being decoded keep their pace."""

import pytest

from node_agent.engine.scheduling.pace import (
    FEED_SECONDS,
    GROWTH,
    LAST_STRETCH,
    MIN_CHUNK_TOKENS,
    Pace,
    plan_chunk_limit,
)

LIMIT_TOKENS = 512


def plan(pace: Pace, held_tokens: int = 0, left_tokens: int = 10_000, **fields: float) -> int:
    known = {"limit_tokens": LIMIT_TOKENS, "seconds": pace.feed_seconds, **fields}
    return plan_chunk_limit(pace, held_tokens=held_tokens, left_tokens=left_tokens, **known)


def decoding(seconds: float) -> Pace:
    """Return the pace after many decode steps of the same length."""
    pace = Pace()
    for _ in range(200):
        pace = pace.decoded(seconds)
    return pace


def settle(token_seconds: float, fixed_seconds: float = 0.0, chunks: int = 40) -> int:
    """Feed chunks as planned on an engine of that speed; return the width it comes to."""
    pace = Pace()
    for _ in range(chunks):
        width = plan(pace)
        pace = pace.fed(0, width, fixed_seconds + width * token_seconds)
    return plan(pace)


def test_the_first_chunk_of_an_unknown_engine_is_the_narrowest():
    assert plan(Pace()) == MIN_CHUNK_TOKENS
    assert plan(Pace(), limit_tokens=3) == 3


def test_a_fast_engine_comes_to_the_whole_chunk_by_doubling():
    pace, widths = Pace(), []
    for _ in range(8):
        widths.append(plan(pace))
        pace = pace.fed(0, widths[-1], widths[-1] * 1e-4)
    assert widths == [8, 16, 32, 64, 128, 256, 512, 512]


@pytest.mark.parametrize("token_seconds", [0.01, 0.002, 0.001])
@pytest.mark.parametrize("fixed_seconds", [0.0, 0.1])
def test_the_width_settles_where_a_chunk_takes_the_time_there_is(token_seconds, fixed_seconds):
    width = settle(token_seconds, fixed_seconds)
    seconds = fixed_seconds + width * token_seconds
    assert FEED_SECONDS / 2 < seconds < FEED_SECONDS * 1.1 or width == MIN_CHUNK_TOKENS


def test_a_slow_engine_feeds_no_narrower_than_the_narrowest_chunk():
    assert settle(1.0) == MIN_CHUNK_TOKENS


def test_one_slow_chunk_narrows_the_next_and_is_forgotten_step_by_step():
    pace = Pace().fed(0, 200, 0.2)
    usual = pace.tokens_in(0.1, 150)
    pace = pace.fed(0, 200, 0.8)
    widths = [pace.tokens_in(0.1, 150)]
    assert usual // 4 < widths[0] < usual // 2
    for _ in range(8):
        pace = pace.fed(0, 200, 0.2)
        widths.append(pace.tokens_in(0.1, 150))
    assert widths == sorted(widths)
    assert widths[-1] >= usual - 2


def test_narrow_and_instant_chunks_teach_nothing():
    assert Pace().fed(0, MIN_CHUNK_TOKENS - 1, 9.0) == Pace()
    assert Pace().fed(0, 64, 0.0) == Pace()


def test_a_short_prompt_does_not_speak_for_a_long_context():
    pace = Pace().fed(0, 64, 0.064)
    assert pace.tokens_in(0.05, 500) == 50
    # Not yet measured there: at most as dear as the context is longer.
    assert pace.tokens_in(0.05, 5000) == int(50 * 256 / 5128)
    pace = pace.fed(5000, 64, 0.064 * 2)
    assert pace.tokens_in(0.05, 5100) == 25
    assert pace.tokens_in(0.05, 100) == 50


def test_a_chunk_just_past_an_octave_is_hardly_narrower_than_the_one_before_it():
    pace = Pace().fed(990, 60, 0.06)
    assert pace.tokens_in(0.05, 1050) == int(50 * 1020 / 1170)


def test_a_long_context_bounds_a_shorter_one_that_was_not_measured():
    pace = Pace().fed(30_000, 64, 0.64)
    assert pace.tokens_in(0.2, 100) == 20


def test_the_time_for_feeding_covers_the_decode_step_under_way_and_grows_with_slow_ones():
    assert Pace().feed_seconds == FEED_SECONDS
    assert decoding(0.1).feed_seconds == pytest.approx(0.1 + FEED_SECONDS)
    assert decoding(0.6).feed_seconds == pytest.approx(2 * 0.6)


def test_one_slow_decode_step_gives_feeding_hardly_more_time():
    assert decoding(0.1).decoded(1.0).feed_seconds < 0.2 + FEED_SECONDS


def test_without_time_nothing_fits_but_the_first_chunk_is_never_empty():
    pace = Pace().fed(0, 64, 0.064)
    assert pace.tokens_in(-1.0, 0) == 0
    assert plan(pace, seconds=-1.0) == MIN_CHUNK_TOKENS


def test_parts_up_to_a_step_boundary_are_of_equal_width():
    pace = Pace().fed(0, 100, 0.996 * FEED_SECONDS)
    widths, held = [], 0
    while held < 256:
        width = min(plan(pace, held), 256 - held)
        widths.append(width)
        held += width
    assert widths == [86, 85, 85]
    # A prompt that ends before the boundary is fed in equal parts, too.
    assert plan(pace, held_tokens=0, left_tokens=190) == 95


def test_a_prompt_that_nearly_fits_is_fed_to_its_end_across_a_step_boundary_too():
    # Its own tokens make the context 1.17 times as long, so it is no 2 times as wide as fits.
    pace, most = Pace().fed(1000, 100, FEED_SECONDS), int(100 * LAST_STRETCH / 1.17)
    assert plan(pace, held_tokens=1000, left_tokens=most) == most
    # Up to the boundary, which is nearer than the time allows.
    assert plan(pace, held_tokens=1000, left_tokens=most + 1) == 100
    assert plan(pace, limit_tokens=most - 15, held_tokens=1000, left_tokens=most) < most - 15


def test_what_a_pass_costs_besides_its_tokens_is_not_multiplied():
    pace = decoding(0.09)
    for _ in range(20):
        pace = pace.fed(1000, 33, 0.09 + 33 * 0.003)
    # By the token alone, 5.7 ms, it would be about that forever.
    assert pace.tokens_in(pace.feed_seconds, 1000) == GROWTH * 33
    pace = pace.fed(1000, 66, 0.09 + 66 * 0.003)
    assert pace.tokens_in(pace.feed_seconds, 1000) == pytest.approx(FEED_SECONDS / 0.003, abs=1)
    assert pace.whole_in(2.88, 1000) == pytest.approx(66 * 10, abs=1)


def test_a_part_may_be_a_little_wider_than_fits_rather_than_much_narrower():
    pace = Pace().fed(0, 120, 0.996 * FEED_SECONDS)
    assert plan(pace) == 128
    assert plan(pace, left_tokens=130) == 130


def test_the_rest_of_a_prompt_does_not_narrow_the_chunks_of_the_next():
    pace = Pace().fed(0, 100, 0.5)
    assert pace.fed(500, 16, 0.2, rest=True) == pace
    # A narrow chunk that was planned so tells of an engine that became slow.
    assert pace.fed(0, 16, 0.2).tokens_in(0.5, 0) < 100
