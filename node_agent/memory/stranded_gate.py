"""Keeps a model from being loaded again after its memory stayed wired, until the next boot.

Stands in front of the arbiter for loads only: each restart would strand as much again. Built by
the app; the pool asks it.
"""

from collections.abc import Callable
from typing import Protocol

from manifests.errors import Code, Refusal, Retryable
from manifests.units import format_bytes
from node_agent.memory.base import Reservation
from node_agent.memory.stranded_plan import Stranded


class LoadAdmission(Protocol):
    """Who reserves a model's bytes."""

    async def admit_load(
        self, engine: str, need_bytes: int, *, wait_seconds: float = 0.0
    ) -> Reservation | Refusal:
        """Reserve a model's bytes before its process starts."""
        ...


def refuse_stranded(engine: str, stranded: tuple[Stranded, ...]) -> Refusal | None:
    """Return why an engine must not start, or None. Pure."""
    mine = [item for item in stranded if item.engine == engine]
    if not mine:
        return None
    held = format_bytes(sum(item.held_bytes for item in mine))
    return Refusal(
        Code.ENGINE_NOT_READY,
        f"engine {engine} ended and {held} of its memory stayed wired; "
        "starting it again would strand more",
        Retryable.ELSEWHERE,
        hint="reboot this machine; `mlxctl describe node` tells more",
    )


class StrandedGate:
    """An arbiter for loads that refuses what would strand more memory."""

    def __init__(self, inner: LoadAdmission, stranded: Callable[[], tuple[Stranded, ...]]) -> None:
        self._inner, self._stranded = inner, stranded

    async def admit_load(
        self, engine: str, need_bytes: int, *, wait_seconds: float = 0.0
    ) -> Reservation | Refusal:
        """Reserve a model's bytes, unless this engine left its memory behind."""
        refusal = refuse_stranded(engine, self._stranded())
        if refusal is not None:
            return refusal
        return await self._inner.admit_load(engine, need_bytes, wait_seconds=wait_seconds)
