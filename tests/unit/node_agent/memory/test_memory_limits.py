"""Ceilings on machines of every size, for every tier, against the design's table."""

from dataclasses import replace

import pytest

from manifests.kinds.guard import MemoryGuardSpec, Tier
from manifests.kinds.node import CeilingName, PressureLevel
from manifests.units import GIB
from node_agent.host.base import HostMemory
from node_agent.memory.limits import (
    classify_pressure,
    compute_ceilings,
    compute_reserve_bytes,
    compute_watermarks,
)
from node_agent.memory.reading import EngineHistory, MemoryReading, Sample

RESERVE_GIB = {
    # GiB of RAM against the reserve of safe, balanced, aggressive and custom
    8: (4, 4, 4, 2),
    16: (4, 4, 4, 2),
    24: (8, 6, 4, 2),
    32: (8, 6, 4, 2),
    64: (8, 6, 4, 2),
    128: (8, 6, 4, 2),
    512: (8, 6, 4, 2),
}
TIERS = (Tier.SAFE, Tier.BALANCED, Tier.AGGRESSIVE, Tier.CUSTOM)


def guard_of(tier: Tier, custom_gib: int = 5, **more: object) -> MemoryGuardSpec:
    values: dict[str, object] = {"tier": tier, **more}
    if tier is Tier.CUSTOM:
        values["customCeiling"] = f"{custom_gib}Gi"
    return MemoryGuardSpec.model_validate(values)


def reading_of(
    ram_gib: int,
    *,
    free: int = 0,
    inactive: int = 0,
    active: int = 0,
    used: int = 0,
    wired: int | None = None,
    working_set: int | None = None,
) -> MemoryReading:
    host = HostMemory(
        ram_gib * GIB,
        free * GIB,
        inactive * GIB,
        active * GIB,
        None if wired is None else wired * GIB,
    )
    engines = (
        {"a": EngineHistory(1, (Sample(0.0, used * GIB, used * GIB),), used * GIB)} if used else {}
    )
    return MemoryReading(host, engines, None if working_set is None else working_set * GIB)


@pytest.mark.parametrize("ram_gib", RESERVE_GIB)
@pytest.mark.parametrize("tier", TIERS)
def test_the_static_ceiling_is_ram_less_the_tiers_reserve(ram_gib: int, tier: Tier) -> None:
    expected = RESERVE_GIB[ram_gib][TIERS.index(tier)]
    guard = guard_of(tier)
    assert compute_reserve_bytes(ram_gib * GIB, guard) == expected * GIB
    ceilings = compute_ceilings(reading_of(ram_gib, free=ram_gib), guard)
    assert ceilings.static_bytes == (ram_gib - expected) * GIB


@pytest.mark.parametrize(
    ("tier", "share_gib"), [(Tier.SAFE, 2), (Tier.BALANCED, 5), (Tier.AGGRESSIVE, 8)]
)
def test_the_dynamic_ceiling_takes_the_tiers_share_of_active_memory(
    tier: Tier, share_gib: int
) -> None:
    reading = reading_of(64, free=3, inactive=4, active=10, used=7)
    assert compute_ceilings(reading, guard_of(tier)).dynamic_bytes == (7 + 3 + 4 + share_gib) * GIB


def test_the_custom_tier_takes_the_users_figure_and_still_keeps_two_gibibytes() -> None:
    ceilings = compute_ceilings(reading_of(64, free=1), guard_of(Tier.CUSTOM, 40))
    assert (ceilings.dynamic_bytes, ceilings.binding) == (40 * GIB, CeilingName.DYNAMIC)
    ceilings = compute_ceilings(reading_of(32, free=1), guard_of(Tier.CUSTOM, 40))
    assert (ceilings.hard_bytes, ceilings.binding) == (30 * GIB, CeilingName.STATIC)


