"""Any sequence of readings: levels do not flap, victims are few and one at a time, all recovers."""

from collections import Counter
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from manifests.kinds.node import PressureLevel
from node_agent.memory.enforcer_plan import (
    AbortRow,
    Enforcement,
    EnforcerRules,
    EnforcerState,
    EngineNow,
    Evict,
    RowNow,
    Sighting,
    plan_enforcement,
)
from node_agent.memory.limits import Watermarks, classify_pressure
from node_agent.memory.room_plan import plan_room

MARKS = Watermarks(soft_bytes=800, hard_bytes=950, emergency_bytes=1000)
RULES = EnforcerRules()

rows = st.builds(
    RowNow,
    request_id=st.uuids().map(str),
    began_at=st.floats(0, 100),
    prefilling=st.booleans(),
)
engines = st.builds(
    EngineNow,
    name=st.sampled_from("abcdef"),
    held_bytes=st.integers(0, 900),
    pinned=st.booleans(),
    ready=st.booleans(),
    leaving=st.booleans(),
    leases=st.integers(0, 2),
    idle_seconds=st.none() | st.floats(0, 1000),
    ready_seconds=st.floats(0, 100),
    rows=st.lists(rows, max_size=3).map(tuple),
)
fleets = st.lists(engines, max_size=5, unique_by=lambda item: item.name).map(tuple)
sightings = st.builds(
    Sighting,
    used_bytes=st.integers(0, 1300),
    newest_bytes=st.integers(0, 1300),
    marks=st.just(MARKS),
    engines=fleets,
    hot_cache_bytes=st.integers(0, 300),
)


def play(seen: list[Sighting], now: float = 0.0) -> list[tuple[float, Sighting, Enforcement]]:
    state, told = EnforcerState(), []
    for item in seen:
        plan = plan_enforcement(state, item, now)
        told.append((now, item, plan))
        state, now = plan.state, now + plan.poll_seconds
    return told


@given(st.lists(sightings, max_size=40))
def test_victims_are_never_pinned_below_emergency_nor_all_at_once(seen: list[Sighting]) -> None:
    for _, item, plan in play(seen):
        by_name = {engine.name: engine for engine in item.engines}
        aborts = [a for a in plan.actions if isinstance(a, AbortRow)]
        assert len({a.request_id for a in aborts}) == len(aborts)
        if item.newest_bytes < MARKS.hard_bytes:
            assert aborts == []
        elif item.newest_bytes < MARKS.emergency_bytes:
            assert len(aborts) <= 1
            assert not any(by_name[a.engine].pinned for a in aborts)
        for action in plan.actions:
            if isinstance(action, Evict):
                assert by_name[action.engine].can_leave
                assert item.newest_bytes >= MARKS.soft_bytes


@given(st.lists(sightings, max_size=60))
def test_aborts_keep_their_distance(seen: list[Sighting]) -> None:
    at = [now for now, _, plan in play(seen) if any(isinstance(a, AbortRow) for a in plan.actions)]
    assert all(b - a >= RULES.confirm_seconds for a, b in pairwise(at))


@given(st.lists(sightings, max_size=60), st.integers(0, 760), fleets)
def test_whatever_happened_a_calm_node_is_ok_again_with_nothing_latched(
    seen: list[Sighting], use: int, fleet: tuple[EngineNow, ...]
) -> None:
    calm = [Sighting(use, use, MARKS, fleet, 0)] * 100
    state, now = EnforcerState(), 0.0
    for item in seen:
        plan = plan_enforcement(state, item, now)
        state, now = plan.state, now + plan.poll_seconds
    start = now
    for item in calm:
        plan = plan_enforcement(state, item, now)
        if plan.state.level is PressureLevel.OK:
            break
        state, now = plan.state, now + plan.poll_seconds
    assert plan.state.level is PressureLevel.OK
    assert not plan.paused
    assert now - start <= RULES.linger_seconds + RULES.idle_poll_seconds
    after = plan_enforcement(plan.state, calm[0], now)
    assert after.actions == ()


@given(st.integers(500, 1300), st.lists(st.floats(-0.05, 0.05), min_size=30, max_size=60))
def test_five_percent_of_jitter_changes_the_level_only_upwards(
    mean: int, jitter: list[float]
) -> None:
    row = EngineNow("a", 10, pinned=True, rows=(RowNow("r", 1.0),))
    seen = []
    for part in jitter:
        use = int(mean * (1 + part))
        seen.append(Sighting(use, use, MARKS, (row,), 0))
    told = play(seen)
    order = [list(PressureLevel).index(plan.state.level) for _, _, plan in told]
    falls = sum(b < a for a, b in pairwise(order))
    # Only a use that stays under a mark for the whole linger time lets go of its level.
    assert falls <= (told[-1][0] - told[0][0]) / RULES.linger_seconds


@given(st.lists(sightings, min_size=1, max_size=40))
def test_a_level_is_never_below_that_of_the_reading(seen: list[Sighting]) -> None:
    order = list(PressureLevel)
    for _, item, plan in play(seen):
        raw = classify_pressure(item.used_bytes, MARKS)
        assert order.index(plan.state.level) >= order.index(raw)


@given(st.lists(sightings, min_size=3, max_size=60))
def test_each_request_falls_once_at_most_when_aborts_are_obeyed(seen: list[Sighting]) -> None:
    """B44: a victim is gone, and the next poll does not name it again."""
    state, now = EnforcerState(), 0.0
    fallen: Counter[str] = Counter()
    for item in seen:
        left = tuple(
            EngineNow(
                engine.name,
                engine.held_bytes,
                pinned=engine.pinned,
                rows=tuple(row for row in engine.rows if row.request_id not in fallen),
            )
            for engine in item.engines
        )
        plan = plan_enforcement(
            state, Sighting(item.used_bytes, item.newest_bytes, MARKS, left, 0), now
        )
        fallen.update(a.request_id for a in plan.actions if isinstance(a, AbortRow))
        state, now = plan.state, now + plan.poll_seconds
    assert all(count == 1 for count in fallen.values())


@given(st.integers(0, 3000), st.integers(-200, 800), fleets)
def test_room_is_made_with_engines_that_may_go_and_only_when_it_suffices(
    need: int, headroom: int, fleet: tuple[EngineNow, ...]
) -> None:
    plan = plan_room(need, headroom, fleet, keep="a")
    by_name = {engine.name: engine for engine in fleet}
    leaving = sum(engine.held_bytes for engine in fleet if engine.leaving)
    freed = sum(by_name[name].held_bytes for name in plan.evict)
    assert all(by_name[name].can_leave and name != "a" for name in plan.evict)
    assert plan.coming_bytes == leaving + freed
    if plan.enough:
        assert need <= headroom + plan.coming_bytes
        smaller = [by_name[name].held_bytes for name in plan.evict]
        assert not smaller or need > headroom + leaving + freed - smaller[-1]
    else:
        assert plan.evict == ()
