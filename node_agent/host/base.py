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
    """

    ram_bytes: int
    free_bytes: int
    inactive_bytes: int
    active_bytes: int
    wired_limit_bytes: int | None = None


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
