"""Which objects have outlived their reason to be. Pure."""

from collections.abc import Mapping, Sequence

from manifests.kinds.meta import API_VERSION, FleetObject, OwnerReference
from manifests.kinds.scheme import BY_NAME


def owner_plural(owner: OwnerReference) -> str | None:
    """Return the plural of an owner's kind, or None for a kind that is not ours to judge."""
    kind = BY_NAME.get(owner.kind) if owner.api_version == API_VERSION else None
    return None if kind is None else kind.plural


def is_garbage(obj: FleetObject, alive: Mapping[str, bool]) -> bool:
    """Return whether an object with owners may go; `alive` tells of each owner's uid.

    It goes when every owner is gone. An owner of a kind we do not know counts as alive.
    """
    owners: Sequence[OwnerReference] = obj.metadata.owner_references
    if not owners or obj.metadata.deletion_timestamp is not None:
        return False
    return all(
        owner_plural(owner) is not None and not alive.get(owner.uid, True) for owner in owners
    )
