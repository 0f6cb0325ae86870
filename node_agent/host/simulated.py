"""A machine that stands for a Mac of another size.

Wraps a real host: RAM, GPU limit and other apps' use are declared, engines' footprints are
real, so one machine runs a fleet of unequal nodes. It decides nothing. Units: bytes.
"""

from dataclasses import dataclass, replace

from node_agent.host.base import Host, HostInfo, HostMemory


@dataclass(frozen=True, slots=True)
class SimulatedMachine:
    """What the simulated machine declares."""

    ram_bytes: int
    wired_limit_bytes: int | None = None
    other_apps_bytes: int = 0


class SimulatedHost:
    """A declared machine with real processes on it."""

    def __init__(self, real: Host, machine: SimulatedMachine) -> None:
        self._real, self._machine = real, machine

    def set_other_apps_bytes(self, other_apps_bytes: int) -> None:
        """Let the other apps of the machine grow or shrink. Mutates: the declaration."""
        self._machine = replace(self._machine, other_apps_bytes=other_apps_bytes)

    def info(self) -> HostInfo:
        """Return the real machine's facts with the declared RAM."""
        return replace(self._real.info(), ram_bytes=self._machine.ram_bytes, simulated=True)

    def reading(self, engines_bytes: int) -> HostMemory:
        """Return the declared RAM less what engines hold and other apps use."""
        machine = self._machine
        others = min(machine.other_apps_bytes, machine.ram_bytes)
        return HostMemory(
            ram_bytes=machine.ram_bytes,
            free_bytes=max(0, machine.ram_bytes - others - engines_bytes),
            inactive_bytes=0,
            active_bytes=others,
            wired_limit_bytes=machine.wired_limit_bytes,
        )

    def process_footprint_bytes(self, pid: int) -> int | None:
        """Return the real process's footprint."""
        return self._real.process_footprint_bytes(pid)
