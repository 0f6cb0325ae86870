"""A node's memory as a person reads it at a glance: what binds, what the guard does, what fits.

Pure. Called by `describe`.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from controller.cli.output import align
from manifests.units import format_bytes

_BAR_CELLS = 40

_CEILINGS = (
    ("static", "RAM less what the guard leaves to the system and other apps"),
    ("dynamic", "what engines hold plus what the system could give right now"),
    ("metal", "the GPU's limit: iogpu.wired_limit_mb, else the device's own"),
    ("hard", "the least of these; nothing is admitted beyond it"),
    ("abort", "the least that other apps cannot move; running work ends only beyond it"),
)
_MARKS = (
    ("soft", "new requests wait while others run, idle engines are unloaded"),
    ("hard", "caches are given back, then the newest prompts end one by one"),
    ("emergency", "all prompts being fed end at once; models stay"),
)
# What the lines above show; the rest of the status is printed as it is.
SHOWN = frozenset(
    {
        "capacityBytes",
        "ceilings",
        "usedBytes",
        "reservedBytes",
        "headroomBytes",
        "pressure",
        "guard",
        "cache",
        "waiting",
    }
)


def memory_bar(used: int, reserved: int, ceiling: int, capacity: int) -> str:
    """Return one line of RAM: # used, + reserved, . free under the ceiling, space beyond it."""
    if capacity <= 0:
        return ""
    cells = [
        "#"
        if position < used
        else "+"
        if position < used + reserved
        else "."
        if position < ceiling
        else " "
        for position in (capacity * (i + 0.5) / _BAR_CELLS for i in range(_BAR_CELLS))
    ]
    return "[" + "".join(cells) + "]"


def node_memory_lines(status: Mapping[str, Any]) -> list[str]:
    """Return the memory side of a node's status."""
    ceilings, guard = status.get("ceilings") or {}, status.get("guard") or {}
    capacity, hard = _number(status, "capacityBytes"), _number(ceilings, "hardBytes")
    used, reserved = _number(status, "usedBytes"), _number(status, "reservedBytes")
    headroom = _number(status, "headroomBytes")
    level = str(status.get("pressure", "unknown"))
    return [
        "",
        f"Memory:       {memory_bar(used, reserved, hard, capacity)} {format_bytes(capacity)} RAM",
        f"              {format_bytes(used)} used (#), {format_bytes(reserved)} reserved (+), "
        f"{format_bytes(headroom)} headroom (.)",
        f"Pressure:     {level}{_doing(level)}",
        f"In line:      {_number(status, 'waiting')} waiting for memory"
        + (", admission paused" if guard.get("paused") else ""),
        f"Guard:        {_guard_words(guard)}",
        "Ceilings:",
        *_ceiling_lines(ceilings, str(guard.get("tier", ""))),
        *_mark_lines(guard),
        *node_cache_lines(status.get("cache") or {}),
    ]


def node_cache_lines(cache: Mapping[str, Any]) -> list[str]:
    """Return the prefix cache's side of a node's status; nothing when the agent tells none."""
    if not _number(cache, "blockTokens"):
        return []
    name = cache.get("name") or "the agent's default"
    isolation = "each tenant's prefixes apart" if cache.get("isolation") == "tenant" else "shared"
    lines = [
        "",
        f"Cache:        {name}, blocks of {_number(cache, 'blockTokens')} tokens, {isolation}",
        f"  ssd         {_ssd_words(cache)}",
        f"  hot         {format_bytes(_number(cache, 'hotUsedBytes'))} held in RAM, "
        f"{format_bytes(_number(cache, 'hotSizeBytes'))} allowed while memory is free",
    ]
    if cache.get("reason"):
        lines.append(f"  degraded    {cache['reason']}: {cache.get('message', '')}")
    return lines


def _ssd_words(cache: Mapping[str, Any]) -> str:
    held = f"{format_bytes(_number(cache, 'ssdUsedBytes'))} in {_number(cache, 'ssdBlocks')} blocks"
    if not cache.get("directory"):
        return "off"
    return (
        f"{held} of {format_bytes(_number(cache, 'ssdSizeBytes'))}, leaving "
        f"{format_bytes(_number(cache, 'ssdLeaveFreeBytes'))} of the volume free, "
        f"in {cache['directory']}"
    )


def node_engine_rows(engines: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the node's engines with the prompts that fit."""
    rows = []
    for engine in engines:
        status = engine.get("status") or {}
        footprint, now = _number(status, "footprintBytes"), _number(status, "tokensFitNow")
        rows.append(
            [
                engine["metadata"]["name"],
                engine["spec"]["model"],
                str(status.get("phase", "")),
                format_bytes(footprint) if footprint else "-",
                f"{now} tokens",
                f"{_number(status, 'tokensFitEver')} tokens",
                str(_number(status, "running")),
                str(_number(status, "waiting")),
                str(status.get("message", "")),
            ]
        )
    header = ["ENGINE", "MODEL", "PHASE", "FOOTPRINT", "FITS-NOW", "FITS-EVER", "RUN", "WAIT"]
    return align([*header, "MESSAGE"], rows)


def _number(values: Mapping[str, Any], key: str) -> int:
    return int(values.get(key) or 0)


def _doing(level: str) -> str:
    words = dict(_MARKS).get(level)
    return f": {words}" if words else ""


def _guard_words(guard: Mapping[str, Any]) -> str:
    tier = guard.get("tier")
    if not tier:
        return "unknown"
    name = guard.get("name") or "the agent's default"
    prefills = _number(guard, "prefillConcurrency")
    words = (
        f"{name} (tier {tier}), margin {format_bytes(_number(guard, 'marginBytes'))}, "
        f"{prefills} engine{'' if prefills == 1 else 's'} feeding prompts at a time"
    )
    ratio = float(guard.get("ceilingRatio") or 1.0)
    return words if ratio >= 1 else f"{words}; ceilings lowered to {ratio:.0%} after kernel panics"


def _ceiling_lines(ceilings: Mapping[str, Any], tier: str) -> list[str]:
    binding = ceilings.get("binding")
    rows = []
    for name, meaning in _CEILINGS:
        value = ceilings.get(f"{name}Bytes")
        if value is not None:
            mark = " <- binding" if name == binding else ""
            own = name == "dynamic" and tier == "custom"
            words = "the guard's own customCeiling" if own else meaning
            rows.append([name, f"{format_bytes(int(value))}{mark}", words])
    return [f"  {line}" for line in align(["LIMIT", "BYTES", "MEANING"], rows)]


def _mark_lines(guard: Mapping[str, Any]) -> list[str]:
    rows = [
        [name, format_bytes(_number(guard, f"{name}Bytes")), meaning]
        for name, meaning in _MARKS
        if guard.get(f"{name}Bytes")
    ]
    if not rows:
        return []
    return ["Levels:", *(f"  {line}" for line in align(["LEVEL", "FROM", "THEN"], rows))]
