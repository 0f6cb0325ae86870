"""The SQLite file of the index: opened, checked, and its errors translated.

Owns the connections, the schema and transactions. Called by the tables over it and by the store.

Two connections: one for transactions and long reads, one for short looks. A transaction may wait
for another process, and holds its connection meanwhile; with a rollback journal a look on another
connection waits for commits only.

Not WAL: WAL maps a shared-memory file, and when a volume is unplugged, or that file is cut, the
next access kills the process with SIGBUS (tried: exit by signal 7), where a rollback journal gives
an error. Nor is it flushed: the index can always be made again from the blocks' headers, and is
checked after every exit that was not in good order.
"""

import os
import sqlite3
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from node_agent.kvcache.block_file import FILE_MODE, make_private
from node_agent.kvcache.ssd_health import TierFault, TierReason, fault_from_sqlite

SCHEMA_VERSION = 2
BUSY_SECONDS = 2.0
# A look waits for no more than a commit under way; whoever asks has running streams to serve.
LOOK_BUSY_SECONDS = 0.02
# So long a connection that is in use elsewhere is waited for before it is left to be collected.
_CLOSE_SECONDS = 1.0

_SCHEMA = """
CREATE TABLE figures (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
INSERT INTO figures VALUES ('used_bytes', 0), ('blocks', 0), ('tick', 0), ('day', 0),
    ('day_bytes', 0), ('foreign_files', 0);
CREATE TABLE blocks (
    digest BLOB PRIMARY KEY, parent BLOB NOT NULL, place INTEGER NOT NULL,
    tokens INTEGER NOT NULL, snapshots TEXT NOT NULL, fingerprint TEXT NOT NULL,
    bytes INTEGER NOT NULL, needs_parent INTEGER NOT NULL, tick INTEGER NOT NULL,
    used_at REAL NOT NULL, cuts BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE cuts (
    cut BLOB NOT NULL, digest BLOB NOT NULL, PRIMARY KEY (cut, digest)) WITHOUT ROWID;
CREATE INDEX by_age ON blocks (tick, place DESC);
CREATE INDEX by_parent ON blocks (parent, tokens);
CREATE TABLE writing (
    name TEXT PRIMARY KEY, digest BLOB NOT NULL, parent BLOB NOT NULL, owner TEXT NOT NULL,
    bytes INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE leases (
    digest BLOB NOT NULL, owner TEXT NOT NULL, number INTEGER NOT NULL, expires_at REAL NOT NULL,
    PRIMARY KEY (digest, owner, number)) WITHOUT ROWID;
CREATE TRIGGER block_in AFTER INSERT ON blocks BEGIN
    UPDATE figures SET value = value + new.bytes WHERE name = 'used_bytes';
    UPDATE figures SET value = value + 1 WHERE name = 'blocks'; END;
CREATE TRIGGER block_out AFTER DELETE ON blocks BEGIN
    UPDATE figures SET value = value - old.bytes WHERE name = 'used_bytes';
    UPDATE figures SET value = value - 1 WHERE name = 'blocks'; END;
CREATE TRIGGER writing_in AFTER INSERT ON writing BEGIN
    UPDATE figures SET value = value + new.bytes WHERE name = 'used_bytes'; END;
CREATE TRIGGER writing_out AFTER DELETE ON writing BEGIN
    UPDATE figures SET value = value - old.bytes WHERE name = 'used_bytes'; END;
"""


