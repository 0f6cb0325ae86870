"""What tables show of each kind. Pure.

A column reads one cell from a JSON-shaped object; `now` is passed for ages. Priority 0 is
always shown, 1 only with `-o wide`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from manifests.kinds.meta import Condition, ConditionStatus
from manifests.times import parse_time
from manifests.units import format_bytes, format_duration
from manifests.wire.listwatch import RawObject

Cell = str | int | None
_HIT_RATIOS = ("hitRatio", "hotHitRatio", "ssdHitRatio")
Read = Callable[[RawObject, float], Cell]


@dataclass(frozen=True, slots=True)
class Column:
    """One column. `type` is OpenAPI's."""

    name: str
    read: Read
    priority: int = 0
    type: str = "string"
    format: str = ""
    description: str = ""


def dig(obj: RawObject, *path: str) -> Any:
    """Return the value at a path, or None."""
    value: Any = obj
    for part in path:
        if not isinstance(value, Mapping):
            return None
        value = value.get(part)
    return value


def _at(*path: str) -> Read:
    return lambda obj, _now: dig(obj, *path)


def _bytes_at(*path: str) -> Read:
    def read(obj: RawObject, _now: float) -> Cell:
        value = dig(obj, *path)
        return format_bytes(value) if isinstance(value, int) and value else None

    return read


def _age(obj: RawObject, now: float) -> Cell:
    return _since(dig(obj, "metadata", "creationTimestamp"), now)


def _since(text: Any, now: float) -> Cell:
    seen = parse_time(text) if isinstance(text, str) else None
    return "<unknown>" if seen is None else format_duration(now - seen)


def _conditions(obj: RawObject) -> list[Condition]:
    found = dig(obj, "status", "conditions") or ()
    return [Condition.model_validate(item) for item in found]


def _condition(obj: RawObject, type_: str) -> Condition | None:
    return next((item for item in _conditions(obj) if item.type == type_), None)


def _model_ready(obj: RawObject, _now: float) -> Cell:
    ready = dig(obj, "status", "readyReplicas") or 0
    return f"{ready}/{dig(obj, 'spec', 'replicas')}"


def _model_source(obj: RawObject, _now: float) -> Cell:
    source = dig(obj, "spec", "source") or {}
    if source.get("path"):
        return str(source["path"])
    revision = source.get("revision")
    return f"{source.get('hub')}@{revision}" if revision else source.get("hub")


def _model_status(obj: RawObject, _now: float) -> Cell:
    if "deletionTimestamp" in obj["metadata"]:
        return "Terminating"
    ready = _condition(obj, "Ready")
    if ready is None:
        return "Unknown"
    return "Ready" if ready.status is ConditionStatus.TRUE else ready.reason


def _engine_phase(obj: RawObject, _now: float) -> Cell:
    if "deletionTimestamp" in obj["metadata"]:
        return "Terminating"
    phase, reason = dig(obj, "status", "phase"), dig(obj, "status", "reason")
    done, total = dig(obj, "status", "progress", "done"), dig(obj, "status", "progress", "total")
    if phase in {"Downloading", "Loading"} and done and total:
        return f"{phase} {100 * done // total}%"
    return f"{phase} ({reason})" if phase == "Failed" and reason else phase


def _cache_hits(obj: RawObject, _now: float) -> Cell:
    cache = dig(obj, "status", "cache")
    if not isinstance(cache, Mapping):
        return None
    shares = [f"{float(cache.get(name) or 0):.0%}" for name in _HIT_RATIOS]
    return f"{shares[0]} ({shares[1]} hot, {shares[2]} ssd)"


def _cache_hot(obj: RawObject, _now: float) -> Cell:
    cache = dig(obj, "status", "cache")
    if not isinstance(cache, Mapping):
        return None
    held, room = cache.get("hotUsedBytes") or 0, cache.get("hotCapacityBytes") or 0
    return f"{format_bytes(held)}/{format_bytes(room)}"


def _pair_of(first: str, second: str) -> Read:
    def read(obj: RawObject, _now: float) -> Cell:
        cache = dig(obj, "status", "cache")
        if not isinstance(cache, Mapping):
            return None
        return f"{cache.get(first) or 0}/{cache.get(second) or 0}"

    return read


def _cache_restore(obj: RawObject, _now: float) -> Cell:
    """Return how long a restore takes on average."""
    count = dig(obj, "status", "cache", "restores")
    seconds = dig(obj, "status", "cache", "restoreSeconds") or 0.0
    return f"{1000 * seconds / count:.1f}ms" if count else None


def _node_cache(obj: RawObject, _now: float) -> Cell:
    cache = dig(obj, "status", "cache")
    if not isinstance(cache, Mapping) or not cache.get("blockTokens"):
        return None
    used = format_bytes(cache.get("ssdUsedBytes") or 0)
    size = cache.get("ssdSizeBytes")
    return f"{used}/{format_bytes(size)}" if size else "<no ssd>"


