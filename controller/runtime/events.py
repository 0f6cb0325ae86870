"""Recording what happened to an object, as `kubectl describe` shows it.

Owns the names and counts of Events. It must never let a failure to record reach the caller:
an event is a courtesy, the work it tells of is not.
"""

import hashlib
import time
from collections.abc import Callable

import structlog

from controller.runtime.objects import Objects
from manifests.kinds.event import Event, EventSource, ObjectReference
from manifests.kinds.meta import API_VERSION, FleetObject
from manifests.kinds.scheme import dump_object
from manifests.times import format_time
from manifests.wire.status import ApiError

_LOG = structlog.get_logger(__name__)


class EventRecorder:
    """Writes Events for one component of the fleet."""

    def __init__(
        self,
        objects: Objects,
        component: str,
        *,
        host: str = "",
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`clock` tells seconds since the epoch."""
        self._objects, self._clock = objects, clock
        self._source = EventSource(component=component, host=host)

    async def record(
        self,
        about: FleetObject,
        reason: str,
        message: str,
        *,
        warning: bool = False,
    ) -> None:
        """Store that something happened; the same again raises the count of the same Event."""
        meta = about.metadata
        reference = ObjectReference(
            kind=about.kind,
            name=meta.name or "",
            uid=meta.uid or "",
            api_version=API_VERSION,
        )
        name = event_name(reference, reason, message)
        now = format_time(self._clock())
        event = Event.model_validate(
            {
                "metadata": {"name": name},
                "involvedObject": reference,
                "type": "Warning" if warning else "Normal",
                "reason": reason,
                "message": message,
                "firstTimestamp": now,
                "lastTimestamp": now,
                "source": self._source,
            }
        )
        try:
            await self._write(name, event, now)
        except (ApiError, OSError) as fault:
            _LOG.warning("event not recorded", reason=reason, about=meta.name, error=str(fault))

    async def _write(self, name: str, event: Event, now: str) -> None:
        try:
            await self._objects.create("events", dump_object(event))
        except ApiError as fault:
            if fault.code != 409:
                raise
            stored = await self._objects.get("events", name)
            count = int(stored.get("count", 1)) + 1
            await self._objects.patch("events", name, {"count": count, "lastTimestamp": now})


def event_name(about: ObjectReference, reason: str, message: str) -> str:
    """Return the name that repeats of one event share."""
    text = "\0".join((about.kind, about.uid or about.name, reason, message))
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return f"{about.name[:200] or 'fleet'}.{digest}"
