"""Deleting what nobody owns any more.

Owns deletes of dependents. An owner missing from the local copy is looked up in the API before
anything is deleted on its account. Keys are `plural/name`.
"""

from collections.abc import Mapping

from controller.reconcile.garbage_plan import is_garbage, owner_plural
from controller.runtime.loop import Result
from controller.runtime.objects import Objects
from manifests.kinds.meta import OwnerReference
from manifests.wire.informer import Informer
from manifests.wire.status import ApiError


class GarbageCollector:
    """One dependent at a time."""

    def __init__(self, objects: Objects, informers: Mapping[str, Informer]) -> None:
        """Watch over the objects of these informers, by plural."""
        self._objects, self._informers = objects, informers

    def keys(self) -> list[str]:
        """Return every object that could be garbage one day."""
        return [
            f"{plural}/{name}"
            for plural, informer in self._informers.items()
            for name, obj in informer.objects.items()
            if obj.metadata.owner_references
        ]

    def dependents(self, plural: str, name: str) -> list[str]:
        """Return the keys of objects that name an object as their owner."""
        return [
            f"{own_plural}/{own_name}"
            for own_plural, informer in self._informers.items()
            for own_name, obj in informer.objects.items()
            for owner in obj.metadata.owner_references
            if owner.name == name and owner_plural(owner) == plural
        ]

    async def reconcile(self, key: str) -> Result:
        """Delete one object if its reason to be is gone."""
        plural, _, name = key.partition("/")
        obj = self._informers[plural].objects.get(name)
        if obj is None:
            return Result()
        owners = obj.metadata.owner_references
        alive = {owner.uid: await self._is_alive(owner) for owner in owners}
        if is_garbage(obj, alive):
            await self._delete(plural, name, obj.metadata.uid)
        return Result()

    async def _is_alive(self, owner: OwnerReference) -> bool:
        plural = owner_plural(owner)
        if plural is None:
            return True
        known = self._informers[plural].objects.get(owner.name)
        if known is not None and known.metadata.uid == owner.uid:
            return True
        try:
            stored = await self._objects.get(plural, owner.name)
        except ApiError as fault:
            if fault.code == 404:
                return False
            raise
        meta = stored.get("metadata") or {}
        return bool(meta.get("uid") == owner.uid)

    async def _delete(self, plural: str, name: str, uid: str | None) -> None:
        try:
            await self._objects.delete(plural, name, uid=uid)
        except ApiError as fault:
            if fault.code not in {404, 409}:
                raise
