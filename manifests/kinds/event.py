"""The `Event` kind: what happened to an object and why.

It has the fields of Kubernetes' core/v1 Event, which is how `kubectl describe` reads it.
"""

from typing import Literal

from pydantic import Field

from manifests.kinds.meta import FleetObject, Reported


class ObjectReference(Reported):
    """The object an event is about."""

    kind: str = ""
    name: str = ""
    namespace: str = ""
    uid: str = ""
    api_version: str = ""


class EventSource(Reported):
    """Which part of the fleet saw it."""

    component: str = ""
    host: str = ""


class Event(FleetObject):
    """Something that happened; repeats raise `count` instead of adding objects."""

    kind: Literal["Event"] = "Event"
    involved_object: ObjectReference = Field(default_factory=ObjectReference)
    type: Literal["Normal", "Warning"] = "Normal"
    reason: str = ""
    message: str = ""
    count: int = 1
    first_timestamp: str = ""
    last_timestamp: str = ""
    source: EventSource = Field(default_factory=EventSource)
