"""A machine that stands for a Mac of another size.

Wraps a real host: RAM, GPU limit and other apps' use are declared, engines' footprints are
real, so one machine runs a fleet of unequal nodes. What is declared can change while it runs,
through the setters or through a file. It decides nothing. Units: bytes.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from manifests.units import parse_quantity
from node_agent.host.base import Host, HostInfo, HostMemory, PanicScan


@dataclass(frozen=True, slots=True)
class SimulatedMachine:
    """What the simulated machine declares.

    `other_apps_file` holds a quantity such as `12Gi` that is read at each reading and stands
    in for `other_apps_bytes`. `stranded_bytes` is wired memory that no process holds.
    """

    ram_bytes: int
    wired_limit_bytes: int | None = None
    other_apps_bytes: int = 0
    other_apps_file: Path | None = None
    stranded_bytes: int = 0


def read_quantity_file(path: Path) -> int:
    """Return the bytes a small file declares. Raises OSError when it does not."""
    try:
        return parse_quantity(path.read_text(encoding="utf-8").strip())
    except ValueError as fault:
        raise OSError(f"{path}: {fault}") from fault


class SimulatedHost:
    """A declared machine with real processes on it."""

    def __init__(
        self, real: Host, machine: SimulatedMachine, panics: PanicScan | None = None
    ) -> None:
        self._real, self._machine, self._panics = real, machine, panics

    def set_other_apps_bytes(self, other_apps_bytes: int) -> None:
        """Let the other apps of the machine grow or shrink. Mutates: the declaration."""
        self._machine = replace(
            self._machine, other_apps_bytes=other_apps_bytes, other_apps_file=None
        )

    def set_stranded_bytes(self, stranded_bytes: int) -> None:
        """Declare wired memory that no process holds. Mutates: the declaration."""
        self._machine = replace(self._machine, stranded_bytes=stranded_bytes)

    def set_wired_limit_bytes(self, wired_limit_bytes: int | None) -> None:
        """Change the machine's GPU limit, as the sysctl does. Mutates: the declaration."""
        self._machine = replace(self._machine, wired_limit_bytes=wired_limit_bytes)

    def set_panics(self, panics: PanicScan | None) -> None:
        """Declare the machine's panic reports. Mutates: the declaration."""
        self._panics = panics

    def info(self) -> HostInfo:
        """Return the real machine's facts with the declared RAM."""
        return replace(self._real.info(), ram_bytes=self._machine.ram_bytes, simulated=True)

    def reading(self, engines_bytes: int) -> HostMemory:
        """Return the declared RAM less what engines hold and other apps use. Raises OSError."""
        machine = self._machine
        others = (
            machine.other_apps_bytes
            if machine.other_apps_file is None
            else read_quantity_file(machine.other_apps_file)
        )
        others = min(others, machine.ram_bytes)
        taken = others + engines_bytes + machine.stranded_bytes
        return HostMemory(
            ram_bytes=machine.ram_bytes,
            free_bytes=max(0, machine.ram_bytes - taken),
            inactive_bytes=0,
            active_bytes=others,
            wired_limit_bytes=machine.wired_limit_bytes,
            wired_bytes=engines_bytes + machine.stranded_bytes,
        )

    def process_footprint_bytes(self, pid: int) -> int | None:
        """Return the real process's footprint."""
        return self._real.process_footprint_bytes(pid)

    def scan_panics(self) -> PanicScan | None:
        """Return what was declared."""
        return self._panics
