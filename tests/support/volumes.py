"""File systems of a test's own: too small, turned read-only, unplugged and plugged in again.

They are Linux tmpfs mounts, so they need root there (or CAP_SYS_ADMIN). Elsewhere, and where
mounting is not allowed, tests that ask for one are skipped and say so.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

NEEDED = "a file system of its own: Linux, and root or CAP_SYS_ADMIN to mount a tmpfs"


class Volume:
    """A place where a tmpfs can be plugged in; it keeps its content while it is unplugged."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._drive = path.with_name(f"{path.name}-drive")
        path.mkdir()
        self._drive.mkdir()

    def mount(self, size: str, options: str = "") -> None:
        """Plug in a new, empty drive of a size as mount knows it ("512k"); the last one is lost."""
        _unmount_all(self._drive)
        words = f"size={size},{options}" if options else f"size={size}"
        _run("mount", "-t", "tmpfs", "-o", words, "tmpfs", str(self._drive))
        self.plug()

    def resize(self, size: str) -> None:
        """Make the drive larger, as when others leave it."""
        _run("mount", "-o", f"remount,size={size}", str(self.path))

    def plug(self) -> None:
        """Plug the drive in, as it was left."""
        _run("mount", "--bind", str(self._drive), str(self.path))

    def unplug(self) -> None:
        """Take the drive away though files are open, as pulling a cable does."""
        _run("umount", "-l", str(self.path))

    def turn_read_only(self) -> None:
        """Lay a read-only view over the drive, as after an error of the disk.

        The files that are open stay writable; `unplug` takes the view away again.
        """
        _run("mount", "--bind", str(self.path), str(self.path))
        _run("mount", "-o", "remount,bind,ro", str(self.path))

    def fill(self) -> Path:
        """Fill what is free to the last byte; return the file that does it."""
        filler = self.path / "filler"
        with filler.open("wb", buffering=0) as file:
            try:
                while file.write(bytes(4096)):
                    pass
            except OSError:
                pass
        return filler

    def close(self) -> None:
        """Unmount all."""
        for place in (self.path, self._drive):
            _unmount_all(place)


@contextmanager
def volume_at(path: Path) -> Iterator[Volume]:
    """Make a volume for the length of a with-block, or skip the test where none can be made."""
    made = Volume(path)
    try:
        made.mount("64k")
    except (OSError, subprocess.CalledProcessError) as error:
        if os.environ.get("MLXFLEET_CI") == "1" and sys.platform == "linux":
            raise
        pytest.skip(f"needs {NEEDED} ({error})")
    made.unplug()
    try:
        yield made
    finally:
        made.close()


def _unmount_all(place: Path) -> None:
    while os.path.ismount(place):
        _run("umount", "-l", str(place))


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
