"""The cache directory: made private, recognised again, and never mistaken for another.

Owns the layout on disk and the proof that the directory is the one meant:

    cache.json    the marker: an id written when the directory was made
    index.db      the index
    lock          held while the directory is made or its index rebuilt
    owners/       one locked file a process that uses the cache; the lock ends with the process
    blocks/       <digest>.safetensors, and tmp-<owner>-<n> while one is written
    quarantine/   what stood in a block's place and was no file

An external drive that is not attached leaves its mount point behind, an empty folder of the
system disk. So a directory on another volume that was used before is never made anew:
`memory_file`, kept elsewhere, remembers its id. One on the memory file's own volume cannot be
unplugged; when it is gone somebody has deleted it, and it is made again. Called by the store.
Raises TierFault with a reason for people.
"""

import errno
import fcntl
import json
import os
import re
import stat
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from node_agent.kvcache.block_file import FILE_MODE, make_private, read_file, write_new
from node_agent.kvcache.block_format import BlockDamagedError
from node_agent.kvcache.ssd_health import TierFault, TierReason, fault_from_os

DIRECTORY_MODE = 0o700
MARKER = "cache.json"
INDEX = "index.db"
OUR_NAMES = frozenset({MARKER, INDEX, f"{INDEX}-journal", "lock", "owners", "blocks", "quarantine"})

_FOLDERS = ("owners", "blocks", "quarantine")
_LOCK_WAIT_SECONDS = 30.0
_NO_FOLDER_LOCKS = frozenset({errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.EOPNOTSUPP})
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class CacheDirectory:
    """One prepared cache directory. `private` is False where the volume keeps no modes."""

    def __init__(self, path: Path, memory_file: Path | None) -> None:
        """Find or make the directory. Raises: TierFault."""
        self._given, self._memory_file = path, memory_file
        try:
            _require_volume(path)
            self.path = path.resolve()
            known_id = _recall(memory_file, path)
            self._forgetting = f"to begin a new one, delete its line in {memory_file}"
            self.private = self._prepare(known_id)
            self.cache_id = _marker_id(self.path) or ""
            self._identity = _identity((self.path / "blocks").stat())
            if memory_file is None or self.cache_id == known_id:
                return
            if not on_one_volume(self.path, memory_file.parent):
                with _lock_folder(memory_file.parent):
                    _remember(memory_file, path, self.cache_id)
        except OSError as error:
            raise fault_from_os(error, str(path)) from error

    @contextmanager
    def blocks(self) -> Iterator[int]:
        """Lend a descriptor of the blocks' folder, if it is still the same folder.

        Raises: TierFault when the volume went away or another directory took its place.
        """
        try:
            descriptor = os.open(self._given / "blocks", _OPEN_FOLDER)
        except OSError as error:
            raise fault_from_os(error, f"{self._given}/blocks") from error
        try:
            if _identity(os.fstat(descriptor)) != self._identity:
                raise TierFault(
                    TierReason.ABSENT, f"{self._given} is not the directory it was; reopening it"
                )
            yield descriptor
        finally:
            os.close(descriptor)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from making or rebuilding this cache. Raises: TierFault, OSError."""
        with _lock(self.path):
            yield

    @property
    def index_file(self) -> Path:
        """Where the index is."""
        return self.path / INDEX

    @property
    def owners(self) -> Path:
        """Where processes that use the cache show that they live."""
        return self.path / "owners"

    def free_bytes(self) -> int:
        """Return what the volume has free for us. Raises: OSError."""
        figures = os.statvfs(self.path)
        return figures.f_bavail * figures.f_frsize

    def sweep(self) -> int:
        """Take away small files that a kill left half written; return how many. With `locked` held.

        Markers are written under that lock and memory files under one of their own, so nobody is
        writing what is taken away. Raises: TierFault, OSError.
        """
        count = _sweep(self.path, MARKER)
        memory_file = self._memory_file
        if memory_file is None or not memory_file.parent.is_dir():
            return count
        with _lock_folder(memory_file.parent) as alone:
            return count + (_sweep(memory_file.parent, memory_file.name) if alone else 0)

    def set_aside(self, directory: int, name: str) -> None:
        """Take away what stands in a block's place: a file for good, anything else to quarantine.

        A directory or a link is not ours, so it is moved and neither followed nor emptied.
        Raises: OSError.
        """
        try:
            status = os.stat(name, dir_fd=directory, follow_symlinks=False)
        except FileNotFoundError:
            return
        if stat.S_ISREG(status.st_mode):
            os.unlink(name, dir_fd=directory)
            return
        target = self.path / "quarantine" / f"{name}-{uuid.uuid4().hex[:8]}"
        os.rename(name, target, src_dir_fd=directory)

    def _prepare(self, known_id: str | None) -> bool:
        if os.path.lexists(self._given) and not self.path.is_dir():
            raise TierFault(TierReason.UNUSABLE, f"{self._given} is not a directory")
        if not self.path.is_dir():
            self._make(known_id)
        if self.path.stat().st_uid != os.geteuid():
            raise TierFault(TierReason.UNUSABLE, f"{self._given} belongs to another user")
        if _marker_id(self.path) is None:
            self._mark(known_id)
        private = _private_folder(self.path)
        for name in _FOLDERS:
            (self.path / name).mkdir(mode=DIRECTORY_MODE, exist_ok=True)
            private &= _private_folder(self.path / name)
        return private

    def _make(self, known_id: str | None) -> None:
        if known_id is not None:
            raise TierFault(
                TierReason.ABSENT,
                f"{self._given} was here before and is gone; is its drive attached? "
                f"If it is lost: {self._forgetting}",
            )
        if not self.path.parent.is_dir():
            raise TierFault(
                TierReason.MISSING, f"{self._given.parent} does not exist; make it or name another"
            )
        self.path.mkdir(mode=DIRECTORY_MODE, exist_ok=True)

    def _mark(self, known_id: str | None) -> None:
        if known_id is not None:
            raise TierFault(
                TierReason.ABSENT,
                f"{self._given} is not the cache that was here before ({MARKER} is missing); "
                f"is its drive attached? If it is lost: {self._forgetting}",
            )
        names = sorted(entry.name for entry in self.path.iterdir())
        foreign = [name for name in names if name not in OUR_NAMES and not _of_system(name)]
        if foreign:
            raise TierFault(
                TierReason.UNUSABLE,
                f"{self._given} holds other files, {foreign[0]} for one; name an empty directory",
            )
        with _lock(self.path):
            if _marker_id(self.path) is None:
                text = json.dumps({"mlxfleetCache": 1, "id": uuid.uuid4().hex}).encode()
                _replace_file(self.path, MARKER, text)


def _of_system(name: str) -> bool:
    """Return whether a volume's root holds this by itself (.Spotlight-V100, lost+found ...)."""
    return name.startswith(".") or name == "lost+found"


