"""A node's conditions: when they hold, and whether their words say what to do."""

import pytest

from manifests.kinds.guard import MemoryGuardSpec, Tier
from manifests.kinds.meta import Condition, ConditionStatus, find_condition
from manifests.kinds.node import CeilingName, Ceilings, PressureLevel
from manifests.units import GIB
from node_agent.host.base import KernelPanic
from node_agent.memory.books import MemoryState
from node_agent.memory.guards import FollowedGuard
from node_agent.memory.stranded_plan import Stranded
from node_agent.sync.conditions import HealthNow, NodeNow, describe_guard, plan_conditions
from node_agent.sync.panics_plan import PanicStanding

CAREFUL = FollowedGuard("careful", MemoryGuardSpec(tier=Tier.SAFE), generation=7)
STAMP = "2026-11-28T00:00:00Z"


def ceilings(static: int = 56, metal: int | None = 48) -> Ceilings:
    limits = [static * GIB, *([] if metal is None else [metal * GIB])]
    return Ceilings(
        static_bytes=static * GIB,
        dynamic_bytes=60 * GIB,
        metal_bytes=None if metal is None else metal * GIB,
        hard_bytes=min(limits),
        abort_bytes=min(limits),
        binding=CeilingName.METAL,
    )


def conditions(
    health: HealthNow | None = None, limits: Ceilings | None = None
) -> dict[str, Condition]:
    limits, health = limits or ceilings(), health or HealthNow()
    memory = MemoryState(capacity_bytes=64 * GIB, ceilings=limits, used_bytes=44 * GIB)
    guard = describe_guard(CAREFUL, limits, health)
    found = plan_conditions((), NodeNow(memory, 1, guard=guard, health=health), 3, STAMP)
    return {item.type: item for item in found}


def panicked(count: int, fault: str = "") -> HealthNow:
    panics = tuple(KernelPanic(f"B{i}", f"underflow {i}", "python3.12", i) for i in range(count))
    return HealthNow(panics=PanicStanding(panics, fault))


def test_a_low_metal_limit_comes_with_the_exact_command() -> None:
    low = conditions()["WiredLimitLow"]
    assert (low.status, low.reason) == (ConditionStatus.TRUE, "MetalBelowStatic")
    assert "`sudo sysctl iogpu.wired_limit_mb=57344`" in low.message
    assert low.observed_generation == 3


@pytest.mark.parametrize(("metal", "reason"), [(54, "WiredLimitFits"), (None, "NoMetalLimit")])
def test_a_metal_limit_that_fits_or_is_unknown_is_no_complaint(
    metal: int | None, reason: str
) -> None:
    found = conditions(limits=ceilings(metal=metal))["WiredLimitLow"]
    assert (found.status, found.reason) == (ConditionStatus.FALSE, reason)


def test_the_advice_names_the_limit_without_the_reduction_after_panics() -> None:
    lowered = ceilings(static=int(56 * 0.9), metal=int(48 * 0.9))
    message = conditions(panicked(1), lowered)["WiredLimitLow"].message
    assert "iogpu.wired_limit_mb=56888" in message


def test_pressure_says_what_is_held_where_it_begins_and_what_is_done() -> None:
    soft = conditions(HealthNow(level=PressureLevel.SOFT))["MemoryPressure"]
    assert (soft.status, soft.reason) == (ConditionStatus.TRUE, "PressureSoft")
    for words in ("44.0 GiB", "40.8 GiB", "45.6 GiB", "metal", "idle engines are unloaded"):
        assert words in soft.message


def test_panics_say_how_many_which_and_how_to_clear_them() -> None:
    found = conditions(panicked(2))["PanicHistory"]
    assert found.status is ConditionStatus.TRUE
    for words in ("2 kernel panics", "underflow 1", "81%", "mlxfleet.dev/clear-panic-history"):
        assert words in found.message


def test_unreadable_reports_are_unknown_and_no_reports_are_no_condition() -> None:
    assert conditions(panicked(0, "denied"))["PanicHistory"].status is ConditionStatus.UNKNOWN
    assert conditions(panicked(0))["PanicHistory"].status is ConditionStatus.FALSE
    assert "PanicHistory" not in conditions()
    assert conditions(panicked(1, "denied"))["PanicHistory"].status is ConditionStatus.TRUE


def test_stranded_memory_asks_for_a_reboot_by_the_engines_name() -> None:
    assert conditions()["RebootNeeded"].status is ConditionStatus.FALSE
    stuck = HealthNow(stranded=(Stranded("big-0", 400 * GIB, 424 * GIB, 1.0, proven=True),))
    found = conditions(stuck)["RebootNeeded"]
    assert found.status is ConditionStatus.TRUE
    assert "big-0 (400 GiB)" in found.message


def test_the_guard_in_force_shows_its_marks() -> None:
    health = HealthNow(paused=True, panics=panicked(1).panics)
    guard = describe_guard(CAREFUL, ceilings(), health)
    assert (guard.name, guard.tier, guard.paused) == ("careful", "safe", True)
    assert guard.soft_bytes == int(0.85 * 48 * GIB)
    assert guard.emergency_bytes == 48 * GIB
    assert guard.ceiling_ratio == 0.9


def test_nothing_is_said_of_a_limit_before_the_first_measurement() -> None:
    found = plan_conditions((), NodeNow(MemoryState(), 0), 1, STAMP)
    assert find_condition(found, "WiredLimitLow") is None
