"""Linux facts from /proc and the cgroup the agent runs in.

Reads files under a root path, which tests point at recorded trees. It decides nothing.
Units: bytes.
"""

import platform
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from node_agent.host.base import HostInfo, HostMemory, PanicScan


def parse_kib_table(text: str) -> dict[str, int]:
    """Return the bytes of every `Name:  123 kB` line, as meminfo and smaps_rollup have them."""
    table: dict[str, int] = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if len(words) == 2 and words[1] == "kB" and words[0].isdigit():
            table[name.strip()] = int(words[0]) * 1024
    return table


def parse_flat_table(text: str) -> dict[str, int]:
    """Return the numbers of a cgroup's memory.stat."""
    pairs = (line.split() for line in text.splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def parse_cgroup_paths(text: str) -> tuple[str | None, str | None]:
    """Return our path in the v1 memory hierarchy and in the v2 one; None where absent."""
    v1: str | None = None
    v2: str | None = None
    for line in text.splitlines():
        parts = line.split(":", 2)
        if len(parts) != 3:
            continue
        if "memory" in parts[1].split(","):
            v1 = parts[2]
        elif parts[0] == "0" and not parts[1]:
            v2 = parts[2]
    return v1, v2


@dataclass(frozen=True, slots=True)
class CgroupMemory:
    """A limit that binds us and what is used of it, file cache that can be dropped left out."""

    limit_bytes: int
    used_bytes: int


def _read_text(path: Path) -> str:
    """Return a small file's text, or nothing when it is missing or hidden."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _read_number(path: Path) -> int | None:
    text = _read_text(path).strip()
    return int(text) if text.isdigit() else None


def _observe_group(
    folder: Path, names: tuple[str, str, str], ram_bytes: int
) -> CgroupMemory | None:
    """Read one group's limit; None when there is none below the machine's RAM.

    File cache is charged to the group and dropped by the kernel at the limit, recently used or
    not, so neither list counts as used. Shared memory is on neither.
    """
    limit_file, usage_file, prefix = names
    limit = _read_number(folder / limit_file)
    usage = _read_number(folder / usage_file)
    if limit is None or usage is None or limit >= ram_bytes:
        return None
    table = parse_flat_table(_read_text(folder / "memory.stat"))
    cache = sum(table.get(f"{prefix}{name}", 0) for name in ("inactive_file", "active_file"))
    return CgroupMemory(limit, max(0, usage - cache))


def observe_cgroup(root: Path, ram_bytes: int) -> CgroupMemory | None:
    """Return the tightest memory limit on our cgroup or a group above it, or None."""
    v1, v2 = parse_cgroup_paths(_read_text(root / "proc/self/cgroup"))
    base = root / "sys/fs/cgroup"
    hierarchies = (
        (
            base / "memory",
            v1,
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
        ),
        (base, v2, ("memory.max", "memory.current", "")),
    )
    found: list[CgroupMemory] = []
    for mount, path, names in hierarchies:
        if path is None:
            continue
        # Inside a container the mount's root is our own group and `path` may not exist below it.
        folders = {mount}
        inner = mount
        for part in Path(path.lstrip("/")).parts:
            inner = inner / part
            folders.add(inner)
        groups = (_observe_group(folder, names, ram_bytes) for folder in sorted(folders))
        found.extend(group for group in groups if group is not None)
    return min(found, key=lambda group: group.limit_bytes - group.used_bytes, default=None)


def read_linux_memory(meminfo: Mapping[str, int], group: CgroupMemory | None) -> HostMemory:
    """Return the machine's memory as the guard reads it.

    MemAvailable already holds what the kernel would take back without swapping. Active memory
    is not counted as reclaimable at any tier: Linux swaps where macOS compresses.
    Raises: OSError when meminfo lacks its totals.
    """
    ram = meminfo.get("MemTotal")
    if ram is None:
        raise OSError("/proc/meminfo has no MemTotal")
    free = meminfo.get("MemFree", 0)
    available = meminfo.get("MemAvailable", free)
    if group is not None:
        ram = min(ram, group.limit_bytes)
        available = max(0, min(available, group.limit_bytes - group.used_bytes))
    free = min(free, available)
    return HostMemory(
        ram_bytes=ram, free_bytes=free, inactive_bytes=available - free, active_bytes=0
    )


class LinuxHost:
    """The machine this process runs on, or a recorded tree of one."""

    def __init__(self, root: Path = Path("/"), wired_limit_bytes: int | None = None) -> None:
        """Read under `root`; `wired_limit_bytes` is an optional cap in place of Metal's."""
        self._root, self._wired_limit_bytes = root, wired_limit_bytes

    def info(self) -> HostInfo:
        """Return what does not change while the agent runs."""
        return HostInfo(
            os="linux",
            arch=platform.machine(),
            chip=self._chip(),
            boot_id=_read_text(self._root / "proc/sys/kernel/random/boot_id").strip(),
            machine_id=_read_text(self._root / "etc/machine-id").strip(),
            ram_bytes=self.reading(0).ram_bytes,
        )

    def reading(self, engines_bytes: int) -> HostMemory:  # noqa: ARG002 - the seam's signature
        """Measure the machine's memory. Raises OSError."""
        meminfo = parse_kib_table((self._root / "proc/meminfo").read_text(encoding="utf-8"))
        group = observe_cgroup(self._root, meminfo.get("MemTotal", 0))
        memory = read_linux_memory(meminfo, group)
        if self._wired_limit_bytes is None:
            return memory
        return replace(memory, wired_limit_bytes=self._wired_limit_bytes)

    def process_footprint_bytes(self, pid: int) -> int | None:
        """Return what only ending the process gives back; None when it is gone.

        Its part of anonymous and shared memory, in RAM or swapped out, as Darwin's footprint
        counts. Mapped files are left out: the kernel takes their pages back by itself, and the
        part of libraries that a process is charged changes whenever another one that maps them
        comes or goes. Older kernels tell only the sum (PSS) or the resident set.
        """
        folder = self._root / "proc" / str(pid)
        rollup = parse_kib_table(_read_text(folder / "smaps_rollup"))
        if "Pss_Anon" in rollup:
            return sum(rollup.get(field, 0) for field in ("Pss_Anon", "Pss_Shmem", "SwapPss"))
        if "Pss" in rollup:
            return rollup["Pss"]
        return parse_kib_table(_read_text(folder / "status")).get("VmRSS")

    def scan_panics(self) -> PanicScan | None:
        """Return None: a Linux machine that panics keeps no report where everybody can read it."""
        return None

    def _chip(self) -> str:
        for line in _read_text(self._root / "proc/cpuinfo").splitlines():
            name, _, value = line.partition(":")
            if name.strip() in {"model name", "Model"}:
                return value.strip()
        return ""
