"""Whatever knob the advice names, turning it as it says is enough."""

import json
import re
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from manifests.errors import Retryable
from manifests.kinds.guard import MemoryGuardSpec, Tier
from manifests.kinds.node import CeilingName, Ceilings
from manifests.sizing.advice import Shortage, describe_advice
from manifests.units import GIB, MIB, parse_quantity
from node_agent.host.base import HostMemory
from node_agent.memory.knobs import plan_knobs
from node_agent.memory.limits import compute_ceilings
from node_agent.memory.reading import EngineHistory, MemoryReading, Sample

_QUANTA = st.integers(0, 96 * 8).map(lambda eighths: eighths * GIB // 8)


@st.composite
def readings(draw: st.DrawFn) -> MemoryReading:
    used, free, inactive, active = (draw(_QUANTA) for _ in range(4))
    ram = used + free + inactive + active + draw(_QUANTA)
    ratio = draw(st.sampled_from([1.0, 0.9, 0.75]))
    host = HostMemory(ram, free, inactive, active, ceiling_ratio=ratio)
    metal = draw(st.none() | _QUANTA.filter(bool))
    return MemoryReading(
        host, {"e": EngineHistory(1, (Sample(0.0, used, used),), used, True)}, metal
    )


@st.composite
def guards(draw: st.DrawFn) -> MemoryGuardSpec:
    fields: dict[str, object] = {"tier": draw(st.sampled_from([tier.value for tier in Tier]))}
    if fields["tier"] == "custom":
        fields["customCeiling"] = f"{draw(st.integers(1, 96))}Gi"
    if draw(st.booleans()):
        fields["staticReserve"] = f"{draw(st.integers(1, 16))}Gi"
    if draw(st.booleans()):
        fields["activeRatio"] = draw(st.sampled_from([0.0, 0.3, 1.0]))
    return MemoryGuardSpec.model_validate_json(json.dumps(fields))


def compared(ceilings: Ceilings, retryable: Retryable, *, custom: bool) -> int:
    """Return the ceiling that a verdict compares with."""
    if retryable is not Retryable.NO:
        return ceilings.hard_bytes
    return min(ceilings.abort_bytes, ceilings.dynamic_bytes) if custom else ceilings.abort_bytes


def turned(
    text: str, reading: MemoryReading, guard: MemoryGuardSpec
) -> list[tuple[MemoryReading, MemoryGuardSpec]]:
    """Return the world after each knob that the words name, turned alone."""
    worlds = []
    if found := re.search(r"[Ss]et tier (\w+)", text):
        worlds.append((reading, guard.model_copy(update={"tier": Tier(found[1])})))
    if found := re.search(r"iogpu\.wired_limit_mb=(\d+)", text):
        host = replace(reading.host, wired_limit_bytes=int(found[1]) * MIB)
        worlds.append((replace(reading, host=host), guard))
    if found := re.search(r"customCeiling .* at least (\w+)", text):
        ceiling = guard.custom_ceiling
        assert ceiling is not None
        raised = replace(ceiling, text=found[1], bytes=parse_quantity(found[1]))
        worlds.append((reading, guard.model_copy(update={"custom_ceiling": raised})))
    if re.search(r"[Cc]lose other apps on this node( or|\.)", text):
        host = reading.host
        freed = replace(host, free_bytes=host.free_bytes + host.active_bytes, active_bytes=0)
        worlds.append((replace(reading, host=freed), guard))
    return worlds


@given(
    readings(),
    guards(),
    _QUANTA.filter(bool),
    st.sampled_from([Retryable.NO, Retryable.ELSEWHERE]),
)
def test_each_named_knob_is_enough_by_itself(
    reading: MemoryReading, guard: MemoryGuardSpec, missing: int, retryable: Retryable
) -> None:
    custom = guard.tier is Tier.CUSTOM
    ceilings = compute_ceilings(reading, guard)
    limit = compared(ceilings, retryable, custom=custom)
    binding = next(
        name
        for name, size in (
            (CeilingName.STATIC, ceilings.static_bytes),
            (CeilingName.METAL, ceilings.metal_bytes),
            (CeilingName.DYNAMIC, ceilings.dynamic_bytes),
        )
        if size == limit
    )
    shortage = Shortage(limit + missing, limit, binding, retryable)
    text = describe_advice(shortage, plan_knobs(reading, guard))
    assert text
    for world, spec in turned(text, reading, guard):
        after = compute_ceilings(world, spec)
        assert compared(after, retryable, custom=custom) >= limit + missing, text
