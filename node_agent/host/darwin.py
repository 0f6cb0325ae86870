"""macOS facts: phys_footprint through libproc, sysctl and vm_stat, panic reports.

Not run on a Mac: written from documented layouts and recorded output, and tested with those.
The parsers are pure; `LibProc` and `run_text` are the only effects and can be replaced. RSS is
never used: it misses wired Metal buffers by tens of gigabytes. Units: bytes.
"""

import ctypes
import errno
import platform
import re
import struct
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from node_agent.host.base import HostInfo, HostMemory, PanicScan
from node_agent.host.panics import REPORTS, observe_panics

_RUSAGE_V4, _RUSAGE_V4_SIZE = 4, 296
_RUSAGE_V0, _RUSAGE_V0_SIZE = 0, 96
_FOOTPRINT_OFFSET = 72
_MIB = 1 << 20

_MEMSIZE = "hw.memsize"
_WIRED_LIMIT = "iogpu.wired_limit_mb"
_LEVEL = "kern.memorystatus_level"
_KERNEL_PRESSURE = "kern.memorystatus_vm_pressure_level"
_SWAP = "vm.swapusage"

_PAGE_SIZE = re.compile(r"page size of (\d+) bytes")
_SWAP_USED = re.compile(r"used = (\d+(?:\.\d+)?)M")
_PAGES = re.compile(r"^(?P<name>[^:]+):\s+(?P<count>\d+)\.?$", re.M)

RunText = Callable[[tuple[str, ...]], str]


class RusageCall(Protocol):
    """`proc_pid_rusage`: fills the buffer; returns 0 or an errno."""

    def __call__(self, pid: int, flavor: int, buffer: bytearray) -> int:
        """Fill `buffer` with the flavour's struct."""
        ...


class LibProc:
    """The C library behind `proc_pid_rusage`."""

    def __init__(self, path: str = "/usr/lib/libproc.dylib") -> None:
        """Load the library. Raises OSError where there is none."""
        self._function = ctypes.CDLL(path, use_errno=True).proc_pid_rusage

    def __call__(self, pid: int, flavor: int, buffer: bytearray) -> int:
        """Fill `buffer`; return 0 or the errno."""
        view = (ctypes.c_char * len(buffer)).from_buffer(buffer)
        if self._function(ctypes.c_int(pid), ctypes.c_int(flavor), view) == 0:
            return 0
        return ctypes.get_errno() or errno.EIO


def read_phys_footprint(call: RusageCall, pid: int) -> int | None:
    """Return a process's phys_footprint, by flavour V4 or V0 on older systems; None when refused.

    Source: xnu bsd/sys/resource.h; the kernel writes exactly the flavour's size.
    """
    for flavor, size in ((_RUSAGE_V4, _RUSAGE_V4_SIZE), (_RUSAGE_V0, _RUSAGE_V0_SIZE)):
        buffer = bytearray(size)
        code = call(pid, flavor, buffer)
        if code == 0:
            return int(struct.unpack_from("<Q", buffer, _FOOTPRINT_OFFSET)[0])
        if code != errno.EINVAL:
            return None
    return None


@dataclass(frozen=True, slots=True)
class VmStat:
    """The counters of vm_stat that matter."""

    free_bytes: int
    active_bytes: int
    inactive_bytes: int
    wired_bytes: int
    compressor_bytes: int


def parse_vm_stat(text: str) -> VmStat:
    """Return vm_stat's counters. Free includes speculative pages. Raises ValueError."""
    page = _PAGE_SIZE.search(text)
    if page is None:
        raise ValueError("vm_stat printed no page size")
    size = int(page[1])
    pages = {match["name"].strip('"'): int(match["count"]) for match in _PAGES.finditer(text)}
    if "Pages free" not in pages or "Pages active" not in pages:
        raise ValueError("vm_stat printed no free or active pages")
    return VmStat(
        free_bytes=(pages["Pages free"] + pages.get("Pages speculative", 0)) * size,
        active_bytes=pages["Pages active"] * size,
        inactive_bytes=pages.get("Pages inactive", 0) * size,
        wired_bytes=pages.get("Pages wired down", 0) * size,
        compressor_bytes=pages.get("Pages occupied by compressor", 0) * size,
    )


