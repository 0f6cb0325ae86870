"""The embedded store: a table in memory in front of a SQLite file.

Reads are answered from memory. Writes wait in line; a task takes all that wait, decides them
one after the other, has one thread commit them in a single flushed transaction, and only then
makes them current, answers the callers and wakes the watches. So what was acknowledged is on
disk, and what is visible was acknowledged.
"""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from controller.store.base import (
    Change,
    FutureRevisionError,
    Page,
    Record,
    StoreError,
    Value,
)
from controller.store.database import Database
from controller.store.feed import Feed
from controller.store.table import (
    HISTORY_CHANGES,
    Draft,
    Step,
    Table,
    Write,
    encode_value,
    to_record,
)

_BATCH_WRITES = 256


@dataclass(frozen=True, slots=True)
class _Asked:
    """A write in line and who waits for it."""

    write: Write
    answer: asyncio.Future[Record]


class _Writer:
    """Takes the writes in line, batch by batch, through disk to the table."""

    def __init__(self, database: Database, table: Table, feed: Feed) -> None:
        self._database, self._table, self._feed = database, table, feed
        self._line: asyncio.Queue[_Asked | None] = asyncio.Queue()

    async def ask(self, write: Write) -> Record:
        """Put a write in line and return its outcome."""
        answer: asyncio.Future[Record] = asyncio.get_running_loop().create_future()
        self._line.put_nowait(_Asked(write, answer))
        return await answer

    def finish(self) -> None:
        """Let `run` return once what is in line now is done."""
        self._line.put_nowait(None)

    async def run(self, thread: ThreadPoolExecutor) -> None:
        """Write until finished; `thread` is the only one that touches the file."""
        last = False
        while not last:
            asked = [await self._line.get()]
            while asked[-1] is not None and len(asked) < _BATCH_WRITES and not self._line.empty():
                asked.append(self._line.get_nowait())
            last = asked[-1] is None
            batch = [item for item in asked if item is not None]
            try:
                await self._write(batch, thread)
            except Exception as fault:  # noqa: BLE001 - task root: every caller gets an answer
                _fail(batch, StoreError(f"the write failed: {fault}"))

    async def _write(self, batch: Sequence[_Asked], thread: ThreadPoolExecutor) -> None:
        draft = self._table.draft()
        outcomes = [(item, _decide(draft, item)) for item in batch if not item.answer.done()]
        if draft.steps:
            try:
                await self._make_durable(draft.steps, thread)
            except (sqlite3.Error, OSError) as fault:
                _fail(batch, StoreError(f"cannot write to {self._database.path}: {fault}"))
                return
            self._table.apply(draft.steps)
        # Refusals wait for the commit too: whoever is told of a conflict can read the winner.
        for item, outcome in outcomes:
            if item.answer.done():
                continue
            if isinstance(outcome, Step):
                item.answer.set_result(to_record(outcome.key, outcome.entry))
            else:
                item.answer.set_exception(outcome)
        self._feed.wake()

    async def _make_durable(self, steps: Sequence[Step], thread: ThreadPoolExecutor) -> None:
        loop = asyncio.get_running_loop()
        commit = self._database.commit
        await loop.run_in_executor(thread, commit, steps, self._table.compacted)


class SqliteStore:
    """Implements `Store`; belongs to the event loop that opened it."""

    def __init__(self, database: Database, table: Table, thread: ThreadPoolExecutor) -> None:
        """Use `open` instead."""
        self._database, self._table, self._thread = database, table, thread
        self._feed = Feed(table)
        self._closed = False
        self._writer = _Writer(database, table, self._feed)
        self._writing = asyncio.create_task(self._writer.run(thread), name="store-writer")

    @classmethod
    async def open(cls, path: Path, *, history_changes: int = HISTORY_CHANGES) -> "SqliteStore":
        """Open or create the file. Raises: StoreUnreadableError, StoreInUseError, OSError."""
        thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store")
        loop = asyncio.get_running_loop()
        with ExitStack() as undo:
            undo.callback(thread.shutdown, wait=False)
            database = await loop.run_in_executor(thread, Database, path)
            undo.callback(database.close)
            loaded = await loop.run_in_executor(thread, database.load)
            undo.pop_all()
        table = Table(history_changes)
        table.load(loaded.entries, loaded.steps, loaded.revision)
        return cls(database, table, thread)

    async def get(self, key: str) -> Record | None:
        """Return one record, or None."""
        entry = self._table.find(key)
        return None if entry is None else to_record(key, entry)

    async def list(self, prefix: str, *, limit: int = 0, after_key: str | None = None) -> Page:
        """Return the records under a prefix, sorted by key."""
        return self._table.page(prefix, limit=limit, after_key=after_key)

    async def create(self, key: str, value: Value) -> Record:
        """Write a new key. Raises KeyExistsError."""
        return await self._ask(Write(key, encode_value(value)))

    async def update(self, key: str, value: Value, *, expected_revision: int) -> Record:
        """Replace a value. Raises KeyNotFoundError, RevisionConflictError."""
        return await self._ask(Write(key, encode_value(value), expected_revision))

    async def delete(self, key: str, *, expected_revision: int) -> Record:
        """Remove a key. Raises KeyNotFoundError, RevisionConflictError."""
        return await self._ask(Write(key, None, expected_revision))

    async def revision(self) -> int:
        """Return the newest revision."""
        return self._table.revision

    async def compact(self, revision: int) -> None:
        """Forget history up to `revision`, on disk too. Raises: FutureRevisionError."""
        if revision > self._table.revision:
            raise FutureRevisionError(f"revision {revision} is newer than {self._table.revision}")
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._thread, self._database.commit, (), revision)
        self._table.compact(revision)
        self._feed.wake()

    def watch(self, prefix: str, *, after_revision: int) -> AsyncIterator[Change]:
        """Yield every change after a revision until closed."""
        return self._feed.watch(prefix, after_revision)

    async def close(self) -> None:
        """Finish the writes in line, end all watches and release the files."""
        if self._closed:
            return
        self._closed = True
        self._writer.finish()
        await self._writing
        self._feed.close()
        await asyncio.get_running_loop().run_in_executor(self._thread, self._database.close)
        self._thread.shutdown()

    async def _ask(self, write: Write) -> Record:
        if self._closed:
            raise StoreError("the store is closed")
        return await self._writer.ask(write)


def _decide(draft: Draft, item: _Asked) -> Step | StoreError:
    try:
        return draft.add(item.write)
    except StoreError as refusal:
        return refusal


def _fail(asked: Sequence[_Asked], fault: StoreError) -> None:
    for item in asked:
        if not item.answer.done():
            item.answer.set_exception(fault)
