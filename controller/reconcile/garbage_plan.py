"""Which objects have outlived their reason to be. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from manifests.event import Event
from manifests.meta import API_VERSION, FleetObject, OwnerReference
from manifests.scheme import BY_NAME
from manifests.times import parse_time


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether to delete an object, and if not yet, when to look again. Units: seconds."""

    delete: bool
    look_again_seconds: float | None = None


def owner_plural(owner: OwnerReference) -> str | None:
    """Return the plural of an owner's kind, or None for a kind that is not ours to judge."""
    kind = BY_NAME.get(owner.kind) if owner.api_version == API_VERSION else None
    return None if kind is None else kind.plural


def plan_garbage(obj: FleetObject, alive: Mapping[str, bool]) -> Verdict:
    """Return the verdict on an object with owners; `alive` tells of each owner's uid.

    It goes when every owner is gone. An owner of a kind we do not know counts as alive.
    """
    owners: Sequence[OwnerReference] = obj.metadata.owner_references
    if not owners or obj.metadata.deletion_timestamp is not None:
        return Verdict(delete=False)
    gone = all(
        owner_plural(owner) is not None and not alive.get(owner.uid, True) for owner in owners
    )
    return Verdict(delete=gone)


def plan_event_expiry(event: Event, ttl_seconds: float, now_epoch_seconds: float) -> Verdict:
    """Return whether an Event has been kept long enough since it last happened."""
    stamp = parse_time(event.last_timestamp) or parse_time(event.metadata.creation_timestamp or "")
    if stamp is None:
        return Verdict(delete=False)
    left_seconds = stamp + ttl_seconds - now_epoch_seconds
    if left_seconds <= 0:
        return Verdict(delete=True)
    return Verdict(delete=False, look_again_seconds=left_seconds)