def parse_sysctl(text: str) -> dict[str, str]:
    """Return the `name: value` lines of sysctl; a name the system does not know has none."""
    pairs = (line.partition(": ") for line in text.splitlines())
    return {name.strip(): value.strip() for name, colon, value in pairs if colon}


def parse_count(text: str | None) -> int | None:
    """Return a whole number, or None for anything else."""
    return int(text) if text is not None and text.isdigit() else None


def parse_wired_limit_mb(text: str | None) -> int | None:
    """Return the bytes of `iogpu.wired_limit_mb`; 0 or nothing means the system's default."""
    megabytes = parse_count(text)
    return megabytes * _MIB if megabytes else None


def parse_swap_used(text: str | None) -> int | None:
    """Return the bytes in use of `vm.swapusage`, which prints MiB with two decimals."""
    match = _SWAP_USED.search(text or "")
    return None if match is None else round(float(match[1]) * _MIB)


def parse_platform_uuid(text: str) -> str:
    """Return IOPlatformUUID from `ioreg -rd1 -c IOPlatformExpertDevice`, or nothing."""
    match = re.search(r'"IOPlatformUUID" = "([0-9A-Fa-f-]+)"', text)
    return match[1] if match else ""


def run_text(command: tuple[str, ...]) -> str:
    """Return what a command printed, or nothing when it cannot run or takes over five seconds.

    The exit code is not asked: sysctl fails as a whole when it does not know one of the names.
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout


class DarwinHost:
    """A Mac."""

    def __init__(
        self,
        call: RusageCall | None = None,
        run: RunText = run_text,
        reports: Path = REPORTS,
    ) -> None:
        """Use libproc and real commands unless replaced. Raises OSError without libproc."""
        self._call: RusageCall = LibProc() if call is None else call
        self._run, self._reports = run, reports

    def info(self) -> HostInfo:
        """Return what does not change while the agent runs."""
        facts = self._sysctl("machdep.cpu.brand_string", "kern.bootsessionuuid", _MEMSIZE)
        return HostInfo(
            os="darwin",
            arch=platform.machine(),
            chip=facts.get("machdep.cpu.brand_string", ""),
            boot_id=facts.get("kern.bootsessionuuid", ""),
            machine_id=parse_platform_uuid(
                self._run(("/usr/sbin/ioreg", "-rd1", "-c", "IOPlatformExpertDevice"))
            ),
            ram_bytes=_ram_bytes(facts),
        )

    def reading(self, engines_bytes: int) -> HostMemory:  # noqa: ARG002 - the seam's signature
        """Measure the machine's memory. Raises OSError."""
        try:
            pages = parse_vm_stat(self._run(("/usr/bin/vm_stat",)))
        except ValueError as fault:
            raise OSError(str(fault)) from fault
        facts = self._sysctl(_MEMSIZE, _WIRED_LIMIT, _LEVEL, _KERNEL_PRESSURE, _SWAP)
        return HostMemory(
            ram_bytes=_ram_bytes(facts),
            free_bytes=pages.free_bytes,
            inactive_bytes=pages.inactive_bytes,
            active_bytes=pages.active_bytes,
            wired_limit_bytes=parse_wired_limit_mb(facts.get(_WIRED_LIMIT)),
            wired_bytes=pages.wired_bytes,
            compressor_bytes=pages.compressor_bytes,
            swap_used_bytes=parse_swap_used(facts.get(_SWAP)),
            available_percent=parse_count(facts.get(_LEVEL)),
            kernel_pressure=parse_count(facts.get(_KERNEL_PRESSURE)),
        )

    def process_footprint_bytes(self, pid: int) -> int | None:
        """Return phys_footprint, or None when the process is gone or not ours."""
        return read_phys_footprint(self._call, pid)

    def scan_panics(self) -> PanicScan | None:
        """Return the panic reports of this Mac."""
        return observe_panics(self._reports)

    def _sysctl(self, *names: str) -> dict[str, str]:
        return parse_sysctl(self._run(("/usr/sbin/sysctl", *names)))


def _ram_bytes(facts: dict[str, str]) -> int:
    size = parse_count(facts.get(_MEMSIZE))
    if size is None:
        raise OSError("sysctl hw.memsize did not answer")
    return size
