"""The SQLite file: its schema, its checks and its commits. Blocking; one thread at a time.

Owns what is on disk and nothing that is decided: `sqlite.py` hands it accepted steps. It never
replaces, repairs or empties a file that it cannot trust.
"""

import contextlib
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from controller.store.base import ChangeType, StoreUnreadableError
from controller.store.claim import Claim
from controller.store.table import Entry, Step

SCHEMA_VERSION = 1
# "mlxf": tells our files from other programs' databases.
APPLICATION_ID = 0x6D6C7866

_SCHEMA = """
CREATE TABLE progress (id INTEGER PRIMARY KEY CHECK (id = 1), revision INTEGER NOT NULL,
    compacted INTEGER NOT NULL);
INSERT INTO progress VALUES (1, 0, 0);
CREATE TABLE entries (key TEXT PRIMARY KEY, revision INTEGER NOT NULL, value TEXT NOT NULL,
    digest BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE changes (revision INTEGER PRIMARY KEY, type TEXT NOT NULL, key TEXT NOT NULL,
    value TEXT NOT NULL, previous TEXT, previous_revision INTEGER, digest BLOB NOT NULL);
"""


@dataclass(frozen=True, slots=True)
class Loaded:
    """Everything a file holds."""

    entries: dict[str, Entry]
    steps: tuple[Step, ...]
    revision: int


