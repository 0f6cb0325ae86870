"""Whatever chunks took so far: widths stay in their bounds, prompts end, and gaps are bounded."""

from hypothesis import given, settings
from hypothesis import strategies as st

from node_agent.engine.batching.chunking import STEP_TOKENS, cut_chunk
from node_agent.engine.messages import Failed, Finished, Generate
from node_agent.engine.scheduling.pace import (
    FEED_SECONDS,
    LAST_STRETCH,
    MIN_CHUNK_TOKENS,
    Pace,
    plan_chunk_limit,
)
from node_agent.engine.scheduling.scheduler import Scheduler
from tests.support.counting_runner import CountingMemory, CountingRunner, row

tokens = st.integers(0, 200_000)
seconds = st.floats(0, 1e4, allow_nan=False)


@st.composite
def paces(draw: st.DrawFn) -> Pace:
    pace = Pace()
    for held, chunk, took in draw(st.lists(st.tuples(tokens, st.integers(1, 4096), seconds))):
        pace = pace.fed(held, chunk, took)
    return pace.decoded(draw(st.floats(0, 10)))


@given(paces(), st.integers(1, 4096), tokens, st.integers(1, 200_000), st.floats(-10, 10))
def test_a_chunk_is_never_above_its_limit_nor_narrower_than_progress_needs(
    pace, limit_tokens, held_tokens, left_tokens, time_left
):
    limit = plan_chunk_limit(
        pace,
        limit_tokens=limit_tokens,
        held_tokens=held_tokens,
        left_tokens=left_tokens,
        seconds=time_left,
    )
    assert min(MIN_CHUNK_TOKENS, limit_tokens) <= limit <= limit_tokens
    assert pace.tokens_in(time_left, held_tokens) >= 0
    width = cut_chunk(held_tokens, held_tokens + left_tokens, limit, ())
    assert 1 <= width <= min(limit, left_tokens)


@given(paces(), tokens, st.floats(0, 10), st.floats(0, 10))
def test_more_time_never_means_fewer_tokens(pace, held_tokens, one, other):
    less, more = sorted((one, other))
    assert pace.tokens_in(less, held_tokens) <= pace.tokens_in(more, held_tokens)


@given(paces(), st.integers(MIN_CHUNK_TOKENS, 4096), st.integers(0, 100_000), seconds)
def test_a_slower_chunk_never_widens_the_next(pace, chunk_tokens, held_tokens, took):
    again = pace.fed(held_tokens, chunk_tokens, took)
    slower = pace.fed(held_tokens, chunk_tokens, took * 2)
    assert slower.tokens_in(1.0, held_tokens) <= again.tokens_in(1.0, held_tokens)


@settings(deadline=None)
@given(
    st.floats(1e-4, 0.5),
    st.floats(0, 1e-5),
    st.integers(STEP_TOKENS, 6000),
)
def test_once_the_speed_is_known_no_chunk_takes_much_longer_than_it_may(base, slope, prompt):
    pace, held = Pace(), 0
    while held < prompt:
        limit = plan_chunk_limit(
            pace,
            limit_tokens=512,
            held_tokens=held,
            left_tokens=prompt - held,
            seconds=FEED_SECONDS,
        )
        width = cut_chunk(held, prompt, limit, ())
        took = width * (base + slope * (held + width))
        # By what was measured, a part is at most stretched.
        fitting = max(MIN_CHUNK_TOKENS, pace.tokens_in(FEED_SECONDS, held))
        assert width <= int(fitting * LAST_STRETCH)
        # What a token costs grows within an octave and with the chunk, and was measured before
        # that; in 60,000 random cases the slowest chunk took 3.2 times as long as it may.
        narrowest = MIN_CHUNK_TOKENS * (base + slope * (held + width))
        assert took <= max(4 * FEED_SECONDS, narrowest * 1.01)
        pace, held = pace.fed(held, width, took), held + width


requests = st.lists(
    st.tuples(st.integers(1, 300), st.integers(1, 12), st.integers(-2, 2), st.integers(0, 8)),
    min_size=1,
    max_size=8,
)


@settings(deadline=None)
@given(requests, st.floats(1e-4, 0.1), st.integers(1, 4))
def test_every_request_ends_once_in_time_or_with_its_tokens(wanted, token_seconds, max_rows):
    now = 0.0
    runner = CountingRunner(max_rows=max_rows, chunk_tokens=64, token_seconds=token_seconds)
    scheduler = Scheduler(runner, 1000, CountingMemory(runner), clock=lambda: now)
    commands: dict[str, Generate] = {}
    for number, (prompt, made, priority, deadline) in enumerate(wanted):
        command = row(f"{number}", prompt, made, priority=priority, deadline_seconds=deadline)
        commands[command.request_id] = command
        scheduler.submit(command)
    ended: dict[str, float] = {}
    for _ in range(3000):
        now += 0.5
        for event in scheduler.step():
            if isinstance(event, Finished | Failed):
                assert event.request_id not in ended
                ended[event.request_id] = now
            if isinstance(event, Failed):
                assert commands[event.request_id].deadline_seconds <= now
        if not scheduler.busy:
            break
    assert set(ended) == set(commands)
    assert runner.rows == {}
    for name, at in ended.items():
        assert not commands[name].deadline_seconds or at <= commands[name].deadline_seconds + 0.5
