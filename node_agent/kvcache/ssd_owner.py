"""Proof that a process which uses the cache still lives.

Owns one locked file a process under `owners/`. The system ends the lock with the process, however
it ends, so no process id is ever mistaken for a later one that has the same number. Called by the
store and by the tables that hold claims.
"""

import fcntl
import os
import re
import uuid
from pathlib import Path

from node_agent.kvcache.block_file import FILE_MODE, make_private

_NAMELESS = re.compile(r"\.[0-9a-f]{32}")


class Owner:
    """This process's own file; its `token` stands in the claims it makes."""

    def __init__(self, folder: Path) -> None:
        """Show that we live. Raises: OSError."""
        self.token = uuid.uuid4().hex
        self._path = folder / self.token
        unlocked = folder / f".{self.token}"
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self._descriptor = os.open(unlocked, flags, FILE_MODE)
        make_private(self._descriptor, FILE_MODE)
        # Locked before it has its name: nobody ever sees it unlocked and thinks us dead.
        fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        unlocked.rename(self._path)

    def leave(self) -> None:
        """Say that we left in good order. Raises: OSError."""
        try:
            self._path.unlink(missing_ok=True)
        finally:
            os.close(self._descriptor)


def is_alive(folder: Path, token: str) -> bool:
    """Return whether the process with this token lives."""
    try:
        descriptor = os.open(folder / token, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def dead_owners(folder: Path) -> tuple[str, ...]:
    """Return those who did not leave in good order. Raises: OSError."""
    names = [path.name for path in folder.iterdir() if not path.name.startswith(".")]
    return tuple(name for name in sorted(names) if not is_alive(folder, name))


def forget_nameless(folder: Path) -> None:
    """Take away what those left who died before they had their name; nobody may be making one.

    Raises: OSError.
    """
    for path in folder.iterdir():
        if _NAMELESS.fullmatch(path.name):
            path.unlink(missing_ok=True)


def forget(folder: Path, token: str) -> None:
    """Take away the file of a dead owner whose claims are settled. Raises: OSError."""
    (folder / token).unlink(missing_ok=True)