class Database:
    """An open, checked file. May be used from any one thread at a time."""

    def __init__(self, path: Path) -> None:
        """Open or create the file. Raises: StoreUnreadableError, StoreInUseError, OSError."""
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._claim = Claim(path)
        with contextlib.ExitStack() as undo:
            undo.callback(self._claim.release)
            self._connection = self._open()
            undo.pop_all()

    def load(self) -> Loaded:
        """Return what the file holds. Raises: StoreUnreadableError."""
        try:
            loaded = self._load()
        except (sqlite3.Error, TypeError, ValueError) as fault:
            raise self._unreadable(str(fault)) from fault
        self._check_watermark(loaded.revision)
        self._claim.write_watermark(loaded.revision)
        return loaded

    def commit(self, steps: Sequence[Step], forget_before: int) -> None:
        """Make steps durable in one transaction, and drop changes up to `forget_before`.

        Raises: sqlite3.Error, OSError; then nothing of it is stored.
        """
        newest = steps[-1].revision if steps else None
        # Leaving the block commits, or rolls back on any fault.
        with self._connection as connection:
            connection.execute("BEGIN IMMEDIATE")
            for step in steps:
                _write_step(connection, step)
            connection.execute(
                "UPDATE progress SET revision = coalesce(?, revision),"
                " compacted = max(compacted, ?)",
                (newest, forget_before),
            )
            connection.execute("DELETE FROM changes WHERE revision <= ?", (forget_before,))
        # The commit stands whether or not the guard beside it could be renewed.
        if newest is not None:
            with contextlib.suppress(OSError):
                self._claim.write_watermark(newest)

    def close(self) -> None:
        """Close the file and give the lock back."""
        self._connection.close()
        self._claim.release()

    def _open(self) -> sqlite3.Connection:
        present = self.path.exists() and self.path.stat().st_size > 0
        if not present and self._claim.read_watermark() is not None:
            raise StoreUnreadableError(
                f"{self.path} is missing or empty, but {self._claim.watermark_path.name} says "
                f"that it held data. Restore it from a backup, or delete "
                f"{self._claim.watermark_path} to start empty on purpose"
            )
        connection = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
        with contextlib.ExitStack() as undo:
            undo.callback(connection.close)
            self._prepare(connection, present)
            undo.pop_all()
        return connection

    def _prepare(self, connection: sqlite3.Connection, present: bool) -> None:
        try:
            connection.execute("PRAGMA trusted_schema = OFF")
            # A process that died while creating the file left one without a schema.
            present = present and not self._is_blank(connection)
            if present:
                self._check(connection)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            # macOS: fsync does not reach the drive unless asked for by this.
            connection.execute("PRAGMA fullfsync = ON")
            if not present:
                _create(connection)
        except sqlite3.Error as fault:
            raise self._unreadable(str(fault)) from fault

    def _is_blank(self, connection: sqlite3.Connection) -> bool:
        tables = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
        return tables == 0 and self._claim.read_watermark() is None

    def _check(self, connection: sqlite3.Connection) -> None:
        application = connection.execute("PRAGMA application_id").fetchone()[0]
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if application != APPLICATION_ID:
            raise StoreUnreadableError(f"{self.path} is a database, but not one of mlxfleet")
        if version > SCHEMA_VERSION:
            raise StoreUnreadableError(
                f"{self.path} was written by a newer mlxfleet (format {version}, this one reads "
                f"{SCHEMA_VERSION}); start the newer version or restore an older backup"
            )
        found = [row[0] for row in connection.execute("PRAGMA integrity_check(3)")]
        if found != ["ok"]:
            raise self._unreadable("; ".join(str(line) for line in found))

    def _load(self) -> Loaded:
        connection = self._connection
        row = connection.execute("SELECT revision, compacted FROM progress").fetchone()
        if row is None:
            raise self._unreadable("the progress row is gone")
        revision, compacted = row
        entries: dict[str, Entry] = {}
        for key, at, value, digest in connection.execute(
            "SELECT key, revision, value, digest FROM entries"
        ):
            if digest != _digest(key, str(at), value) or at > revision:
                raise self._unreadable(f"the entry {key!r} does not match its checksum")
            entries[key] = Entry(value, at)
        steps = tuple(self._read_steps(connection))
        expected = list(range(compacted + 1, revision + 1))
        if [step.revision for step in steps] != expected:
            raise self._unreadable("the change log has gaps")
        return Loaded(entries, steps, revision)

    def _read_steps(self, connection: sqlite3.Connection) -> list[Step]:
        steps: list[Step] = []
        for at, kind, key, value, before, before_at, digest in connection.execute(
            "SELECT revision, type, key, value, previous, previous_revision, digest"
            " FROM changes ORDER BY revision"
        ):
            if digest != _digest(key, str(at), kind, value, before or "", str(before_at)):
                raise self._unreadable(f"change {at} does not match its checksum")
            previous = None if before is None else Entry(before, before_at)
            steps.append(Step(ChangeType(kind), key, Entry(value, at), previous))
        return steps

    def _check_watermark(self, revision: int) -> None:
        acknowledged = self._claim.read_watermark()
        if acknowledged is not None and acknowledged > revision:
            raise StoreUnreadableError(
                f"{self.path} is at revision {revision}, but writes up to {acknowledged} were "
                f"acknowledged: its write-ahead log was lost or damaged, or an older copy was put "
                f"in its place. Restore the newest backup, or delete "
                f"{self._claim.watermark_path} to accept the loss"
            )

    def _unreadable(self, detail: str) -> StoreUnreadableError:
        return StoreUnreadableError(
            f"{self.path} is damaged ({detail}); it was left as it is. Restore a backup, or move "
            f"it and its -wal, -shm and .acked files away to start empty"
        )


def _create(connection: sqlite3.Connection) -> None:
    connection.executescript(
        f"BEGIN; {_SCHEMA} PRAGMA application_id = {APPLICATION_ID};"
        f" PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;"
    )


def _write_step(connection: sqlite3.Connection, step: Step) -> None:
    at, text = step.revision, step.entry.text
    before = None if step.previous is None else step.previous.text
    before_at = None if step.previous is None else step.previous.revision
    digest = _digest(step.key, str(at), step.type.value, text, before or "", str(before_at))
    connection.execute(
        "INSERT INTO changes VALUES (?, ?, ?, ?, ?, ?, ?)",
        (at, step.type.value, step.key, text, before, before_at, digest),
    )
    if step.type is ChangeType.DELETE:
        connection.execute("DELETE FROM entries WHERE key = ?", (step.key,))
    else:
        connection.execute(
            "INSERT OR REPLACE INTO entries VALUES (?, ?, ?, ?)",
            (step.key, at, text, _digest(step.key, str(at), text)),
        )


def _digest(*parts: str) -> bytes:
    """Return a checksum; SQLite's own check does not cover the contents of rows."""
    return blake2b("\0".join(parts).encode("utf-8", "surrogatepass"), digest_size=8).digest()
