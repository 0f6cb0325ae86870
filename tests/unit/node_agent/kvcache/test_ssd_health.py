"""The disk tier's state after what befell it; pure."""

import pytest

from node_agent.kvcache.ssd_health import (
    TierFault,
    TierReason,
    TierState,
    has_room_again,
    state_after_fault,
    state_hanging,
    state_proven,
    state_ready,
)

FULL = TierFault(TierReason.FULL, "no room")
LONG, SHORT, MIB = 10 << 20, 1 << 20, 1 << 20


def full(free_bytes: int = 2 * MIB) -> TierState:
    return state_after_fault(state_ready(private=True), FULL, 100.0, (LONG, free_bytes))


def test_a_disk_with_room_for_short_blocks_only_stays_full() -> None:
    state, told = full(), []
    for _ in range(5):
        state = state_proven(state, SHORT)
        told.append(state.reason)
        state = state_after_fault(state, FULL, 200.0, (LONG, MIB))
        told.append(state.reason)
    assert set(told) == {TierReason.FULL}
    assert state.failures == 6  # and long ones are tried ever more rarely


def test_a_short_block_that_is_refused_too_does_not_lower_what_must_fit() -> None:
    state = state_after_fault(full(), FULL, 200.0, (SHORT, 0))
    assert state_proven(state, SHORT).reason is TierReason.FULL
    assert state_proven(state, LONG) == state_ready(private=True)


def test_a_fault_of_another_kind_forgets_what_did_not_fit() -> None:
    broken = state_after_fault(full(), TierFault(TierReason.IO_ERROR, "broken"), 200.0)
    assert state_proven(broken, SHORT).reason is TierReason.READY


@pytest.mark.parametrize(
    ("free_then", "free_now", "again"),
    [
        (2 * MIB, 2 * MIB, False),
        (2 * MIB, 25 * MIB, False),  # not the room to keep and what was refused
        (2 * MIB, 26 * MIB, True),
        (1000 * MIB, 1001 * MIB, False),  # a quota: free space says nothing
    ],
)
def test_free_space_counts_when_what_was_refused_fits_into_it(free_then, free_now, again) -> None:
    assert has_room_again(full(free_then), free_now, floor_bytes=16 * MIB) is again


def test_a_disk_that_does_not_answer_is_off_and_one_that_failed_keeps_its_reason() -> None:
    hanging = state_hanging(state_ready(private=True))
    assert (hanging.reason, hanging.readable, hanging.writable) == (
        TierReason.HANGING,
        False,
        False,
    )
    assert state_hanging(TierState()).reason is TierReason.HANGING  # it cannot even be opened
    broken = state_after_fault(TierState(), TierFault(TierReason.ABSENT, "gone"), 1.0)
    assert state_hanging(broken) == broken
