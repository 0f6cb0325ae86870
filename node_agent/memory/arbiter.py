"""The arbiter: the one owner of the ledger, the newest reading and the guards in force.

Every demand for memory, a request's prefill or a model's load, passes here and is judged and
reserved in one step on the event loop, so two of them never get the same bytes. It starts no
process, reads no host and writes nothing: the monitor feeds it, serving and the pool ask it.
Units: bytes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from manifests.errors import Code, Refusal, Retryable
from manifests.estimate import PrefillCase, estimate_prefill
from manifests.guard import MemoryGuardSpec, Tier
from manifests.node import Ceilings, PressureLevel
from node_agent.host.base import HostMemory
from node_agent.memory.base import AdmissionRequest, Reservation
from node_agent.memory.ledger import Ledger
from node_agent.memory.limits import classify_pressure, compute_ceilings, compute_watermarks
from node_agent.memory.preflight import Standing, judge_load, judge_prefill
from node_agent.memory.reading import EngineUse, MemoryReading, next_reading


@dataclass(frozen=True, slots=True)
class MemoryState:
    """What the node reports of its memory at one moment."""

    capacity_bytes: int = 0
    ceilings: Ceilings = field(default_factory=Ceilings)
    used_bytes: int = 0
    reserved_bytes: int = 0
    pressure: PressureLevel = PressureLevel.OK

    @property
    def headroom_bytes(self) -> int:
        """What may still be promised; never shown below zero."""
        return max(0, self.ceilings.hard_bytes - self.used_bytes - self.reserved_bytes)


class HeldReservation:
    """One promise; releasing it twice is harmless."""

    def __init__(self, arbiter: "Arbiter", number: int) -> None:
        self._arbiter, self._number = arbiter, number

    def release(self) -> None:
        """Give the bytes back."""
        self._arbiter.release(self._number)


class Arbiter:
    """Judges and reserves."""

    def __init__(self, guard: MemoryGuardSpec, *, fused: bool = False) -> None:
        """Start under a guard; `fused` says that engines have Metal's fused attention."""
        self.fused = fused
        self._node_guard = guard
        self._engine_guards: Mapping[str, MemoryGuardSpec] = {}
        self._ledger = Ledger()
        self._reading: MemoryReading | None = None

    def set_guards(
        self, node_guard: MemoryGuardSpec, engine_guards: Mapping[str, MemoryGuardSpec]
    ) -> None:
        """Follow new guards; an engine without its own follows the node's. Mutates: guards."""
        self._node_guard = node_guard
        self._engine_guards = dict(engine_guards)

    def observe(self, host: HostMemory, uses: tuple[EngineUse, ...]) -> None:
        """Take in one sample; engines missing from it are gone. Mutates: the reading.

        Promises stay: whoever holds one gives it back on every way out, the death of its
        engine included.
        """
        self._reading = next_reading(self._reading, host, uses)

    def forecast_used_bytes(self, uses: tuple[EngineUse, ...]) -> int:
        """Return what `used` will be once this sample is taken in; changes nothing."""
        return next_reading(self._reading, HostMemory(0, 0, 0, 0), uses).used_bytes

    def admit(self, request: AdmissionRequest) -> Reservation | Refusal:
        """Reserve a request's peak, or say why not, in one step."""
        case = PrefillCase(
            prompt_tokens=request.prompt_tokens,
            cached_tokens=request.cached_tokens,
            max_tokens=request.max_tokens,
            chunk_tokens=request.chunk_tokens,
            rows=request.rows,
        )
        estimate = estimate_prefill(request.shape, case, fused=self.fused)
        return self.admit_prefill(request.engine, estimate.peak_bytes)

    def admit_prefill(self, engine: str, need_bytes: int) -> Reservation | Refusal:
        """Reserve bytes for one request of an engine, or say why not."""
        if self._reading is None:
            return _no_reading()
        standing = self.standing(engine, self._reading)
        refusal = judge_prefill(need_bytes, standing)
        return self._reserve(engine, need_bytes, standing) if refusal is None else refusal

    def admit_load(self, engine: str, need_bytes: int) -> Reservation | Refusal:
        """Reserve bytes for loading a model, or say why not; release once loaded or failed."""
        if self._reading is None:
            return _no_reading()
        standing = self.standing(engine, self._reading)
        refusal = judge_load(need_bytes, standing)
        return self._reserve(engine, need_bytes, standing) if refusal is None else refusal

    def release(self, number: int) -> None:
        """Take back a promise; called by its reservation."""
        self._ledger.release(number, self._used())

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
            pressure=classify_pressure(reading.used_bytes, marks),
        )

    def engine_footprint_bytes(self, engine: str) -> int:
        """Return the newest measurement of one engine, 0 when unknown."""
        history = None if self._reading is None else self._reading.engines.get(engine)
        return 0 if history is None else history.samples[-1]

    def engine_room_bytes(self, engine: str) -> tuple[int, int]:
        """Return what one request of an engine could get now, and on an otherwise idle node."""
        if self._reading is None:
            return (0, 0)
        standing = self.standing(engine, self._reading)
        ever = standing.lasting_limit_bytes - standing.engine_idle_bytes
        return (max(0, standing.headroom_bytes), max(0, ever))

    def standing(self, engine: str, reading: MemoryReading) -> Standing:
        """Return what a demand of one engine is judged against."""
        guard = self._engine_guards.get(engine, self._node_guard)
        history = reading.engines.get(engine)
        return Standing(
            ceilings=compute_ceilings(reading, guard),
            used_bytes=reading.used_bytes,
            reserved_bytes=self._ledger.reserved_bytes(self._used()),
            engine_idle_bytes=0 if history is None else history.idle_bytes,
            all_idle_bytes=reading.idle_bytes,
            custom=guard.tier is Tier.CUSTOM,
        )

    def _used(self) -> dict[str, int]:
        reading = self._reading
        if reading is None:
            return {}
        return {name: item.used_bytes for name, item in reading.engines.items()}

    def _reserve(self, engine: str, need_bytes: int, standing: Standing) -> Reservation | Refusal:
        number = self._ledger.reserve(
            engine, need_bytes, standing.ceilings.hard_bytes, self._used()
        )
        if number is None:
            raise RuntimeError(f"ledger and preflight disagree about {need_bytes} bytes")
        return HeldReservation(self, number)


def _no_reading() -> Refusal:
    """Return the refusal while the first sample is not in yet."""
    return Refusal(
        Code.ENGINE_NOT_READY,
        "The agent has not measured its memory yet.",
        Retryable.LATER,
        retry_after_seconds=1,
    )