def test_every_override_replaces_the_tiers_figure() -> None:
    guard = MemoryGuardSpec.model_validate(
        {"tier": Tier.SAFE, "staticReserve": "1Gi", "activeRatio": 1.0}
    )
    ceilings = compute_ceilings(reading_of(16, free=2, active=4), guard)
    assert (ceilings.static_bytes, ceilings.dynamic_bytes) == (15 * GIB, 6 * GIB)


def test_a_configured_wired_limit_stands_before_metals_recommendation() -> None:
    both = reading_of(32, free=32, wired=12, working_set=21)
    ceilings = compute_ceilings(both, guard_of(Tier.BALANCED))
    assert (ceilings.metal_bytes, ceilings.binding) == (12 * GIB, CeilingName.METAL)
    only_device = reading_of(32, free=32, working_set=21)
    assert compute_ceilings(only_device, guard_of(Tier.BALANCED)).metal_bytes == 21 * GIB


def test_an_unknown_metal_limit_is_never_guessed_from_ram() -> None:
    ceilings = compute_ceilings(reading_of(32, free=32), guard_of(Tier.BALANCED))
    assert ceilings.metal_bytes is None
    assert ceilings.abort_bytes == ceilings.static_bytes


def test_other_apps_lower_the_hard_ceiling_but_not_the_abort_ceiling() -> None:
    reading = reading_of(64, free=1, active=50, used=10)
    ceilings = compute_ceilings(reading, guard_of(Tier.SAFE))
    assert ceilings.binding is CeilingName.DYNAMIC
    assert ceilings.hard_bytes == 21 * GIB
    assert ceilings.abort_bytes == 56 * GIB
    marks = compute_watermarks(ceilings, guard_of(Tier.SAFE))
    assert classify_pressure(20 * GIB, marks) is PressureLevel.SOFT


def test_a_reserve_larger_than_the_machine_leaves_nothing_rather_than_less() -> None:
    ceilings = compute_ceilings(reading_of(2, free=2), guard_of(Tier.BALANCED))
    assert (ceilings.static_bytes, ceilings.hard_bytes) == (0, 0)


@pytest.mark.parametrize(
    ("tier", "soft"), [(Tier.SAFE, 0.85), (Tier.BALANCED, 0.90), (Tier.AGGRESSIVE, 0.925)]
)
def test_watermarks_follow_the_tier(tier: Tier, soft: float) -> None:
    ceilings = compute_ceilings(reading_of(64, free=64), guard_of(tier))
    marks = compute_watermarks(ceilings, guard_of(tier))
    assert marks.soft_bytes == int(soft * ceilings.hard_bytes)
    assert marks.hard_bytes == int(0.95 * ceilings.abort_bytes)


def test_pressure_rises_by_level_and_nothing_used_is_never_pressure() -> None:
    ceilings = compute_ceilings(reading_of(14, free=14), guard_of(Tier.BALANCED))
    marks = compute_watermarks(ceilings, guard_of(Tier.BALANCED))
    levels = [classify_pressure(int(share * 10 * GIB), marks) for share in (0, 0.89, 0.9, 0.95, 1)]
    assert levels == [
        PressureLevel.OK,
        PressureLevel.OK,
        PressureLevel.SOFT,
        PressureLevel.HARD,
        PressureLevel.EMERGENCY,
    ]
    nothing = compute_watermarks(
        compute_ceilings(reading_of(2, free=2), guard_of(Tier.BALANCED)), guard_of(Tier.BALANCED)
    )
    assert classify_pressure(0, nothing) is PressureLevel.OK


def test_a_machine_that_panicked_has_every_ceiling_lowered() -> None:
    reading = reading_of(64, free=60, wired=48)
    lowered = replace(reading, host=replace(reading.host, ceiling_ratio=0.5))
    before, after = (compute_ceilings(one, guard_of(Tier.SAFE)) for one in (reading, lowered))
    assert after.static_bytes == before.static_bytes // 2
    assert after.dynamic_bytes == before.dynamic_bytes // 2
    assert after.metal_bytes == 24 * GIB
    assert (after.hard_bytes, after.abort_bytes) == (24 * GIB, 24 * GIB)
