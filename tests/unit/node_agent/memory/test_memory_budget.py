"""What engines may hold, whose turn it is, and what measured chunks teach."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manifests.sizing.estimate import scale_transient
from manifests.units import MIB
from node_agent.memory.budget import (
    SLICE_SECONDS,
    STEP_BYTES,
    EngineStanding,
    Turns,
    plan_budgets,
    plan_limits,
    plan_turns,
)
from node_agent.memory.learning import MOST_RATIO, Learned, learn

GREAT = 10**12


def standing(used: int, overhead: int = 0, promised: int = 0) -> EngineStanding:
    return EngineStanding(used * MIB, overhead * MIB, promised * MIB, 10 * MIB, 32)


def test_a_budget_is_what_is_held_and_promised_and_one_margin_as_mlx_counts() -> None:
    budgets = plan_budgets({"a": standing(500, 100, 200)}, GREAT)
    assert budgets == {"a": 610 * MIB}


def test_a_fallen_ceiling_takes_only_what_was_not_allocated_yet() -> None:
    engines = {"a": standing(500, promised=300), "b": standing(500, promised=100)}
    budgets = plan_budgets(engines, 1200 * MIB)
    assert budgets == {"a": 660 * MIB, "b": 560 * MIB}
    floor = plan_budgets(engines, 100 * MIB)
    assert floor == {"a": 510 * MIB, "b": 510 * MIB}


@given(
    st.dictionaries(
        st.sampled_from("abc"),
        st.builds(standing, st.integers(1, 900), st.just(0), st.integers(0, 900)),
        min_size=1,
    ),
    st.integers(1, 4000),
)
def test_budgets_without_margins_never_exceed_the_ceiling_beyond_what_is_held(
    engines: dict[str, EngineStanding], ceiling_mib: int
) -> None:
    budgets = plan_budgets(engines, ceiling_mib * MIB)
    margins = sum(item.margin_bytes for item in engines.values())
    used = sum(item.used_bytes for item in engines.values())
    assert sum(budgets.values()) - margins <= max(used, ceiling_mib * MIB)
    for name, item in engines.items():
        assert budgets[name] >= item.used_bytes


def test_one_engine_feeds_at_a_time_and_none_starves() -> None:
    turns = plan_turns(Turns(), ["a", "b", "c"], 1, 0.0)
    seen = [turns.holders]
    now = 0.0
    for _ in range(5):
        now += SLICE_SECONDS
        turns = plan_turns(turns, ["a", "b", "c"], 1, now)
        seen.append(turns.holders)
    assert [set(one) for one in seen] == [{"a"}, {"b"}, {"c"}, {"a"}, {"b"}, {"c"}]


def test_an_uncontested_turn_is_kept_and_a_finished_one_goes_on() -> None:
    turns = plan_turns(Turns(), ["a"], 1, 0.0)
    turns = plan_turns(turns, ["a"], 1, 100.0)
    assert turns.holders == {"a"}
    turns = plan_turns(turns, ["b"], 1, 100.1)
    assert turns.holders == {"b"}


def test_a_free_turn_is_anybodys_and_a_taken_one_only_the_holders() -> None:
    engines = {"a": standing(1), "b": standing(1)}
    free = plan_limits(engines, GREAT, Turns(), 1)
    assert [item.prefill_turn for item in free.values()] == [True, True]
    taken = plan_limits(engines, GREAT, plan_turns(Turns(), ["b"], 1, 0.0), 1)
    assert {name: item.prefill_turn for name, item in taken.items()} == {"a": False, "b": True}
    both = plan_limits(engines, GREAT, plan_turns(Turns(), ["b"], 2, 0.0), 2)
    assert all(item.prefill_turn for item in both.values())


def test_budgets_move_in_steps_and_never_below_what_was_planned() -> None:
    engines = {"a": EngineStanding(500 * MIB + 3, 0, 0, 0, 32)}
    budget = plan_limits(engines, GREAT, Turns(), 1)["a"].budget_bytes
    assert budget % STEP_BYTES == 0
    assert 500 * MIB + 3 <= budget < 502 * MIB


def test_a_chunk_above_its_prediction_counts_at_once_and_fades() -> None:
    learned = learn(Learned(), 100 * MIB, 140 * MIB)
    assert learned.ratio == pytest.approx(1.4)
    for _ in range(100):
        learned = learn(learned, 100 * MIB, 80 * MIB)
    assert learned.ratio == 1.0
    assert learned.greatest_ratio == pytest.approx(1.4)


@given(st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 10**11)), max_size=50))
def test_what_is_learned_stays_within_bounds_and_never_latches(
    chunks: list[tuple[int, int]],
) -> None:
    learned = Learned()
    for predicted, actual in chunks:
        learned = learn(learned, predicted, actual)
        assert 1.0 <= learned.ratio <= MOST_RATIO
    for _ in range(200):
        learned = learn(learned, 100 * MIB, 50 * MIB)
    assert learned.ratio == 1.0


def test_an_impossible_reading_and_tiny_chunks_teach_nothing() -> None:
    assert learn(Learned(), 100 * MIB, 900 * MIB).ratio == 1.0
    assert learn(Learned(), 1000, 100_000) == Learned()


def test_only_the_transient_is_scaled() -> None:
    assert scale_transient(1000, 200, 1.5) == 1100
    assert scale_transient(1000, 200, 1.0) == 1000
