"""The node's memory in figures: the newest reading, the guards in force, what is promised.

Owns the state that verdicts are made from and decides nothing; `arbiter.py` builds on it. The
monitor, the sync and the metrics feed and read it. Units: bytes.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from manifests.kinds.guard import MemoryGuardSpec
from manifests.kinds.node import Ceilings, PressureLevel
from manifests.sizing.preflight import Standing
from node_agent.host.base import HostMemory
from node_agent.memory.budget import EngineStanding
from node_agent.memory.knobs import plan_knobs
from node_agent.memory.learning import Lessons
from node_agent.memory.ledger import Ledger
from node_agent.memory.limits import (
    Watermarks,
    classify_pressure,
    compute_ceilings,
    compute_watermarks,
)
from node_agent.memory.reading import EngineUse, MemoryReading, next_reading


@dataclass(frozen=True, slots=True)
class MemoryState:
    """What the node reports of its memory at one moment."""

    capacity_bytes: int = 0
    ceilings: Ceilings = field(default_factory=Ceilings)
    used_bytes: int = 0
    reserved_bytes: int = 0
    margin_bytes: int = 0
    pressure: PressureLevel = PressureLevel.OK

    @property
    def headroom_bytes(self) -> int:
        """What may still be promised; never shown below zero."""
        held = self.used_bytes + self.reserved_bytes + self.margin_bytes
        return max(0, self.ceilings.hard_bytes - held)


class MemoryBooks:
    """Readings, guards, promises and what was learned, as values."""

    def __init__(
        self,
        guard: MemoryGuardSpec,
        *,
        fused: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start under a guard; `fused` says that engines have Metal's fused attention."""
        self.fused, self._clock = fused, clock
        self._node_guard = guard
        self._engine_guards: Mapping[str, MemoryGuardSpec] = {}
        self._ledger = Ledger()
        self._reading: MemoryReading | None = None
        self.lessons = Lessons()

    @property
    def node_guard(self) -> MemoryGuardSpec:
        """The guard of engines without one of their own."""
        return self._node_guard

    def forecast_used_bytes(self, uses: tuple[EngineUse, ...]) -> int:
        """Return what `used` will be once this sample is taken in; changes nothing."""
        return next_reading(self._reading, HostMemory(0, 0, 0, 0), uses, self._clock()).used_bytes

    def state(self) -> MemoryState:
        """Return what to report."""
        reading = self._reading
        if reading is None:
            return MemoryState()
        ceilings = compute_ceilings(reading, self._node_guard)
        marks = compute_watermarks(ceilings, self._node_guard)
        return MemoryState(
            capacity_bytes=reading.host.ram_bytes,
            ceilings=ceilings,
            used_bytes=reading.used_bytes,
            reserved_bytes=self._ledger.reserved_bytes(self._used()),
            margin_bytes=_margin_bytes(self._node_guard),
            pressure=classify_pressure(reading.used_bytes, marks),
        )

    def watermarks(self) -> Watermarks | None:
        """Return where pressure begins, or None before the first sample."""
        if self._reading is None:
            return None
        return compute_watermarks(
            compute_ceilings(self._reading, self._node_guard), self._node_guard
        )

    def used_bytes(self) -> int:
        """Return the short high-water mark of what engines hold."""
        return 0 if self._reading is None else self._reading.used_bytes

    def engine_footprint_bytes(self, engine: str) -> int:
        """Return the newest measurement of one engine, 0 when unknown."""
        history = None if self._reading is None else self._reading.engines.get(engine)
        return 0 if history is None else history.newest_bytes

    def engine_room_bytes(self, engine: str) -> tuple[int, int]:
        """Return what one request of an engine could get now, and on an otherwise idle node."""
        if self._reading is None:
            return (0, 0)
        standing = self.standing(engine)
        ever = standing.lasting_limit_bytes - standing.engine_idle_bytes
        return (max(0, standing.headroom_bytes), max(0, ever))

    def wired_limit_bytes(self, engine: str) -> int:
        """Return what an engine's guard lets MLX keep wired; 0 keeps nothing wired."""
        limit = self._engine_guards.get(engine, self._node_guard).wired_limit
        return 0 if limit is None else limit.bytes

    def engine_standings(self) -> dict[str, EngineStanding]:
        """Return each measured engine's part of the node's memory."""
        reading = self._reading
        if reading is None:
            return {}
        used = self._used()
        found = {}
        for name, history in reading.engines.items():
            guard = self._engine_guards.get(name, self._node_guard)
            found[name] = EngineStanding(
                used_bytes=history.used_bytes,
                overhead_bytes=history.overhead_bytes,
                promised_bytes=self._ledger.engine_reserved_bytes(name, used),
                margin_bytes=guard.prefill_transient_margin.bytes,
                min_chunk_tokens=guard.min_chunk_tokens,
            )
        return found

    def transient_ratio(self, engine: str) -> float:
        """Return by what the next request's transient is scaled: a lone one's is not."""
        return self.lessons.of(engine).ratio if len(self._ledger) else 1.0

    def standing(self, engine: str) -> Standing:
        """Return what a demand of one engine is judged against; there must be a reading."""
        reading = self._reading
        assert reading is not None  # noqa: S101 - the callers have looked
        guard = self._engine_guards.get(engine, self._node_guard)
        history = reading.engines.get(engine)
        return Standing(
            ceilings=compute_ceilings(reading, guard),
            used_bytes=reading.used_bytes,
            reserved_bytes=self._ledger.reserved_bytes(self._used()),
            engine_idle_bytes=0 if history is None else history.idle_bytes,
            all_idle_bytes=reading.idle_bytes,
            tier=guard.tier,
            find_knobs=partial(plan_knobs, reading, guard),
            margin_bytes=_margin_bytes(guard),
            alone=not len(self._ledger),
        )

    def _take_reading(self, host: HostMemory, uses: tuple[EngineUse, ...]) -> None:
        """Take in one sample. Mutates: the reading; what was learned of engines that are gone."""
        self._reading = next_reading(self._reading, host, uses, self._clock())
        self.lessons.retain({use.engine for use in uses})

    def _used(self) -> dict[str, int]:
        reading = self._reading
        if reading is None:
            return {}
        return {name: item.used_bytes for name, item in reading.engines.items()}


def _margin_bytes(guard: MemoryGuardSpec) -> int:
    """Return what is kept free for the transients of the prompts fed at one time."""
    return guard.prefill_transient_margin.bytes * guard.prefill_concurrency
