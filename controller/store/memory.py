"""The store without files: for tests, demos and short-lived fleets. All is lost at exit."""

from collections.abc import AsyncIterator

from controller.store.base import Change, Page, Record, StoreError, Value
from controller.store.feed import Feed
from controller.store.table import HISTORY_CHANGES, Table, Write, encode_value, to_record


class MemoryStore:
    """Implements `Store`; belongs to one event loop."""

    def __init__(self, *, history_changes: int = HISTORY_CHANGES) -> None:
        self._table = Table(history_changes)
        self._feed = Feed(self._table)
        self._closed = False

    async def get(self, key: str) -> Record | None:
        """Return one record, or None."""
        entry = self._table.find(key)
        return None if entry is None else to_record(key, entry)

    async def list(self, prefix: str, *, limit: int = 0, after_key: str | None = None) -> Page:
        """Return the records under a prefix, sorted by key."""
        return self._table.page(prefix, limit=limit, after_key=after_key)

    async def create(self, key: str, value: Value) -> Record:
        """Write a new key. Raises KeyExistsError."""
        return self._write(Write(key, encode_value(value)))

    async def update(self, key: str, value: Value, *, expected_revision: int) -> Record:
        """Replace a value. Raises KeyNotFoundError, RevisionConflictError."""
        return self._write(Write(key, encode_value(value), expected_revision))

    async def delete(self, key: str, *, expected_revision: int) -> Record:
        """Remove a key. Raises KeyNotFoundError, RevisionConflictError."""
        return self._write(Write(key, None, expected_revision))

    async def revision(self) -> int:
        """Return the newest revision."""
        return self._table.revision

    async def compact(self, revision: int) -> None:
        """Forget history up to `revision`."""
        self._table.compact(revision)
        self._feed.wake()

    def watch(self, prefix: str, *, after_revision: int) -> AsyncIterator[Change]:
        """Yield every change after a revision until closed."""
        return self._feed.watch(prefix, after_revision)

    async def close(self) -> None:
        """End all watches."""
        self._closed = True
        self._feed.close()

    def _write(self, write: Write) -> Record:
        if self._closed:
            raise StoreError("the store is closed")
        draft = self._table.draft()
        step = draft.add(write)
        self._table.apply(draft.steps)
        self._feed.wake()
        return to_record(step.key, step.entry)
