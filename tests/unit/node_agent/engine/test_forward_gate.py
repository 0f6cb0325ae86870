"""Every decision of the gate, and the readings it is given."""

import pytest

from node_agent.engine.mailbox import MemoryGauges
from node_agent.engine.scheduling.forward_gate import (
    MAX_ASKS,
    MAX_REQUEUES,
    Ask,
    Attempts,
    GateReading,
    HighWater,
    NextChunk,
    Reclaim,
    Refuse,
    Requeue,
    Run,
    Shrink,
    Wait,
    decide,
    fit_chunk,
)

ALL_TRIED = {"reclaimed": True, "asks": MAX_ASKS}


def chunk(wanted_tokens: int = 64, rest_tokens: int = 500) -> NextChunk:
    """A token takes ten bytes; the rest of the prompt another one for each of its tokens."""
    return NextChunk(
        wanted_tokens, lambda tokens: 10 * tokens, lambda tokens: 10 * tokens + rest_tokens
    )


def reading(room_bytes: int, cache_bytes: int = 0, **fields: int) -> GateReading:
    """100 held, a margin of 50, and so much room beside."""
    return GateReading(
        high_water_bytes=100,
        cache_bytes=cache_bytes,
        budget_bytes=150 + room_bytes,
        margin_bytes=50,
        **{"min_chunk_tokens": 16, **fields},
    )


@pytest.mark.parametrize(
    ("state", "attempts", "decision"),
    [
        # It fits, to the byte.
        (reading(640), Attempts(), Run()),
        (reading(10**9), Attempts(reclaimed=True, asks=9, requeues=9), Run()),
        # It does not: the longest chunk that does, down to the minimum.
        (reading(639), Attempts(), Shrink(63)),
        (reading(160), Attempts(), Shrink(16)),
        (reading(639), Attempts(waiting=True, asks=3), Shrink(63)),
        # Freed buffers come first when they alone make the difference, and last before asking.
        (reading(600, cache_bytes=40), Attempts(), Reclaim()),
        (reading(600, cache_bytes=39), Attempts(), Shrink(60)),
        (reading(600, cache_bytes=40), Attempts(reclaimed=True), Shrink(60)),
        (reading(100, cache_bytes=1), Attempts(), Reclaim()),
        # Ask for the rest at full speed, and once denied for the rest at any speed.
        (reading(159), Attempts(), Ask(64 * 10 + 500 - 159)),
        (reading(159), Attempts(asks=1), Ask(16 * 10 + 500 - 159)),
        (reading(159, cache_bytes=9), Attempts(reclaimed=True, asks=2), Ask(660 - 159)),
        (reading(-80), Attempts(), Ask(1140 + 80)),
        (reading(159), Attempts(waiting=True, asks=1), Wait()),
        # Asking is over: wait for the other rows of this engine, if there are any.
        (reading(159), Attempts(**ALL_TRIED), Requeue()),
        (reading(159), Attempts(final=True), Requeue()),
        (reading(159), Attempts(**ALL_TRIED, requeues=MAX_REQUEUES - 1), Requeue()),
    ],
)
def test_decisions(state, attempts, decision):
    assert decide(state, chunk(), attempts) == decision


@pytest.mark.parametrize(
    "attempts",
    [
        Attempts(**ALL_TRIED, requeues=MAX_REQUEUES),
        Attempts(**ALL_TRIED, alone=True),
        Attempts(final=True, alone=True),
    ],
)
def test_a_refusal_names_what_is_needed_and_what_the_budget_is(attempts):
    refusal = decide(reading(159), chunk(), attempts)
    assert isinstance(refusal, Refuse)
    assert "needs 310 B" in refusal.message
    assert "may hold 309 B" in refusal.message


def test_numbers_that_round_alike_are_told_in_full():
    """B45: the numbers in the message satisfy the comparison."""
    state = GateReading(high_water_bytes=1 << 30, budget_bytes=(1 << 30) + 159, min_chunk_tokens=16)
    refusal = decide(state, chunk(), Attempts(**ALL_TRIED, alone=True))
    assert isinstance(refusal, Refuse)
    assert f"needs {(1 << 30) + 160} bytes" in refusal.message
    assert f"may hold {(1 << 30) + 159} bytes" in refusal.message


def test_no_budget_is_no_limit():
    state = GateReading(high_water_bytes=1 << 60, budget_bytes=0, margin_bytes=1 << 60)
    assert decide(state, chunk(), Attempts()) == Run()


def test_the_last_small_chunk_passes_the_gate_too_and_is_not_cut_below_the_minimum():
    assert decide(reading(50), chunk(5), Attempts()) == Run()
    assert decide(reading(49), chunk(5), Attempts()) == Ask(50 + 500 - 49)
    assert fit_chunk(chunk(5), 49, 16) == 0
    assert fit_chunk(chunk(17), 169, 16) == 16


def test_a_trough_after_freed_memory_is_not_believed_for_three_steps():
    """B45: the decode step that follows takes the same buffers again."""
    water = HighWater()
    water.note(MemoryGauges(active_bytes=100, cache_bytes=50))
    trough = MemoryGauges(active_bytes=90)
    for _ in range(2):
        water.note(trough)
        assert water.over(trough) == 150
    water.note(trough)
    assert water.over(trough) == 90


def test_buffers_that_we_gave_back_ourselves_are_gone_but_what_was_active_counts():
    water = HighWater()
    water.note(MemoryGauges(active_bytes=100, cache_bytes=50))
    water.forget_cache()
    assert water.over(MemoryGauges(active_bytes=70)) == 100
    assert water.over(MemoryGauges(active_bytes=110, cache_bytes=5)) == 115
