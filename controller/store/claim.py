"""Files beside the database: the lock that keeps a second process out, and the watermark.

The watermark is the newest revision ever acknowledged, written after each commit. At opening
it shows what an integrity check cannot: a write-ahead log that was lost, cut or damaged, or a
database that was replaced by an older copy.
"""

import contextlib
import fcntl
import os
from pathlib import Path

from controller.store.base import StoreUnreadableError

_WIDTH = 20


class StoreInUseError(StoreUnreadableError):
    """Another process has the same files open."""


class Claim:
    """The exclusive right to one database, held until released or the process ends."""

    def __init__(self, database: Path) -> None:
        """Take the lock. Raises: StoreInUseError, OSError."""
        self._watermark = database.with_name(database.name + ".acked")
        self._lock = os.open(
            database.with_name(database.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        )
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(self._lock, 32).decode("ascii", "replace").strip()
            os.close(self._lock)
            who = f"process {holder}" if holder else "another process"
            raise StoreInUseError(
                f"{database} is in use by {who}; stop that controller or choose another --data"
            ) from None
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)
        self._mark: int | None = None

    @property
    def watermark_path(self) -> Path:
        """Where the watermark is, for messages."""
        return self._watermark

    def read_watermark(self) -> int | None:
        """Return the newest acknowledged revision, or None when none was ever written.

        Raises: StoreUnreadableError.
        """
        try:
            text = self._watermark.read_bytes()
        except FileNotFoundError:
            return None
        digits = text.strip()
        # An empty file is one that was made but never written: no write was acknowledged.
        if not digits:
            return None
        if not digits.isdigit():
            raise StoreUnreadableError(
                f"{self._watermark} is damaged; the database may be too. Restore both from a "
                f"backup, or delete this file to start with what the database holds"
            )
        return int(digits)

    def write_watermark(self, revision: int) -> None:
        """Record a revision as acknowledged.

        It is not flushed: it guards against lost files, and after a power failure an older
        watermark is merely a weaker guard.
        """
        if self._mark is None:
            self._mark = os.open(self._watermark, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.pwrite(self._mark, f"{revision:0{_WIDTH}d}\n".encode(), 0)

    def release(self) -> None:
        """Give the lock back."""
        if self._mark is not None:
            os.close(self._mark)
            self._mark = None
        with contextlib.suppress(OSError):
            os.ftruncate(self._lock, 0)
        os.close(self._lock)
