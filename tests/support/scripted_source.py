"""An in-memory ObjectSource that tests change by hand; watches see every change."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from manifests.kinds.api_key import hash_secret
from manifests.reading.merge import apply_merge_patch
from manifests.wire.listwatch import ObjectList, RawObject, WatchEvent, WatchType
from manifests.wire.status import ApiError


class ScriptedSource:
    """Objects by plural and name; `down` makes every call fail as a lost API does."""

    def __init__(self) -> None:
        self.down = False
        # What somebody else does just before a patch arrives.
        self.before_patch: Callable[[], None] = lambda: None
        self._version = 0
        self._objects: dict[str, dict[str, RawObject]] = {}
        self._watches: dict[str, list[asyncio.Queue[WatchEvent | None]]] = {}

    def put(self, plural: str, obj: dict[str, Any]) -> None:
        """Create or replace an object."""
        self._version += 1
        name = obj["metadata"]["name"]
        known = self._objects.setdefault(plural, {})
        kind = WatchType.MODIFIED if name in known else WatchType.ADDED
        meta = {
            "uid": f"uid-{name}",
            "creationTimestamp": "2026-11-01T00:00:00Z",
            **obj["metadata"],
            "resourceVersion": str(self._version),
        }
        known[name] = {"apiVersion": "mlxfleet.dev/v1alpha1", **obj, "metadata": meta}
        self._tell(plural, WatchEvent(kind, known[name]))

    def stored(self, plural: str, name: str) -> RawObject:
        """Return one object as it is now."""
        return self._objects[plural][name]

    def remove(self, plural: str, name: str) -> None:
        """Delete an object."""
        self._version += 1
        gone = self._objects[plural].pop(name)
        meta = {**gone["metadata"], "resourceVersion": str(self._version)}
        self._tell(plural, WatchEvent(WatchType.DELETED, {**gone, "metadata": meta}))

    def fail(self) -> None:
        """Lose the API: running watches end and every call fails."""
        self.down = True
        for queues in self._watches.values():
            for queue in queues:
                queue.put_nowait(None)

    async def list_objects(
        self, plural: str, *, label_selector: str = "", field_selector: str = ""
    ) -> ObjectList:
        """Return all objects of a plural."""
        if self.down:
            raise ConnectionRefusedError("the API is down")
        return ObjectList(tuple(self._objects.get(plural, {}).values()), str(self._version))

    async def watch_objects(
        self,
        plural: str,
        *,
        resource_version: str,
        label_selector: str = "",
        field_selector: str = "",
    ) -> AsyncIterator[WatchEvent]:
        """Yield changes until `fail`."""
        if self.down:
            raise ConnectionRefusedError("the API is down")
        queue: asyncio.Queue[WatchEvent | None] = asyncio.Queue()
        for obj in self._objects.get(plural, {}).values():
            if int(obj["metadata"]["resourceVersion"]) > int(resource_version):
                queue.put_nowait(WatchEvent(WatchType.MODIFIED, obj))
        self._watches.setdefault(plural, []).append(queue)
        while (event := await queue.get()) is not None:
            yield event
        raise ConnectionResetError("the API went away")

    async def get(self, plural: str, name: str) -> RawObject:
        """Return one object; 404 when missing."""
        if self.down:
            raise ConnectionRefusedError("the API is down")
        found = self._objects.get(plural, {}).get(name)
        if found is None:
            raise ApiError(404, f"{plural} {name} not found")
        return found

    async def patch(
        self, plural: str, name: str, patch: RawObject, *, subresource: str = ""
    ) -> RawObject:
        """Apply a merge patch, whose resourceVersion must be the newest; 409 otherwise."""
        found = await self.get(plural, name)
        self.before_patch()
        found = await self.get(plural, name)
        wanted = (patch.get("metadata") or {}).get("resourceVersion")
        if wanted not in {None, found["metadata"]["resourceVersion"]}:
            raise ApiError(409, f"{plural} {name} has changed")
        self.put(plural, apply_merge_patch(found, patch))
        return await self.get(plural, name)

    def _tell(self, plural: str, event: WatchEvent) -> None:
        for queue in self._watches.get(plural, []):
            queue.put_nowait(event)


def model(name: str, *, aliases: tuple[str, ...] = (), **status: Any) -> dict[str, Any]:
    """Return a Model as the API would send it."""
    spec = {"source": {"path": f"/models/{name}"}, "aliases": list(aliases)}
    return {"kind": "Model", "metadata": {"name": name}, "spec": spec, "status": status}


def api_key(name: str, secret: str, **spec: Any) -> dict[str, Any]:
    """Return an ApiKey as the API would send it."""
    spec = {"hash": hash_secret(secret), "prefix": secret[:8], **spec}
    return {"kind": "ApiKey", "metadata": {"name": name}, "spec": spec, "status": {}}


def route(name: str, **spec: Any) -> dict[str, Any]:
    """Return a Route as the API would send it."""
    return {"kind": "Route", "metadata": {"name": name}, "spec": spec, "status": {}}


def node(name: str, address: str) -> dict[str, Any]:
    """Return a Node as the API would send it."""
    return {"kind": "Node", "metadata": {"name": name}, "spec": {}, "status": {"address": address}}


def engine(name: str, *, of: str, on: str, **status: Any) -> dict[str, Any]:
    """Return an Engine as the API would send it."""
    spec = {"model": of, "node": on, "revision": "r1", "source": {"path": f"/models/{of}"}}
    return {"kind": "Engine", "metadata": {"name": name}, "spec": spec, "status": status}
