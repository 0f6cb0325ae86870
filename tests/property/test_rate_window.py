"""The sliding window of a key's limits, against a plain list of what was taken."""

import math

from hypothesis import given
from hypothesis import strategies as st

from controller.gateway.keys.rate_window import (
    EMPTY,
    WINDOW_SECONDS,
    amend,
    current,
    standing,
    take,
    wait_seconds,
)

LIMIT = 20
STEPS = st.lists(
    st.tuples(st.floats(0, 40, allow_nan=False), st.integers(1, LIMIT + 3)), max_size=60
)


@given(STEPS)
def test_within_no_minute_is_more_taken_than_the_limit(steps: list[tuple[float, int]]) -> None:
    window, now, taken = EMPTY, 1000.0, []
    for pause, amount in steps:
        now += pause
        wait = wait_seconds(window, LIMIT, now, amount)
        assert (wait is None) == (amount > LIMIT)
        if wait == 0:
            window = take(window, now, amount)
            taken.append((now, amount))
        elif wait is not None:
            # The wait that a client is told is enough, and what is refused was truly over.
            later = now + wait
            assert wait_seconds(window, LIMIT, later, amount) == 0
            assert current(window, later).total + amount <= LIMIT
            assert current(window, later - 0.01).total + amount > LIMIT
            assert current(window, now).total + amount > LIMIT
        assert 0 <= standing(window, LIMIT, now).remaining <= LIMIT
        assert len(window.slots) <= WINDOW_SECONDS + 2
    for start, _ in taken:
        within = sum(amount for at, amount in taken if start <= at < start + WINDOW_SECONDS)
        assert within <= LIMIT


@given(st.floats(0, 1e6, allow_nan=False), st.integers(1, LIMIT))
def test_what_was_taken_comes_back_whole_and_at_the_time_told(at: float, amount: int) -> None:
    window = take(EMPTY, at, amount)
    told = standing(window, LIMIT, at)
    assert (told.remaining, told.reset_seconds >= WINDOW_SECONDS) == (LIMIT - amount, True)
    back = math.floor(at) + 1 + WINDOW_SECONDS
    assert math.isclose(at + told.reset_seconds, back)
    assert standing(window, LIMIT, back - 0.001).remaining == LIMIT - amount
    assert standing(window, LIMIT, back).remaining == LIMIT


@given(STEPS, st.lists(st.integers(-LIMIT, 5 * LIMIT), max_size=60))
def test_settled_amounts_are_what_the_window_holds(
    steps: list[tuple[float, int]], changes: list[int]
) -> None:
    window, now, model = EMPTY, 50.0, []
    for pause, amount in steps:
        now += pause
        window = take(window, now, amount)
        model.append([now, amount])
    for entry, drawn in zip(model, changes, strict=False):
        # A request never gives back more than it took.
        change = max(drawn, -entry[1])
        window = amend(window, entry[0], change)
        entry[1] += change
    live = [amount for at, amount in model if math.floor(now) - math.floor(at) <= WINDOW_SECONDS]
    assert current(window, now).total == sum(live)
    assert standing(window, LIMIT, now).remaining >= 0
