"""A cgroup whose memory limit kills: made, read and removed by the torture run.

Version 1 and 2 of the memory controller, found from /proc/mounts, below the group this process
is in where that works. It never touches a group it did not make. Units: bytes.
"""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

REMOVE_SECONDS = 15.0


class CgroupUnavailableError(Exception):
    """No memory cgroup can be made here; the words say why."""


@dataclass(frozen=True, slots=True)
class Files:
    """What one version of the controller calls its files."""

    limit: str
    usage: str
    kills: str
    prefix: str
    anonymous: str
    swap_off: tuple[tuple[str, str], ...]


V1 = Files(
    limit="memory.limit_in_bytes",
    usage="memory.usage_in_bytes",
    kills="memory.oom_control",
    prefix="total_",
    anonymous="rss",
    swap_off=(("memory.swappiness", "0"),),
)
V2 = Files(
    limit="memory.max",
    usage="memory.current",
    kills="memory.events",
    prefix="",
    anonymous="anon",
    swap_off=(("memory.swap.max", "0"),),
)


@dataclass(frozen=True, slots=True)
class Usage:
    """One look. `held_bytes` leaves out file cache, which the kernel drops at the limit."""

    held_bytes: int
    anonymous_bytes: int
    kills: int


@dataclass(frozen=True, slots=True)
class Cgroup:
    """A group we made."""

    folder: Path
    files: Files
    limit_bytes: int

    @property
    def procs(self) -> Path:
        """Where a process writes its id to move in."""
        return self.folder / "cgroup.procs"

    def read(self) -> Usage:
        """Return what the group holds and how often the kernel killed in it."""
        table = _table(self.folder / "memory.stat")
        prefix = self.files.prefix
        cache = sum(table.get(f"{prefix}{name}", 0) for name in ("inactive_file", "active_file"))
        usage = int((self.folder / self.files.usage).read_text())
        return Usage(
            held_bytes=max(0, usage - cache),
            anonymous_bytes=table.get(f"{prefix}{self.files.anonymous}", 0),
            kills=_table(self.folder / self.files.kills).get("oom_kill", 0),
        )

    def pids(self) -> tuple[int, ...]:
        """Return the processes in the group."""
        return tuple(int(line) for line in self.procs.read_text().split())


def _table(path: Path) -> dict[str, int]:
    pairs = (line.split() for line in path.read_text().splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def parse_mounts(text: str) -> list[tuple[Path, Files]]:
    """Return where memory controllers are mounted; version 1 first, which then owns memory."""
    v1: list[tuple[Path, Files]] = []
    v2: list[tuple[Path, Files]] = []
    for line in text.splitlines():
        fields = line.split()
        if len(fields) < 4:
            continue
        if fields[2] == "cgroup" and "memory" in fields[3].split(","):
            v1.append((Path(fields[1]), V1))
        elif fields[2] == "cgroup2":
            v2.append((Path(fields[1]), V2))
    return v1 + v2


def parse_own_path(text: str, files: Files) -> str:
    """Return our group's path in that hierarchy, from /proc/self/cgroup."""
    for line in text.splitlines():
        number, names, path = line.split(":", 2)
        ours = "memory" in names.split(",") if files is V1 else (number, names) == ("0", "")
        if ours:
            return path.lstrip("/")
    return ""


def _parents(mount: Path, files: Files, own: str) -> Iterator[Path]:
    """Yield groups that may take a child of ours: our own, those above it, the mount."""
    folder = mount / own
    while folder != mount and mount in folder.parents:
        yield folder
        folder = folder.parent
    yield mount


def _make(parent: Path, name: str, files: Files, limit_bytes: int) -> Cgroup:
    """Make the child. Raises OSError, and leaves nothing behind then."""
    if files is V2 and "memory" not in (parent / "cgroup.subtree_control").read_text().split():
        raise PermissionError(f"{parent}: memory is not in cgroup.subtree_control")
    folder = parent / name
    folder.mkdir()
    try:
        (folder / files.limit).write_text(str(limit_bytes))
        for file, text in files.swap_off:
            with suppress(FileNotFoundError):
                (folder / file).write_text(text)
        if files is V1:
            # Only where the kernel counts swap; it must not be below the other limit.
            with suppress(OSError):
                (folder / "memory.memsw.limit_in_bytes").write_text(str(limit_bytes))
        group = Cgroup(folder, files, limit_bytes)
        group.read()
    except OSError:
        folder.rmdir()
        raise
    return group


def make_cgroup(name: str, limit_bytes: int) -> Cgroup:
    """Return a new group with that limit and no swap. Raises CgroupUnavailableError."""
    try:
        mounts = parse_mounts(Path("/proc/mounts").read_text())
        own = Path("/proc/self/cgroup").read_text()
    except OSError as fault:
        raise CgroupUnavailableError(f"this system has no cgroups: {fault}") from fault
    faults = []
    for mount, files in mounts:
        for parent in _parents(mount, files, parse_own_path(own, files)):
            if not parent.is_dir():
                continue
            try:
                return _make(parent, name, files, limit_bytes)
            except OSError as fault:
                faults.append(str(fault))
    why = "; ".join(faults) or "no memory controller is mounted"
    raise CgroupUnavailableError(f"no memory cgroup can be made here (needs root): {why}")


def remove_cgroup(group: Cgroup, seconds: float = REMOVE_SECONDS) -> tuple[int, ...]:
    """Remove the group once its processes have ended; kill and return those that do not."""
    deadline = time.monotonic() + seconds
    while group.pids() and time.monotonic() < deadline:
        time.sleep(0.05)
    left = group.pids()
    for pid in left:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    while time.monotonic() < deadline + seconds:
        with suppress(OSError):
            group.folder.rmdir()
            return left
        time.sleep(0.05)
    raise TimeoutError(f"{group.folder} cannot be removed; it still holds {group.pids()}")


@contextmanager
def limited(name: str, limit_bytes: int) -> Iterator[Cgroup]:
    """Have a group for the length of a with-block. Raises CgroupUnavailableError."""
    group = make_cgroup(name, limit_bytes)
    try:
        yield group
    finally:
        remove_cgroup(group)
