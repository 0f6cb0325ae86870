"""What the pool asks of the memory side, as values and callables that the agent's app wires.

The pool knows no arbiter: it asks for the bytes of a load and reads a few figures. The defaults
grant everything and know nothing, for a pool that runs alone. Units: bytes, seconds.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from manifests.errors import Refusal


class LoadReservation(Protocol):
    """Bytes set aside for one load."""

    def release(self) -> None:
        """Give them back; a second call does nothing."""
        ...


class LoadAdmission(Protocol):
    """The door to memory for models."""

    async def admit_load(
        self, engine: str, need_bytes: int, *, wait_seconds: float = 0.0
    ) -> LoadReservation | Refusal:
        """Set a load's bytes aside, or say why not; a cancelled caller holds nothing."""
        ...


class FreeReservation:
    """A reservation of nothing."""

    def release(self) -> None:
        """Do nothing."""


class GrantAll:
    """A machine without a memory guard."""

    async def admit_load(
        self, engine: str, need_bytes: int, *, wait_seconds: float = 0.0
    ) -> LoadReservation | Refusal:
        """Grant at once."""
        del engine, need_bytes, wait_seconds
        return FreeReservation()


def _unknown(_engine: str) -> int | None:
    return None


def _unset(_engine: str) -> int:
    return 0


@dataclass(frozen=True, slots=True)
class MemorySide:
    """What the memory side does and knows; every callable answers at once, from what is known.

    `footprint_bytes` is the newest measurement of an engine's process, the one that counts as
    used, 0 before the first and None where nobody measures. `wired_bytes` is the machine's wired
    memory, None off macOS. `wired_limit_bytes` is what an engine's guard allows MLX to wire.
    """

    admission: LoadAdmission = field(default_factory=GrantAll)
    footprint_bytes: Callable[[str], int | None] = _unknown
    wired_bytes: Callable[[], int | None] = lambda: None
    wired_limit_bytes: Callable[[str], int] = _unset
