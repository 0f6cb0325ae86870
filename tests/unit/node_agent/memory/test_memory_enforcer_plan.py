"""What the enforcer does at each level, in which order, and when it holds still."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import pytest

from manifests.kinds.node import PressureLevel
from node_agent.memory.enforcer_plan import (
    AbortRow,
    Action,
    Enforcement,
    EnforcerRules,
    EnforcerState,
    EngineNow,
    Evict,
    ReclaimCache,
    RowNow,
    ShrinkHotCache,
    Sighting,
    plan_enforcement,
)
from node_agent.memory.limits import Watermarks

OK, SOFT, HARD, EMERGENCY = PressureLevel
MARKS = Watermarks(soft_bytes=800, hard_bytes=950, emergency_bytes=1000)
RULES = EnforcerRules()


def engine(name: str = "a", held: int = 400, **more: object) -> EngineNow:
    fields: dict[str, object] = {"idle_seconds": 60.0, "ready_seconds": 600.0, **more}
    return EngineNow(name, held, **fields)  # type: ignore[arg-type]


def busy(name: str, *rows: RowNow, held: int = 400, pinned: bool = False) -> EngineNow:
    return engine(name, held, idle_seconds=None, leases=len(rows), rows=rows, pinned=pinned)


def prefill(request_id: str, began_at: float) -> RowNow:
    return RowNow(request_id, began_at, prefilling=True)


def sight(newest: int, *engines: EngineNow, used: int | None = None, hot: int = 0) -> Sighting:
    return Sighting(newest if used is None else used, newest, MARKS, engines, hot)


def play(
    readings: list[Sighting], state: EnforcerState | None = None, start: float = 100.0
) -> Iterator[tuple[float, Enforcement]]:
    """Feed sightings as the monitor does, each after the time the plan before it asked for."""
    now, current = start, state or EnforcerState()
    for seen in readings:
        plan = plan_enforcement(current, seen, now, RULES)
        yield now - start, plan
        current, now = plan.state, now + plan.poll_seconds


def actions_of(readings: list[Sighting], kind: type[Action]) -> list[tuple[float, Action]]:
    return [(at, a) for at, plan in play(readings) for a in plan.actions if isinstance(a, kind)]


def last(readings: list[Sighting]) -> Enforcement:
    return list(play(readings))[-1][1]


@pytest.mark.parametrize(
    ("used", "level"),
    [(0, OK), (799, OK), (800, SOFT), (949, SOFT), (950, HARD), (999, HARD), (1000, EMERGENCY)],
)
def test_a_level_is_entered_at_the_first_reading_over_its_mark(
    used: int, level: PressureLevel
) -> None:
    plan = plan_enforcement(EnforcerState(), sight(used), 0.0)
    assert (plan.state.level, plan.paused) == (level, level is not OK)


def test_a_level_is_left_after_readings_under_it_by_a_margin() -> None:
    levels = [plan.state.level for _, plan in play([sight(800), *[sight(700)] * 3])]
    assert levels == [SOFT, SOFT, SOFT, OK]


def test_a_use_just_under_the_mark_does_not_latch_the_level_forever() -> None:
    plans = list(play([sight(800), *[sight(795, busy("a", RowNow("r", 1)))] * 30]))
    ended = next(at for at, plan in plans if plan.state.level is OK)
    assert RULES.linger_seconds <= ended <= RULES.linger_seconds + 2


def test_an_emergency_that_is_over_leads_down_to_the_level_of_the_use() -> None:
    assert last([sight(1000), *[sight(810)] * 3]).state.level is SOFT
    assert last([sight(1000), *[sight(10)] * 3]).state.level is OK


def test_jitter_of_five_percent_around_any_use_does_not_flap() -> None:
    for mean in range(700, 1100, 7):
        seen = [sight(int(mean * (1.05 if i % 2 else 0.95))) for i in range(40)]
        levels = [plan.state.level for _, plan in play(seen)]
        changes = sum(a is not b for a, b in pairwise(levels))
        assert changes <= 2, (mean, levels)


def test_soft_evicts_the_least_recently_used_idle_engine_and_no_more_than_needed() -> None:
    engines = (engine("old", 50, idle_seconds=900.0), engine("new", 50, idle_seconds=20.0))
    found = actions_of([sight(820, *engines)] * 8, Evict)
    assert found
    assert {action.engine for _, action in found if isinstance(action, Evict)} == {"old"}


def test_an_engine_on_its_way_out_counts_as_gone() -> None:
    engines = (engine("old", 50, leaving=True), engine("new", 50, idle_seconds=20.0))
    assert actions_of([sight(820, *engines)] * 8, Evict) == []


@pytest.mark.parametrize(
    "kept",
    [
        engine(pinned=True),
        engine(leases=1),
        engine(idle_seconds=None),
        engine(rows=(RowNow("r", 1.0),)),
        engine(ready=False),
        engine(ready_seconds=3.0),
    ],
)
def test_soft_never_evicts_what_is_pinned_leased_busy_loading_or_just_loaded(
    kept: EngineNow,
) -> None:
    assert actions_of([sight(820, kept)] * 8, Evict) == []


def test_hard_evicts_even_what_was_just_loaded_but_never_what_is_pinned() -> None:
    engines = (engine("fresh", ready_seconds=1.0), engine("pinned", pinned=True))
    found = actions_of([sight(960, *engines)] * 8, Evict)
    assert {action.engine for _, action in found if isinstance(action, Evict)} == {"fresh"}


def test_hard_reclaims_all_engines_at_once_and_then_every_two_seconds() -> None:
    found = actions_of(
        [sight(960, busy("a"), engine("b", leaving=True), busy("c"))] * 12, ReclaimCache
    )
    assert [action for at, action in found if at == 0] == [ReclaimCache("a"), ReclaimCache("c")]
    assert len({at for at, _ in found}) == 2


def test_hard_aborts_the_newest_prefill_first_and_one_at_a_time() -> None:
    rows = (RowNow("decoding", 9), prefill("first", 1), prefill("second", 5))
    seen = sight(960, busy("a", *rows), busy("b", prefill("third", 7)))
    found = actions_of([seen] * 5, AbortRow)
    assert [(at, a.request_id) for at, a in found if isinstance(a, AbortRow)] == [(1.0, "third")]
    again = actions_of([seen] * 10, AbortRow)
    assert len({at for at, _ in again}) == len(again) == 2
    assert again[1][0] - again[0][0] >= RULES.confirm_seconds


def test_a_prompt_that_holds_memory_falls_before_a_newer_one_that_only_waits() -> None:
    rows = (RowNow("fed", 1, prefilling=True, fed=True), prefill("waiting", 9))
    found = actions_of([sight(960, busy("a", *rows))] * 5, AbortRow)
    assert [a.request_id for _, a in found if isinstance(a, AbortRow)] == ["fed"]


def test_without_a_prefill_the_least_recently_used_busy_engine_gives_one_request_later() -> None:
    older, newer = busy("old", RowNow("x", 1), RowNow("y", 3)), busy("new", RowNow("z", 8))
    found = actions_of([sight(960, older, newer)] * 30, AbortRow)
    assert [(at, a.request_id) for at, a in found if isinstance(a, AbortRow)] == [(5.0, "y")]


def test_hard_leaves_the_requests_of_pinned_models_alone() -> None:
    seen = sight(960, busy("a", prefill("p", 1), RowNow("d", 2), pinned=True))
    assert actions_of([seen] * 60, AbortRow) == []


def test_an_emergency_aborts_all_prefills_at_once_pinned_models_included() -> None:
    pinned, other = (
        busy("a", prefill("p", 1), pinned=True),
        busy("b", prefill("q", 2), RowNow("d", 3)),
    )
    found = actions_of([sight(1000, pinned, other)] * 6, AbortRow)
    assert [(at, a.request_id) for at, a in found if isinstance(a, AbortRow)] == [
        (1.0, "q"),
        (1.0, "p"),
    ]


def test_an_emergency_without_prefills_takes_one_busy_engine_unpinned_ones_first() -> None:
    pinned = busy("a", RowNow("p", 1), pinned=True)
    other = busy("b", RowNow("q", 2), RowNow("r", 3))
    found = actions_of([sight(1000, pinned, other)] * 6, AbortRow)
    assert {a.request_id for _, a in found if isinstance(a, AbortRow)} == {"q", "r"}
    alone = actions_of([sight(1000, pinned)] * 6, AbortRow)
    assert {a.request_id for _, a in alone if isinstance(a, AbortRow)} == {"p"}


def test_models_are_never_unloaded_under_their_requests() -> None:
    seen = sight(1200, busy("a", RowNow("p", 1)), engine("b", pinned=True))
    assert actions_of([seen] * 60, Evict) == []


def test_a_reading_that_settles_after_400_ms_kills_nothing() -> None:
    """B45: the old value stands for a moment after memory was freed."""
    row = busy("a", prefill("r", 1))
    stale = [sight(1010, row)] * 2
    settled = [sight(500, row, used=1010), sight(500, row, used=1010), sight(500, row)]
    plans = list(play([*stale, *settled, *[sight(500, row)] * 20]))
    assert [a for _, plan in plans for a in plan.actions if isinstance(a, AbortRow | Evict)] == []
    assert plans[-1][1].state.level is OK


def test_the_high_water_mark_alone_kills_nothing() -> None:
    """B45: it holds the level up while the newest readings are far below."""
    row = busy("a", prefill("r", 1))
    plans = list(play([sight(500, row, used=1010)] * 40))
    assert plans[-1][1].state.level is EMERGENCY
    assert [a for _, plan in plans for a in plan.actions if isinstance(a, AbortRow | Evict)] == []


def test_two_readings_far_apart_are_not_enough_to_kill() -> None:
    row = sight(1010, busy("a", prefill("r", 1)))
    first = plan_enforcement(EnforcerState(), row, 0.0)
    second = plan_enforcement(first.state, row, 30.0)
    third = plan_enforcement(second.state, row, 30.25)
    kinds = [[type(a) for a in plan.actions] for plan in (first, second, third)]
    assert AbortRow not in kinds[0] + kinds[1]
    assert AbortRow in kinds[2]


def test_a_reading_that_never_falls_leads_to_an_abort_within_five_seconds() -> None:
    """B45: the re-sampling is bounded."""
    found = actions_of([sight(1010, busy("a", prefill("r", 1)))] * 10, AbortRow)
    assert found
    assert found[0][0] <= 5.0


def test_a_reading_that_jumps_up_and_down_kills_nothing() -> None:
    """B45: five percent each sample, around the limit."""
    row = busy("a", prefill("r", 1))
    seen = [sight(int(1000 * (1.05 if i % 2 else 0.95)) - 1, row) for i in range(80)]
    below = [replace(item, newest_bytes=min(item.newest_bytes, 1049)) for item in seen]
    assert actions_of(below, AbortRow) == []


def test_the_words_of_an_abort_satisfy_the_comparison_they_state() -> None:
    marks = Watermarks(soft_bytes=8 << 30, hard_bytes=9 << 30, emergency_bytes=10 << 30)
    seen = Sighting(9 << 30, 9 << 30, marks, (busy("a", prefill("r", 1)),))
    found = actions_of([seen] * 6, AbortRow)
    assert isinstance(found[0][1], AbortRow)
    assert "held 9.00 GiB, at or above the limit of 9.00 GiB" in found[0][1].message


def test_the_hot_cache_shrinks_by_the_excess_at_soft_and_wholly_at_hard() -> None:
    assert (
        ShrinkHotCache(480) in plan_enforcement(EnforcerState(), sight(820, hot=500), 0.0).actions
    )
    assert ShrinkHotCache(0) in plan_enforcement(EnforcerState(), sight(960, hot=500), 0.0).actions
    assert plan_enforcement(EnforcerState(), sight(700, hot=500), 0.0).actions == ()


def test_polls_are_slow_when_idle_quicker_under_load_and_quickest_while_in_doubt() -> None:
    assert last([sight(100, engine())]).poll_seconds == RULES.idle_poll_seconds
    assert last([sight(100, busy("a", RowNow("r", 1)))]).poll_seconds == RULES.busy_poll_seconds
    assert last([sight(100, engine(ready=False))]).poll_seconds == RULES.busy_poll_seconds
    assert last([sight(820, engine())]).poll_seconds == RULES.resample_seconds
    assert last([sight(820, engine(pinned=True))] * 8).poll_seconds == RULES.busy_poll_seconds
    assert last([sight(960, engine())]).poll_seconds == RULES.resample_seconds


def test_other_apps_growth_evicts_idle_engines_and_touches_no_request() -> None:
    """The soft mark follows the dynamic ceiling; hard and emergency do not."""
    marks = Watermarks(soft_bytes=100, hard_bytes=950, emergency_bytes=1000)
    seen = Sighting(500, 500, marks, (busy("a", prefill("r", 1)), engine("b")))
    kinds = {type(a) for _, plan in play([seen] * 60) for a in plan.actions}
    assert kinds == {Evict}
