"""What controllers may do with objects, in-process or over HTTP."""

from typing import Protocol

from manifests.wire.listwatch import ObjectSource, RawObject


class Objects(ObjectSource, Protocol):
    """Typed only by kind; objects are JSON-shaped. Every method raises ApiError on refusal."""

    async def get(self, plural: str, name: str) -> RawObject:
        """Return one object; 404 when missing."""
        ...

    async def create(self, plural: str, obj: RawObject) -> RawObject:
        """Store a new object; 409 AlreadyExists when the name is taken."""
        ...

    async def replace(
        self, plural: str, name: str, obj: RawObject, *, subresource: str = ""
    ) -> RawObject:
        """Replace spec (or status with subresource="status"); 409 on a stale resourceVersion."""
        ...

    async def patch(
        self, plural: str, name: str, patch: RawObject, *, subresource: str = ""
    ) -> RawObject:
        """Apply an RFC 7386 merge patch."""
        ...

    async def delete(self, plural: str, name: str, *, uid: str | None = None) -> None:
        """Delete, or mark for deletion while finalizers remain; 409 when `uid` differs."""
        ...