def _node_status(obj: RawObject, _now: float) -> Cell:
    ready = _condition(obj, "Ready")
    words = ["Unknown"]
    if ready is not None and ready.status is not ConditionStatus.UNKNOWN:
        words = ["Ready" if ready.status is ConditionStatus.TRUE else "NotReady"]
    words += [
        item.type
        for item in _conditions(obj)
        if item.type != "Ready" and item.status is ConditionStatus.TRUE
    ]
    if dig(obj, "spec", "unschedulable"):
        words.append("SchedulingDisabled")
    return ",".join(words)


def _node_ceiling(obj: RawObject, _now: float) -> Cell:
    hard = dig(obj, "status", "ceilings", "hardBytes")
    if not hard:
        return None
    return f"{format_bytes(hard)} ({dig(obj, 'status', 'ceilings', 'binding')})"


def _node_guard(obj: RawObject, _now: float) -> Cell:
    tier, name = dig(obj, "status", "guard", "tier"), dig(obj, "status", "guard", "name")
    return f"{name or '<default>'} ({tier})" if tier else None


def _selector(obj: RawObject, _now: float) -> Cell:
    labels = dig(obj, "spec", "nodeSelector") or {}
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items())) or "<all>"


def _node_count(obj: RawObject, _now: float) -> Cell:
    return len(dig(obj, "status", "nodes") or ())


def _hot_size(obj: RawObject, _now: float) -> Cell:
    return _text(dig(obj, "spec", "hot", "size"))


def _ssd_size(obj: RawObject, _now: float) -> Cell:
    return _text(dig(obj, "spec", "ssd", "size"))


def _text(value: Any) -> Cell:
    return "<off>" if value is None else str(value)


def _route_backends(obj: RawObject, _now: float) -> Cell:
    backends = dig(obj, "spec", "backends") or ()
    whole = sum(item.get("weight", 1) for item in backends)
    if len(backends) == 1 or not whole:
        return ",".join(item["model"] for item in backends)
    return ",".join(f"{item['model']}={item.get('weight', 1)}/{whole}" for item in backends)


def _holds(type_: str) -> Read:
    def read(obj: RawObject, _now: float) -> Cell:
        held = _condition(obj, type_)
        if held is None:
            return "Unknown"
        return "True" if held.status is ConditionStatus.TRUE else held.reason

    return read


def _listed(*path: str) -> Read:
    return lambda obj, _now: ",".join(dig(obj, *path) or ()) or None


def _models_allowed(obj: RawObject, _now: float) -> Cell:
    return ",".join(dig(obj, "spec", "models") or ()) or "<all>"


def _key_status(obj: RawObject, _now: float) -> Cell:
    usable = _condition(obj, "Usable")
    if usable is None:
        return "Unknown"
    return "Usable" if usable.status is ConditionStatus.TRUE else usable.reason


def _key_tokens(obj: RawObject, _now: float) -> Cell:
    usage = dig(obj, "status", "usage") or {}
    return (usage.get("promptTokens") or 0) + (usage.get("completionTokens") or 0)


def _key_budget(obj: RawObject, _now: float) -> Cell:
    budget = dig(obj, "spec", "budget")
    if not isinstance(budget, Mapping):
        return None
    return f"{dig(obj, 'status', 'usage', 'budgetUsed') or 0}/{budget.get('tokens')}"


def _key_last_used(obj: RawObject, now: float) -> Cell:
    seen = dig(obj, "status", "usage", "lastUsed")
    return _since(seen, now) if seen else "<never>"


def _event_object(obj: RawObject, _now: float) -> Cell:
    about = obj.get("involvedObject") or {}
    return f"{str(about.get('kind', '')).lower()}/{about.get('name', '')}"


def _event_seen(obj: RawObject, now: float) -> Cell:
    return _since(obj.get("lastTimestamp") or dig(obj, "metadata", "creationTimestamp"), now)


NAME = Column("Name", _at("metadata", "name"), format="name", description="name of the object")
AGE = Column("Age", _age, description="time since creation")

