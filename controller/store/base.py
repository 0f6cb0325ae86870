"""The store's contract: one key space, one growing revision, compare-and-swap, watch.

Values are JSON-shaped mappings. Keys are `plural/name`. Every successful write, a delete
included, takes the next revision of the whole store. Called by the registry only. Every
backend passes `tests/conformance`.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

Value = dict[str, Any]


class StoreError(Exception):
    """Base of the store's faults."""


class KeyExistsError(StoreError):
    """The key to create is taken."""


class KeyNotFoundError(StoreError):
    """The key to change does not exist."""


class RevisionConflictError(StoreError):
    """The key changed since the caller read it; `current` is its revision now."""

    def __init__(self, key: str, expected: int, current: int) -> None:
        super().__init__(f"{key} is at revision {current}, not {expected}")
        self.key, self.expected, self.current = key, expected, current


class CompactedError(StoreError):
    """The history asked for is gone; the caller must list again."""

    def __init__(self, asked: int, oldest: int) -> None:
        super().__init__(f"revision {asked} is older than the oldest kept, {oldest}")
        self.asked, self.oldest = asked, oldest


class FutureRevisionError(StoreError):
    """A watch was asked to start after a revision that does not exist yet."""


class StoreUnreadableError(StoreError):
    """The files cannot be trusted; starting empty would lose what was declared."""


@dataclass(frozen=True, slots=True)
class Record:
    """One value and the revision of its last write."""

    key: str
    value: Value
    revision: int


@dataclass(frozen=True, slots=True)
class Page:
    """Part of a list: sorted by key, consistent at `revision`; `last_key` starts the next page."""

    records: tuple[Record, ...]
    revision: int
    last_key: str | None = None
    remaining: int = 0


class ChangeType(StrEnum):
    """What a write did."""

    PUT = "put"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class Change:
    """One write in revision order. `previous` is the value before it, None for a creation."""

    type: ChangeType
    record: Record
    previous: Record | None


class Store(Protocol):
    """Versioned storage."""

    async def get(self, key: str) -> Record | None:
        """Return one record, or None."""
        ...

    async def list(self, prefix: str, *, limit: int = 0, after_key: str | None = None) -> Page:
        """Return records whose keys start with `prefix`, sorted; limit 0 means all."""
        ...

    async def create(self, key: str, value: Value) -> Record:
        """Write a new key. Raises KeyExistsError."""
        ...

    async def update(self, key: str, value: Value, *, expected_revision: int) -> Record:
        """Replace a value. Raises KeyNotFoundError, RevisionConflictError."""
        ...

    async def delete(self, key: str, *, expected_revision: int) -> Record:
        """Remove a key; the record returned holds the last value and the delete's revision.

        Raises: KeyNotFoundError, RevisionConflictError.
        """
        ...

    async def revision(self) -> int:
        """Return the newest revision."""
        ...

    async def compact(self, revision: int) -> None:
        """Forget history up to `revision`; the current values stay."""
        ...

    def watch(self, prefix: str, *, after_revision: int) -> AsyncIterator[Change]:
        """Yield every change after a revision, in order and without gaps, until closed.

        Raises, at the first step: CompactedError, FutureRevisionError. A reader that falls
        behind the kept history gets CompactedError later.
        """
        ...

    async def close(self) -> None:
        """End all watches and release the files."""
        ...