class Database:
    """One open index file. `fresh` tells that it was made just now and knows no blocks yet."""

    def __init__(self, path: Path) -> None:
        """Open or make the file. Raises: TierFault (INDEX when damaged), OSError."""
        self._path = path
        self._lock = threading.RLock()
        self._look_lock = threading.Lock()
        self._inode = _make_file(path)
        try:
            self._connection = _connect(path, BUSY_SECONDS)
            self._looker = _connect(path, LOOK_BUSY_SECONDS)
        except sqlite3.Error as error:
            raise fault_from_sqlite(error) from error
        try:
            for pragma in ("mmap_size=0", "synchronous=OFF", "journal_mode=TRUNCATE"):
                self._connection.execute(f"PRAGMA {pragma}").fetchall()
            self._looker.execute("PRAGMA mmap_size=0").fetchall()
            self.fresh = self._ensure_schema()
        except sqlite3.Error as error:
            self.close()
            raise fault_from_sqlite(error) from error
        except TierFault:
            self.close()
            raise

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Lend the connection inside a write transaction; undone when the body raises.

        Raises: TierFault for what SQLite refuses.
        """
        with self._lock:
            self._check_same_file()
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                yield self._connection
                self._connection.execute("COMMIT")
            except sqlite3.Error as error:
                self._undo()
                raise fault_from_sqlite(error) from error
            except BaseException:
                self._undo()
                raise

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Lend the connection for single reads. Raises: TierFault."""
        with self._lock:
            try:
                yield self._connection
            except sqlite3.Error as error:
                raise fault_from_sqlite(error) from error

    @contextmanager
    def looking(self) -> Iterator[sqlite3.Connection]:
        """Lend the connection for short reads, which see what was committed.

        Raises: TierFault; BUSY after some milliseconds.
        """
        with self._look_lock:
            try:
                yield self._looker
            except sqlite3.Error as error:
                raise fault_from_sqlite(error) from error

    def check(self) -> None:
        """Read the whole file. Raises: TierFault (INDEX) when it is damaged."""
        with self.reading() as connection:
            found = connection.execute("PRAGMA quick_check(1)").fetchone()
        if found != ("ok",):
            raise TierFault(TierReason.INDEX, f"the index is damaged: {found[0]}")

    def file_bytes(self) -> int:
        """Return the size of the index file. Raises: OSError."""
        return self._path.stat().st_size

    def close(self) -> None:
        """Close the file; what was committed stays. One that a hanging disk holds is left."""
        for lock, connection in (
            (self._look_lock, self._looker),
            (self._lock, self._connection),
        ):
            if lock.acquire(timeout=_CLOSE_SECONDS):
                try:
                    connection.close()
                finally:
                    lock.release()

    def _ensure_schema(self) -> bool:
        self._connection.execute("BEGIN IMMEDIATE")
        version = self._connection.execute("PRAGMA user_version").fetchone()[0]
        tables = self._connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        fresh = version == 0 and tables == 0
        if fresh:
            self._connection.execute("ROLLBACK")
            self._connection.executescript(
                f"BEGIN IMMEDIATE; {_SCHEMA} PRAGMA user_version={SCHEMA_VERSION}; COMMIT;"
            )
            return True
        self._connection.execute("COMMIT")
        if version != SCHEMA_VERSION:
            raise TierFault(TierReason.INDEX, f"the index has version {version}")
        return False

    def _check_same_file(self) -> None:
        """Notice that another process made the index anew; ours is then a deleted file."""
        try:
            inode = self._path.stat().st_ino
        except FileNotFoundError:
            inode = -1
        if inode != self._inode:
            raise TierFault(TierReason.INDEX, "the index was replaced; reopening it")

    def _undo(self) -> None:
        if self._connection.in_transaction:
            self._connection.rollback()


def _connect(path: Path, busy_seconds: float) -> sqlite3.Connection:
    return sqlite3.connect(
        path, timeout=busy_seconds, isolation_level=None, check_same_thread=False
    )


def delete_database(path: Path) -> None:
    """Take a damaged index away. Raises: OSError."""
    for name in (path, path.with_name(f"{path.name}-journal")):
        name.unlink(missing_ok=True)


def _make_file(path: Path) -> int:
    """Make the file with its mode before SQLite would; the journal takes the same mode.

    A file that is there is not opened: closing it would end SQLite's locks of this process.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, FILE_MODE)
    except FileExistsError:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode):
            raise TierFault(TierReason.INDEX, f"{path} is not a file") from None
        path.chmod(FILE_MODE)
        return status.st_ino
    try:
        make_private(descriptor, FILE_MODE)
        return os.fstat(descriptor).st_ino
    finally:
        os.close(descriptor)
