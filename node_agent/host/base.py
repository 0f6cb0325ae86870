"""The seam between the agent and the operating system.

Owns the contract only. Implementations read facts and decide nothing; the monitor and the
app call them. Units: bytes.
"""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class HostMemory:
    """The machine's own figures.

    `inactive_bytes` can be taken back without harm; `active_bytes` is other apps' memory of
    which a tier takes a share. `wired_limit_bytes` is the configured GPU limit, None when unset.
    The figures after it are told by macOS only: memory pinned in RAM, memory held by the
    compressor, swap in use, the share of RAM that is neither wired nor compressed (percent), and
    the kernel's own pressure level (1 normal, 2 warn, 4 critical). They are shown, and wired
    memory proves what an engine left behind; no limit is made from them. `ceiling_ratio` below 1
    lowers the ceilings, after kernel panics.
    """

    ram_bytes: int
    free_bytes: int
    inactive_bytes: int
    active_bytes: int
    wired_limit_bytes: int | None = None
    wired_bytes: int | None = None
    compressor_bytes: int | None = None
    swap_used_bytes: int | None = None
    available_percent: int | None = None
    kernel_pressure: int | None = None
    ceiling_ratio: float = 1.0


@dataclass(frozen=True, slots=True)
class HostInfo:
    """What kind of machine this is; empty where the system does not tell.

    `machine_id` survives reboots and differs between machines; `boot_id` changes with a boot.
    """

    os: str
    arch: str
    chip: str
    boot_id: str
    machine_id: str
    ram_bytes: int
    simulated: bool = False


@dataclass(frozen=True, slots=True)
class KernelPanic:
    """One panic of this machine; `boot_id` names the boot that it ended."""

    boot_id: str
    signature: str
    task: str = ""
    epoch_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class PanicScan:
    """The panics the system has reports of; `fault` says why they could not (all) be read."""

    panics: tuple[KernelPanic, ...] = ()
    fault: str = ""


class Host(Protocol):
    """One machine."""

    def info(self) -> HostInfo:
        """Return what does not change while the agent runs."""
        ...

    def reading(self, engines_bytes: int) -> HostMemory:
        """Measure the machine's memory. Raises OSError.

        `engines_bytes` is what our engines hold now; only a simulated machine needs it, to
        take it off the RAM it stands for.
        """
        ...

    def process_footprint_bytes(self, pid: int) -> int | None:
        """Return what the system charges one process, or None when it is gone or hidden."""
        ...

    def scan_panics(self) -> PanicScan | None:
        """Return the kernel panics on record, or None where the system keeps no such record."""
        ...
