"""The agent's data directory: made private, and held by one agent at a time.

Called by the app before anything else touches the directory.
"""

import fcntl
import os
from pathlib import Path


class DataDirError(Exception):
    """The directory cannot be used; the message says why and what to do."""


class DataDir:
    """A locked directory; the lock lives as long as the process or until `release`."""

    def __init__(self, path: Path) -> None:
        """Create the directory if need be and lock it. Raises DataDirError."""
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.chmod(0o700)
            self._lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as fault:
            raise DataDirError(f"--data: cannot use {path}: {fault.strerror}") from fault
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as fault:
            holder = os.pread(self._lock, 32, 0).decode(errors="replace").strip()
            os.close(self._lock)
            raise DataDirError(
                f"--data: another agent (pid {holder or 'unknown'}) uses {path}; "
                "stop it or give this one its own directory"
            ) from fault
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)

    @property
    def logs(self) -> Path:
        """Where engines' output goes."""
        return self.path / "logs"

    @property
    def wants_file(self) -> Path:
        """The engines last wanted here."""
        return self.path / "wanted-engines.json"

    @property
    def panics_file(self) -> Path:
        """The kernel panics of this machine that concern us."""
        return self.path / "panic-history.json"

    @property
    def cache(self) -> Path:
        """The blocks of the prefix cache, unless a CacheBudget names a directory."""
        return self.path / "kvcache"

    @property
    def caches_file(self) -> Path:
        """Which cache directories were used before, so that an empty mount is not mistaken."""
        return self.path / "kvcache-known.json"

    @property
    def budgets_file(self) -> Path:
        """The cache budgets last followed."""
        return self.path / "cache-budgets.json"

    @property
    def digests_file(self) -> Path:
        """The digests of model files on this machine."""
        return self.path / "model-digests.json"

    def release(self) -> None:
        """Let another agent have the directory."""
        os.close(self._lock)
