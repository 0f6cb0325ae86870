"""Where a running sequence is captured."""

import pytest

from node_agent.kvcache.capture_plan import (
    Capture,
    CaptureRules,
    plan_capture_now,
    plan_captures,
)
from node_agent.kvcache.layer_kinds import CacheLayout
from tests.support.kv_blocks import DENSE, HYBRID, RECURRENT

RULES = CaptureRules(block_tokens=4, snapshot_budget_bytes=10_000)
TIGHT = CaptureRules(block_tokens=4, snapshot_budget_bytes=250)


def ends(captures: tuple[Capture, ...]) -> list[tuple[int, bool]]:
    return [(capture.end_tokens, capture.snapshot) for capture in captures]


def test_every_block_end_and_the_last_token_but_one_are_captured() -> None:
    assert ends(plan_captures(DENSE, RULES, 11, 0)) == [(4, False), (8, False), (10, False)]
    assert ends(plan_captures(HYBRID, RULES, 11, 0)) == [(4, True), (8, True), (10, True)]


def test_what_was_restored_is_not_captured_again() -> None:
    assert ends(plan_captures(DENSE, RULES, 11, 8)) == [(10, False)]
    assert ends(plan_captures(DENSE, RULES, 11, 6)) == [(8, False), (10, False)]
    assert plan_captures(HYBRID, RULES, 11, 10) == ()
    assert plan_captures(HYBRID, RULES, 1, 0) == ()


def test_a_prompt_that_ends_at_a_block_end_is_captured_one_token_before() -> None:
    assert ends(plan_captures(HYBRID, RULES, 8, 0)) == [(4, True), (7, True)]
    assert ends(plan_captures(HYBRID, RULES, 9, 0)) == [(4, True), (8, True)]


def test_snapshots_stay_in_their_budget_and_the_last_ones_are_kept() -> None:
    captures = ends(plan_captures(HYBRID, TIGHT, 22, 0))
    assert captures == [(4, False), (8, False), (12, False), (16, False), (20, True), (21, True)]
    more = CaptureRules(block_tokens=4, snapshot_budget_bytes=400)
    assert [end for end, snapshot in ends(plan_captures(HYBRID, more, 50, 0)) if snapshot] == [
        12,
        28,
        48,
        49,
    ]


@pytest.mark.parametrize("layout", [HYBRID, RECURRENT])
def test_a_budget_below_one_snapshot_keeps_only_blocks_that_are_of_use(layout: CacheLayout) -> None:
    none = CaptureRules(block_tokens=4, snapshot_budget_bytes=99)
    expected = [(4, False), (8, False)] if layout.needs_chain else []
    assert ends(plan_captures(layout, none, 11, 0)) == expected
    assert plan_capture_now(layout, none, 10, finished=True) is None


def test_decoding_captures_at_block_ends_and_where_the_request_ends() -> None:
    assert plan_capture_now(HYBRID, RULES, 7, finished=False) is None
    assert plan_capture_now(HYBRID, RULES, 8, finished=False) == Capture(8, snapshot=True)
    assert plan_capture_now(HYBRID, RULES, 7, finished=True) == Capture(7, snapshot=True)
    assert plan_capture_now(DENSE, RULES, 7, finished=True) == Capture(7, snapshot=False)
    assert plan_capture_now(DENSE, RULES, 0, finished=True) is None
