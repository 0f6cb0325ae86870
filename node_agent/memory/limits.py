"""Ceilings, watermarks and pressure: how much of the machine engines may take.

Pure arithmetic over a reading and a guard. Called by the arbiter. Units: bytes.
"""

from dataclasses import dataclass

from manifests.kinds.guard import SMALL_MACHINE_BYTES, TIERS, MemoryGuardSpec, Tier
from manifests.kinds.node import CeilingName, Ceilings, PressureLevel
from node_agent.memory.reading import MemoryReading


@dataclass(frozen=True, slots=True)
class Watermarks:
    """Where pressure begins.

    New work is paused above `soft_bytes`. Running work is only ever touched above `hard_bytes`
    and `emergency_bytes`, which follow the abort ceiling: another app's growth may refuse new
    work but must not kill what runs.
    """

    soft_bytes: int
    hard_bytes: int
    emergency_bytes: int


def compute_reserve_bytes(ram_bytes: int, guard: MemoryGuardSpec) -> int:
    """Return the RAM left to the system and other apps."""
    if guard.static_reserve is not None:
        return guard.static_reserve.bytes
    figures = TIERS[guard.tier]
    small = ram_bytes < SMALL_MACHINE_BYTES
    return figures.small_machine_reserve_bytes if small else figures.reserve_bytes


def _dynamic_bytes(reading: MemoryReading, guard: MemoryGuardSpec) -> int:
    """What we hold plus what the system could still give, or the user's own figure."""
    if guard.tier is Tier.CUSTOM and guard.custom_ceiling is not None:
        return guard.custom_ceiling.bytes
    figures = TIERS[guard.tier]
    ratio = figures.active_ratio if guard.active_ratio is None else guard.active_ratio
    host = reading.host
    share = int(ratio * host.active_bytes)
    return reading.used_bytes + host.free_bytes + host.inactive_bytes + share


def compute_ceilings(reading: MemoryReading, guard: MemoryGuardSpec) -> Ceilings:
    """Return the three limits, the least of them, and which one binds.

    Source: DESIGN §4. Metal's limit is what the system or the device says, never a share of
    RAM; with neither known it does not take part. A machine that panicked has all of them lowered.
    """
    ram_bytes, ratio = reading.host.ram_bytes, reading.host.ceiling_ratio
    static = int(ratio * max(0, ram_bytes - compute_reserve_bytes(ram_bytes, guard)))
    dynamic = int(ratio * max(0, _dynamic_bytes(reading, guard)))
    metal = reading.host.wired_limit_bytes or reading.recommended_working_set_bytes
    limits = {CeilingName.STATIC: static, CeilingName.DYNAMIC: dynamic}
    if metal is not None:
        metal = int(ratio * metal)
        limits[CeilingName.METAL] = metal
    binding = min(limits, key=lambda name: limits[name])
    return Ceilings(
        static_bytes=static,
        dynamic_bytes=dynamic,
        metal_bytes=metal,
        hard_bytes=limits[binding],
        abort_bytes=static if metal is None else min(static, metal),
        binding=binding,
    )


def compute_watermarks(ceilings: Ceilings, guard: MemoryGuardSpec) -> Watermarks:
    """Return where soft, hard and emergency pressure begin."""
    figures = TIERS[guard.tier]
    soft = figures.soft_ratio if guard.soft_ratio is None else guard.soft_ratio
    hard = figures.hard_ratio if guard.hard_ratio is None else guard.hard_ratio
    return Watermarks(
        soft_bytes=int(soft * ceilings.hard_bytes),
        hard_bytes=int(hard * ceilings.abort_bytes),
        emergency_bytes=ceilings.abort_bytes,
    )


def classify_pressure(used_bytes: int, marks: Watermarks) -> PressureLevel:
    """Return how near the engines' use is to the limits; nothing used is never pressure."""
    if used_bytes <= 0:
        return PressureLevel.OK
    if used_bytes >= marks.emergency_bytes:
        return PressureLevel.EMERGENCY
    if used_bytes >= marks.hard_bytes:
        return PressureLevel.HARD
    if used_bytes >= marks.soft_bytes:
        return PressureLevel.SOFT
    return PressureLevel.OK