def _require_volume(path: Path) -> None:
    """Refuse a path on a volume of macOS that is not mounted."""
    parts = path.absolute().parts
    if sys.platform != "darwin" or parts[:2] != ("/", "Volumes") or len(parts) < 3:
        return
    volume = Path(*parts[:3])
    if not volume.is_symlink() and not os.path.ismount(volume):
        raise TierFault(TierReason.ABSENT, f"the volume {volume} is not mounted")


def on_one_volume(one: Path, other: Path) -> bool:
    """Return whether two directories can only be there together. Raises: OSError."""
    return one.stat().st_dev == other.stat().st_dev


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _private_folder(path: Path) -> bool:
    descriptor = os.open(path, _OPEN_FOLDER)
    try:
        return make_private(descriptor, DIRECTORY_MODE)
    finally:
        os.close(descriptor)


def _marker_id(path: Path) -> str | None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        stated = json.loads(bytes(read_file(descriptor, MARKER)))
    except (FileNotFoundError, BlockDamagedError, ValueError):
        return None
    finally:
        os.close(descriptor)
    found = stated.get("id") if isinstance(stated, dict) else None
    return found if isinstance(found, str) else None


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path / "lock", flags, FILE_MODE)
    try:
        make_private(descriptor, FILE_MODE)
        _await_lock(descriptor, path / "lock")
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _lock_folder(folder: Path) -> Iterator[bool]:
    """Keep others from writing a memory file there, without a file of its own.

    Lends False on a volume that locks no folders (NFS). Raises: TierFault, OSError.
    """
    descriptor = os.open(folder, _OPEN_FOLDER)
    try:
        yield _await_lock(descriptor, folder)
    finally:
        os.close(descriptor)


def _await_lock(descriptor: int, what: Path) -> bool:
    deadline = time.monotonic() + _LOCK_WAIT_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() > deadline:
                raise TierFault(TierReason.IO_ERROR, f"{what} stays locked") from error
            time.sleep(0.02)
        except OSError as error:
            if error.errno in _NO_FOLDER_LOCKS and what.is_dir():
                return False
            raise
        else:
            return True


def _sweep(folder: Path, name: str) -> int:
    """Take away what `_replace_file` left of a file, now that nobody is writing it."""
    temporary = re.compile(rf"\.{re.escape(name)}-[0-9a-f]{{8}}")
    found = [entry for entry in folder.iterdir() if temporary.fullmatch(entry.name)]
    for entry in found:
        entry.unlink(missing_ok=True)
    return len(found)


def _replace_file(folder: Path, name: str, content: bytes) -> None:
    """Write a small file so that it is there whole or not at all."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    temporary = f".{name}-{uuid.uuid4().hex[:8]}"
    try:
        write_new(descriptor, temporary, [content], durable=True)
        os.rename(temporary, name, src_dir_fd=descriptor, dst_dir_fd=descriptor)
    except OSError:
        (folder / temporary).unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)


def _memory(memory_file: Path) -> dict[str, str]:
    try:
        known = json.loads(memory_file.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def _recall(memory_file: Path | None, path: Path) -> str | None:
    return _memory(memory_file).get(str(path.absolute())) if memory_file is not None else None


def _remember(memory_file: Path, path: Path, cache_id: str) -> None:
    """Add a directory; with the folder's lock, so that no other process's line gets lost."""
    known = {**_memory(memory_file), str(path.absolute()): cache_id}
    _replace_file(memory_file.parent, memory_file.name, json.dumps(known, indent=1).encode())
