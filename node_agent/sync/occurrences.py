"""Events worth telling people: what changed between two looks at the pool.

Pure. The names of events are made from what they are about, so a repeat finds the first and
raises its count. Called by the sync.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from manifests.kinds.engine import EnginePhase
from manifests.kinds.event import ObjectReference
from manifests.kinds.meta import API_VERSION, Condition, ConditionStatus, find_condition
from manifests.kinds.node import PressureLevel
from manifests.times import format_time
from manifests.units import format_bytes
from manifests.wire.listwatch import RawObject
from node_agent.memory.enforcer_plan import AbortRow, Action, Evict, ReclaimCache, ShrinkHotCache
from node_agent.pool.base import EngineView
from node_agent.pool.lifecycle import Reason

# Conditions of a node whose coming true a person should find among the events.
_FAILURES = {Reason.INSUFFICIENT_MEMORY.value: "LoadRefused"}
_TOLD_CONDITIONS = ("WiredLimitLow", "PanicHistory", "RebootNeeded", "CacheDegraded")


@dataclass(frozen=True, slots=True)
class Seen:
    """What was last seen of one engine."""

    phase: EnginePhase
    restarts: int
    evicted: bool = False
    freed_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Occurrence:
    """Something that happened to an object, `count` times."""

    kind: str
    name: str
    uid: str
    type: Literal["Normal", "Warning"]
    reason: str
    message: str
    count: int = 1

    @property
    def key(self) -> tuple[str, str, str]:
        """What makes it a repeat of another."""
        return (self.uid, self.type, self.reason)


@dataclass(frozen=True, slots=True)
class Subject:
    """The object events are about."""

    kind: str
    name: str
    uid: str


def look(views: Iterable[EngineView]) -> dict[str, Seen]:
    """Return what to compare the next look with, by uid."""
    return {
        view.want.uid: Seen(view.phase, view.restarts, view.evicted, view.freed_bytes)
        for view in views
    }


def plan_occurrences(
    before: Mapping[str, Seen], views: Iterable[EngineView]
) -> tuple[Occurrence, ...]:
    """Return what happened since the last look."""
    found: list[Occurrence] = []
    for view in views:
        seen = before.get(view.want.uid)
        found.extend(_of_engine(seen, view))
    return tuple(found)


def _of_engine(seen: Seen | None, view: EngineView) -> list[Occurrence]:
    return [*_of_its_life(seen, view), *_of_its_memory(seen, view)]


def _of_its_life(seen: Seen | None, view: EngineView) -> list[Occurrence]:
    """Tell of failures, restarts and readiness."""
    found: list[Occurrence] = []
    changed = seen is None or seen.phase is not view.phase
    if view.phase is EnginePhase.FAILED and changed:
        reason = _FAILURES.get(view.reason, view.reason or "EngineFailed")
        found.append(_about(view, "Warning", reason, view.message))
    if seen is not None and view.restarts > seen.restarts:
        why = f": {view.message}" if view.message else ""
        found.append(_about(view, "Warning", "Restarted", f"restart {view.restarts}{why}"))
    if view.phase is EnginePhase.READY and changed:
        size = (
            "" if view.files is None else f", {format_bytes(view.files.weights_bytes)} of weights"
        )
        found.append(_about(view, "Normal", "Ready", f"serving {view.want.spec.model}{size}"))
    return found


def _of_its_memory(seen: Seen | None, view: EngineView) -> list[Occurrence]:
    """Tell of an unload and what it gave back."""
    found: list[Occurrence] = []
    if view.evicted and (seen is None or not seen.evicted):
        found.append(_about(view, "Normal", view.reason or "Evicted", f"unloaded: {view.message}"))
    freed = view.freed_bytes
    if freed is not None and seen is not None and seen.freed_bytes is None:
        words = f"its process is gone and gave {format_bytes(freed)} back"
        found.append(_about(view, "Normal", "Unloaded", words))
    return found


def _about(
    view: EngineView, type_: Literal["Normal", "Warning"], reason: str, message: str
) -> Occurrence:
    return Occurrence("Engine", view.want.name, view.want.uid, type_, reason, message)


def plan_action_occurrence(action: Action, subject: Subject) -> Occurrence | None:
    """Return the event of one measure of the enforcer; `subject` is the engine, or the node.

    An eviction is told by the engine's view, whoever began it.
    """
    match action:
        case Evict():
            return None
        case AbortRow(message=message):
            return _of(subject, "Warning", "PrefillAborted", message)
        case ReclaimCache():
            return _of(subject, "Normal", "Reclaimed", "asked to give cached buffers back")
        case ShrinkHotCache(target_bytes=target):
            words = f"the hot KV cache was cut to {format_bytes(target)}"
            return _of(subject, "Normal", "HotCacheShrunk", words)


def plan_level_occurrence(
    before: PressureLevel, after: PressureLevel, words: str, node: Subject
) -> Occurrence | None:
    """Return the event of admission being paused or taken up again, if it was."""
    if before is PressureLevel.OK and after is not PressureLevel.OK:
        return _of(node, "Warning", "AdmissionPaused", f"memory pressure is {after.value}: {words}")
    if before is not PressureLevel.OK and after is PressureLevel.OK:
        return _of(node, "Normal", "AdmissionResumed", f"memory pressure is over: {words}")
    return None


def plan_condition_occurrences(
    before: tuple[Condition, ...], after: tuple[Condition, ...], node: Subject
) -> tuple[Occurrence, ...]:
    """Return the events of conditions that have just come true."""
    found = []
    for type_ in _TOLD_CONDITIONS:
        old, new = find_condition(before, type_), find_condition(after, type_)
        held = old is not None and old.status is ConditionStatus.TRUE
        if new is not None and new.status is ConditionStatus.TRUE and not held:
            found.append(_of(node, "Warning", type_, new.message))
    return tuple(found)


def merge_occurrence(waiting: Iterable[Occurrence], new: Occurrence) -> tuple[Occurrence, ...]:
    """Return the events to post with one more, a repeat of one that waits counted into it."""
    kept = list(waiting)
    for at, old in enumerate(kept):
        if old.key == new.key:
            kept[at] = replace(new, count=old.count + new.count)
            return tuple(kept)
    return (*kept, new)


def _of(
    subject: Subject, type_: Literal["Normal", "Warning"], reason: str, message: str
) -> Occurrence:
    return Occurrence(subject.kind, subject.name, subject.uid, type_, reason, message)


def build_event(occurrence: Occurrence, node: str, now: float) -> RawObject:
    """Return the object of a first occurrence; its name is the same for every repeat."""
    key = f"{occurrence.uid}/{occurrence.type}/{occurrence.reason}"
    digest = hashlib.sha256(key.encode()).hexdigest()[:16]
    about = ObjectReference(
        kind=occurrence.kind, name=occurrence.name, uid=occurrence.uid, api_version=API_VERSION
    )
    stamp = format_time(now)
    return {
        "apiVersion": API_VERSION,
        "kind": "Event",
        "metadata": {"name": f"{occurrence.name[:200].rstrip('-.')}.{digest}"},
        "involvedObject": about.model_dump(mode="json", by_alias=True),
        "type": occurrence.type,
        "reason": occurrence.reason,
        "message": occurrence.message[:1000],
        "count": occurrence.count,
        "firstTimestamp": stamp,
        "lastTimestamp": stamp,
        "source": {"component": "node-agent", "host": node},
    }


def plan_repeat(existing: RawObject, event: RawObject) -> RawObject:
    """Return the patch that counts a repeat."""
    count = existing.get("count")
    return {
        "count": (count if isinstance(count, int) else 1) + int(event["count"]),
        "lastTimestamp": event["lastTimestamp"],
        "message": event["message"],
    }
