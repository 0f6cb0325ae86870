"""The file with one engine's output, bounded in size.

The child writes to the file itself, so a busy agent never blocks an engine that prints. The
file is opened for appending; rotation copies it aside and cuts it, which a writer that only
appends survives.
"""

import contextlib
import os
import shutil
from pathlib import Path

MAX_LOG_BYTES = 4 << 20
_MODE = 0o600


def log_file(directory: Path, engine: str) -> Path:
    """Return where an engine's output goes. Engine names are valid file names by their pattern."""
    return directory / f"{engine}.log"


def open_log(path: Path) -> int:
    """Open the file for the child, readable by its owner only, and return the descriptor."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, _MODE)
    os.fchmod(descriptor, _MODE)
    return descriptor


def rotate_log(path: Path, max_bytes: int = MAX_LOG_BYTES) -> bool:
    """Move a file that outgrew its limit to `.1`; return whether it did.

    Mutates: the file and the one kept before. Output written meanwhile may be lost.
    """
    with contextlib.suppress(FileNotFoundError):
        if path.stat().st_size <= max_bytes:
            return False
        kept = path.with_name(path.name + ".1")
        kept.touch(mode=_MODE)
        shutil.copyfile(path, kept)
        os.truncate(path, 0)
        return True
    return False
