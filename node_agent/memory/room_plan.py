"""Which idle engines to unload so that a demand for memory fits.

Pure. Called by the enforcer when the arbiter asks for room, for a load or a prefill. Units:
bytes, seconds.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from node_agent.memory.enforcer_plan import DEFAULT_RULES, EngineNow, idle_longest_first


@dataclass(frozen=True, slots=True)
class RoomPlan:
    """Who goes, in order; `coming_bytes` is what comes back by that and what is leaving already.

    Not `enough`: nobody goes, because the demand would not fit even then.
    """

    evict: tuple[str, ...] = ()
    coming_bytes: int = 0
    enough: bool = True


def plan_room(
    need_bytes: int,
    headroom_bytes: int,
    engines: Sequence[EngineNow],
    *,
    keep: str = "",
    minimum_stay_seconds: float = DEFAULT_RULES.minimum_stay_seconds,
) -> RoomPlan:
    """Return the least harmful evictions that make room for `need_bytes`.

    The coldest engine that frees enough alone, else the coldest ones together. Never one that
    is pinned, leased, busy or just loaded, nor `keep`, the engine that asks.
    """
    coming = sum(item.held_bytes for item in engines if item.leaving)
    missing = need_bytes - headroom_bytes - coming
    if missing <= 0:
        return RoomPlan(coming_bytes=coming)
    others = [item for item in engines if item.name != keep]
    cold = idle_longest_first(others, minimum_stay_seconds)
    alone = next((item for item in cold if item.held_bytes >= missing), None)
    if alone is not None:
        return RoomPlan((alone.name,), coming + alone.held_bytes)
    chosen: list[EngineNow] = []
    freed = 0
    for item in cold:
        chosen.append(item)
        freed += item.held_bytes
        if freed >= missing:
            return RoomPlan(tuple(one.name for one in chosen), coming + freed)
    return RoomPlan(coming_bytes=coming, enough=False)
