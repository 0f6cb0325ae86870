"""The conditions of a node: what is wrong with this machine, in words that say what to do.

Pure. Called for each status report; the lease keeper writes them. Units: bytes.
"""

from dataclasses import dataclass, field

from manifests.kinds.meta import Condition, ConditionStatus, set_condition
from manifests.kinds.node import (
    AGENT_STOPPED,
    CacheInForce,
    Ceilings,
    GuardInForce,
    PressureLevel,
)
from manifests.units import MIB, format_bytes
from node_agent.memory.books import MemoryState
from node_agent.memory.guards import FollowedGuard
from node_agent.memory.limits import compute_watermarks
from node_agent.memory.stranded_plan import Stranded
from node_agent.sync.cache_figures import DISK_FULL
from node_agent.sync.panics_plan import CLEAR_ANNOTATION, PanicStanding

# A Metal limit this near to the RAM less its reserve is not worth a person's time.
_LOW_RATIO = 0.95

_MEASURES: dict[PressureLevel, str] = {
    PressureLevel.OK: "",
    PressureLevel.SOFT: "new requests wait while others run, idle engines are unloaded",
    PressureLevel.HARD: "the newest prompts are stopped one by one",
    PressureLevel.EMERGENCY: "all prompts being fed are stopped",
}


@dataclass(frozen=True, slots=True)
class HealthNow:
    """What the guard and the host watch say at one moment.

    `level` is the enforcer's, which does not flap; `waiting` counts the line for memory; `panics`
    is None where the system keeps no reports.
    """

    level: PressureLevel = PressureLevel.OK
    paused: bool = False
    waiting: int = 0
    panics: PanicStanding | None = None
    stranded: tuple[Stranded, ...] = ()

    @property
    def ceiling_ratio(self) -> float:
        """What kernel panics leave of the ceilings."""
        return 1.0 if self.panics is None else self.panics.ceiling_ratio


@dataclass(frozen=True, slots=True)
class NodeNow:
    """What changes while the agent runs."""

    memory: MemoryState
    engines: int
    stopped: bool = False
    guard: GuardInForce = field(default_factory=GuardInForce)
    cache: CacheInForce = field(default_factory=CacheInForce)
    health: HealthNow = field(default_factory=HealthNow)


def describe_guard(followed: FollowedGuard, ceilings: Ceilings, health: HealthNow) -> GuardInForce:
    """Return the guard in force with the marks it makes of these ceilings."""
    spec = followed.spec
    marks = compute_watermarks(ceilings, spec)
    return GuardInForce(
        name=followed.name,
        generation=followed.generation,
        tier=spec.tier.value,
        soft_bytes=marks.soft_bytes,
        hard_bytes=marks.hard_bytes,
        emergency_bytes=marks.emergency_bytes,
        margin_bytes=spec.prefill_transient_margin.bytes,
        prefill_concurrency=spec.prefill_concurrency,
        ceiling_ratio=round(health.ceiling_ratio, 3),
        paused=health.paused,
    )


def plan_conditions(
    current: tuple[Condition, ...], state: NodeNow, generation: int, now: str
) -> tuple[Condition, ...]:
    """Return the node's conditions; those of other types are kept as they are."""
    found = [_ready(state), _memory_pressure(state)]
    if state.memory.capacity_bytes > 0:
        found.append(_wired_limit_low(state))
    if state.health.panics is not None:
        found.append(_panic_history(state.health.panics))
    found.append(_reboot_needed(state.health.stranded))
    if not state.stopped:
        found += [_cache_degraded(state.cache), _disk_pressure(state.cache)]
    for item in found:
        placed = item.model_copy(update={"observed_generation": generation})
        current = set_condition(current, placed, now)
    return current


def _condition(type_: str, holds: bool, reason: str, message: str = "") -> Condition:
    status = ConditionStatus.TRUE if holds else ConditionStatus.FALSE
    return Condition(type=type_, status=status, reason=reason, message=message)


def _ready(state: NodeNow) -> Condition:
    if state.stopped:
        return _condition("Ready", False, AGENT_STOPPED, "the agent was stopped")
    return _condition("Ready", True, "AgentReady", "the agent renews its lease")


def _memory_pressure(state: NodeNow) -> Condition:
    level = state.health.level
    if level is PressureLevel.OK:
        return _condition("MemoryPressure", False, "EnoughMemory")
    message = (
        f"engines hold {format_bytes(state.memory.used_bytes)} (soft from "
        f"{format_bytes(state.guard.soft_bytes)}, hard from {format_bytes(state.guard.hard_bytes)};"
        f" binding ceiling: {state.memory.ceilings.binding.value}): {_MEASURES[level]}"
    )
    return _condition("MemoryPressure", True, f"Pressure{level.value.capitalize()}", message)


def _wired_limit_low(state: NodeNow) -> Condition:
    ceilings, ratio = state.memory.ceilings, state.health.ceiling_ratio
    metal = ceilings.metal_bytes
    if metal is None:
        return _condition("WiredLimitLow", False, "NoMetalLimit", "no Metal limit is known here")
    if metal >= _LOW_RATIO * ceilings.static_bytes:
        return _condition("WiredLimitLow", False, "WiredLimitFits")
    wanted_mib = int(ceilings.static_bytes / ratio) // MIB
    message = (
        f"Metal allows {format_bytes(int(metal / ratio))} while the guard would allow "
        f"{format_bytes(int(ceilings.static_bytes / ratio))}; consider "
        f"`sudo sysctl iogpu.wired_limit_mb={wanted_mib}` on this machine "
        "(lost at a reboot; the fleet never sets it)"
    )
    return _condition("WiredLimitLow", True, "MetalBelowStatic", message)


def _panic_history(panics: PanicStanding) -> Condition:
    if panics.counting:
        newest = panics.counting[-1]
        task = f" in {newest.task}" if newest.task else ""
        message = (
            f"{len(panics.counting)} kernel panics in 14 days while this agent ran, the newest"
            f"{task}: {newest.signature}; ceilings are lowered to "
            f"{panics.ceiling_ratio:.0%} until the annotation {CLEAR_ANNOTATION} gets a new value"
        )
        return _condition("PanicHistory", True, "KernelPanicked", message)
    if panics.fault:
        return Condition(
            type="PanicHistory",
            status=ConditionStatus.UNKNOWN,
            reason="ReportsUnreadable",
            message=f"cannot tell whether this machine panicked: {panics.fault}",
        )
    return _condition("PanicHistory", False, "NoPanics")


def _reboot_needed(stranded: tuple[Stranded, ...]) -> Condition:
    if not stranded:
        return _condition("RebootNeeded", False, "MemoryComesBack")
    engines = ", ".join(f"{one.engine} ({format_bytes(one.held_bytes)})" for one in stranded)
    message = (
        f"memory stayed wired after these engines ended: {engines}; it comes back with a reboot "
        "of this machine, and their models are not started again before"
    )
    return _condition("RebootNeeded", True, "WiredMemoryStranded", message)


def _cache_degraded(cache: CacheInForce) -> Condition:
    if not cache.reason:
        return _condition("CacheDegraded", False, "CacheWorks" if cache.directory else "NoSsdTier")
    message = (
        f"{cache.message}; engines serve without the disk tier of the prefix cache and try it "
        "again by themselves"
    )
    return _condition("CacheDegraded", True, cache.reason, message)


def _disk_pressure(cache: CacheInForce) -> Condition:
    if cache.reason != DISK_FULL:
        return _condition("DiskPressure", False, "EnoughDisk")
    return _condition("DiskPressure", True, DISK_FULL, cache.message)
