"""List-and-watch as values: what a source of objects offers and what its watch says."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

RawObject = dict[str, Any]


class WatchType(StrEnum):
    """What a watch line tells."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"
    ERROR = "ERROR"


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """One line of a watch."""

    type: WatchType
    object: RawObject


@dataclass(frozen=True, slots=True)
class ObjectList:
    """A consistent list and the version to watch from."""

    items: tuple[RawObject, ...]
    resource_version: str
    continue_token: str = ""
    remaining: int = 0


class ObjectSource(Protocol):
    """Where an informer lists and watches: the registry in-process, or the API over HTTP."""

    async def list_objects(
        self, plural: str, *, label_selector: str = "", field_selector: str = ""
    ) -> ObjectList:
        """Return all matching objects. Raises ApiError, OSError."""
        ...

    def watch_objects(
        self,
        plural: str,
        *,
        resource_version: str,
        label_selector: str = "",
        field_selector: str = "",
    ) -> AsyncIterator[WatchEvent]:
        """Yield changes after a version until the source ends the watch.

        Raises: ApiError with code 410 when the version is too old; OSError on a lost link.
        """
        ...
