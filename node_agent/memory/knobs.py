"""Which knobs of this machine could be turned, and the ceilings each would give.

Pure: computes ceilings under other guards and without other apps. The words are
`manifests.sizing.advice`. Called by the books. Units: bytes.
"""

from dataclasses import replace

from manifests.kinds.guard import MemoryGuardSpec, Tier
from manifests.kinds.node import Ceilings
from manifests.sizing.advice import Knobs
from node_agent.memory.limits import compute_ceilings
from node_agent.memory.reading import MemoryReading

_CAREFUL_FIRST = (Tier.SAFE, Tier.BALANCED, Tier.AGGRESSIVE)


def plan_knobs(reading: MemoryReading, guard: MemoryGuardSpec) -> Knobs:
    """Return what could be turned; a tier's figure that the guard overrides stays overridden."""
    easier: tuple[tuple[Tier, Ceilings], ...] = ()
    if guard.tier in _CAREFUL_FIRST:
        later = _CAREFUL_FIRST[_CAREFUL_FIRST.index(guard.tier) + 1 :]
        easier = tuple(
            (tier, compute_ceilings(reading, guard.model_copy(update={"tier": tier})))
            for tier in later
        )
    host = reading.host
    closed = replace(host, free_bytes=host.free_bytes + host.active_bytes, active_bytes=0)
    return Knobs(
        tier=guard.tier,
        ceilings=compute_ceilings(reading, guard),
        apps_closed_bytes=compute_ceilings(replace(reading, host=closed), guard).dynamic_bytes,
        easier=easier,
        ceiling_ratio=host.ceiling_ratio,
    )