COLUMNS: Mapping[str, tuple[Column, ...]] = {
    "Model": (
        NAME,
        Column("Ready", _model_ready, description="ready copies of declared ones"),
        Column("Status", _model_status, description="Ready, or the reason why not"),
        Column("Source", _model_source),
        AGE,
        Column("Guard", _at("spec", "memoryGuard"), 1),
        Column("Cache", _at("spec", "cacheBudget"), 1),
        Column("Weights", _bytes_at("status", "weightsBytes"), 1),
        Column("Context", _at("status", "contextTokens"), 1, type="integer"),
    ),
    "Engine": (
        NAME,
        Column("Model", _at("spec", "model")),
        Column("Node", _at("spec", "node")),
        Column("Phase", _engine_phase),
        Column("Restarts", _at("status", "restarts"), type="integer"),
        AGE,
        Column("Footprint", _bytes_at("status", "footprintBytes"), 1),
        Column("Fits-Now", _at("status", "tokensFitNow"), 1, type="integer"),
        Column("Fits-Ever", _at("status", "tokensFitEver"), 1, type="integer"),
        Column("Running", _at("status", "running"), 1, type="integer"),
        Column("Waiting", _at("status", "waiting"), 1, type="integer"),
        Column("Cache-Hits", _cache_hits, 1, description="share of prompt tokens, by tier"),
        Column("Saved", _at("status", "cache", "tokensSaved"), 1, type="integer"),
        Column("Hot", _cache_hot, 1, description="RAM held and allowed just now"),
        Column("SSD", _bytes_at("status", "cache", "ssdUsedBytes"), 1),
        Column("Saves", _pair_of("saves", "savesPersisted"), 1, description="accepted/on disk"),
        Column("Drops", _at("status", "cache", "drops"), 1, type="integer"),
        Column("Evicted", _pair_of("hotEvictions", "ssdEvictions"), 1, description="hot/ssd"),
        Column("Restore", _cache_restore, 1, description="mean time of a restore"),
        Column("Revision", _at("spec", "revision"), 1),
        Column("Message", _at("status", "message"), 1),
    ),
    "Node": (
        NAME,
        Column("Status", _node_status),
        Column("Pressure", _at("status", "pressure")),
        Column("Ceiling", _node_ceiling, description="the least limit, and which one binds"),
        Column("Used", _bytes_at("status", "usedBytes")),
        Column("Headroom", _bytes_at("status", "headroomBytes")),
        Column("Engines", _at("status", "engines"), type="integer"),
        AGE,
        Column("Capacity", _bytes_at("status", "capacityBytes"), 1),
        Column("Reserved", _bytes_at("status", "reservedBytes"), 1),
        Column("In-Line", _at("status", "waiting"), 1, type="integer"),
        Column("Guard", _node_guard, 1, description="the memory guard it follows, and the tier"),
        Column("Cache", _node_cache, 1, description="SSD of the prefix cache"),
        Column("Chip", _at("status", "info", "chip"), 1),
        Column("Address", _at("status", "address"), 1),
        Column("Agent", _at("status", "info", "agentVersion"), 1),
    ),
    "MemoryGuard": (
        NAME,
        Column("Tier", _at("spec", "tier")),
        Column("Margin", _at("spec", "prefillTransientMargin")),
        Column("Nodes", _node_count, type="integer", description="how many follow it"),
        Column("In-Force", _holds("InForce"), description="True, or the reason why not yet"),
        AGE,
        Column("Selector", _selector, 1),
        Column("Custom-Ceiling", _at("spec", "customCeiling"), 1),
    ),
    "CacheBudget": (
        NAME,
        Column("SSD", _ssd_size),
        Column("Hot", _hot_size),
        Column("Nodes", _node_count, type="integer", description="how many follow it"),
        Column("In-Force", _holds("InForce"), description="True, or the reason why not yet"),
        AGE,
        Column("Selector", _selector, 1),
        Column("Isolation", _at("spec", "isolation"), 1),
    ),
    "Route": (
        NAME,
        Column("Backends", _route_backends, description="Models and their shares"),
        Column("Fallbacks", _listed("spec", "fallbacks")),
        Column("Accepted", _holds("Accepted"), description="True, or the reason why not"),
        Column("Resolved", _holds("ResolvedRefs"), description="True, or the reason why not"),
        AGE,
        Column("Aliases", _listed("spec", "aliases"), 1),
        Column("Rules", lambda obj, _now: len(dig(obj, "spec", "rules") or ()), 1, type="integer"),
        Column("Sticky", _at("spec", "sticky"), 1),
    ),
    "ApiKey": (
        NAME,
        Column("Prefix", _at("spec", "prefix"), description="the secret's first characters"),
        Column("Status", _key_status, description="Usable, or the reason why not"),
        Column("Models", _models_allowed),
        Column("Requests", _at("status", "usage", "requests"), type="integer"),
        Column("Tokens", _key_tokens, type="integer", description="prompt and output"),
        Column("Budget", _key_budget, description="tokens used in this period of those allowed"),
        Column("Last-Used", _key_last_used),
        AGE,
        Column("Priority", _at("spec", "priority"), 1, type="integer"),
        Column("RPM", _at("spec", "limits", "requestsPerMinute"), 1, type="integer"),
        Column("TPM", _at("spec", "limits", "tokensPerMinute"), 1, type="integer"),
        Column("Concurrent", _at("spec", "limits", "concurrentRequests"), 1, type="integer"),
        Column("Expires", _at("spec", "expires"), 1),
        Column("Isolation", _at("spec", "cacheIsolation"), 1),
    ),
    "Event": (
        Column("Last Seen", _event_seen),
        Column("Type", _at("type")),
        Column("Reason", _at("reason")),
        Column("Object", _event_object),
        Column("Message", _at("message")),
        Column("Count", _at("count"), 1, type="integer"),
        Column("Name", _at("metadata", "name"), 1, format="name"),
    ),
}
