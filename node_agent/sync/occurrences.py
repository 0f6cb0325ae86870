"""Events worth telling people: what changed between two looks at the pool.

Pure. The names of events are made from what they are about, so a repeat finds the first and
raises its count. Called by the sync.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from manifests.engine import EnginePhase
from manifests.event import ObjectReference
from manifests.meta import API_VERSION
from manifests.times import format_time
from manifests.units import format_bytes
from manifests.wire.listwatch import RawObject
from node_agent.pool.base import EngineView


@dataclass(frozen=True, slots=True)
class Seen:
    """What was last seen of one engine."""

    phase: EnginePhase
    restarts: int


@dataclass(frozen=True, slots=True)
class Occurrence:
    """Something that happened to an object."""

    kind: str
    name: str
    uid: str
    type: Literal["Normal", "Warning"]
    reason: str
    message: str


def look(views: Iterable[EngineView]) -> dict[str, Seen]:
    """Return what to compare the next look with, by uid."""
    return {view.want.uid: Seen(view.phase, view.restarts) for view in views}


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
    found: list[Occurrence] = []
    changed = seen is None or seen.phase is not view.phase
    if view.phase is EnginePhase.FAILED and changed:
        found.append(_about(view, "Warning", view.reason or "EngineFailed", view.message))
    if seen is not None and view.restarts > seen.restarts:
        why = f": {view.message}" if view.message else ""
        found.append(_about(view, "Warning", "Restarted", f"restart {view.restarts}{why}"))
    if view.phase is EnginePhase.READY and changed:
        size = (
            "" if view.files is None else f", {format_bytes(view.files.weights_bytes)} of weights"
        )
        found.append(_about(view, "Normal", "Ready", f"serving {view.want.spec.model}{size}"))
    return found


def _about(
    view: EngineView, type_: Literal["Normal", "Warning"], reason: str, message: str
) -> Occurrence:
    return Occurrence("Engine", view.want.name, view.want.uid, type_, reason, message)


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
        "count": 1,
        "firstTimestamp": stamp,
        "lastTimestamp": stamp,
        "source": {"component": "node-agent", "host": node},
    }


def plan_repeat(existing: RawObject, event: RawObject) -> RawObject:
    """Return the patch that counts a repeat."""
    count = existing.get("count")
    return {
        "count": (count if isinstance(count, int) else 1) + 1,
        "lastTimestamp": event["lastTimestamp"],
        "message": event["message"],
    }
