"""The arbiter: the one door to the node's memory.

Every demand, a request's prefill or a model's load, passes here and is judged and reserved in
one step on the event loop, so two of them never get the same bytes. What can never fit is refused
at once; what fits once something ends waits in one bounded line. It starts no process, reads no
host and writes nothing: the monitor feeds it, serving and the pool ask it. Units: bytes, seconds.
"""

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Protocol

from manifests.errors import Code, Refusal, Retryable
from manifests.kinds.guard import MemoryGuardSpec
from manifests.sizing.advice import estimate_need, plan_fit
from manifests.sizing.estimate import PrefillCase
from manifests.sizing.preflight import FitWithin, clip_need, judge_load, judge_prefill
from node_agent.host.base import HostMemory
from node_agent.memory.base import AdmissionRequest, Reservation
from node_agent.memory.books import MemoryBooks
from node_agent.memory.line import (
    Demand,
    DemandKind,
    LineRules,
    Waiter,
    WaitingLine,
    refuse_turn,
)
from node_agent.memory.reading import EngineUse
from node_agent.memory.room_plan import RoomPlan

_BOUNDLESS_BYTES = 1 << 62


class RoomMaker(Protocol):
    """Who can unload idle engines when a demand needs their bytes."""

    def make_room(self, engine: str, need_bytes: int, headroom_bytes: int) -> RoomPlan:
        """Evict what is idle so that the demand fits later; nobody when it would not help."""
        ...


class Bell:
    """Calls back at once after every promise, release and change of the guards."""

    def __init__(self) -> None:
        self._callbacks: list[Callable[[], None]] = []

    def listen(self, callback: Callable[[], None]) -> None:
        """Call this too, in the order of listening."""
        self._callbacks.append(callback)

    def ring(self) -> None:
        """Tell everybody."""
        for callback in self._callbacks:
            callback()


class HeldReservation:
    """Promises of one request or load; releasing twice is harmless."""

    def __init__(self, arbiter: "Arbiter", number: int) -> None:
        self._arbiter, self._number = arbiter, number

    def release(self) -> None:
        """Give the bytes back."""
        self._arbiter.release(self._number)


class Arbiter(MemoryBooks):
    """Judges and reserves. `room` unloads idle engines for a demand that would fit then."""

    def __init__(
        self,
        guard: MemoryGuardSpec,
        *,
        fused: bool = False,
        enforced: bool = True,
        rules: LineRules | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start under a guard. Without `enforced` everything is granted, to show what happens."""
        super().__init__(guard, fused=fused, clock=clock)
        self.enforced = enforced
        self._rules = rules or LineRules()
        self._line = WaitingLine(self._rules, clock, self._try)
        self._paused = False
        self.room: RoomMaker | None = None
        self.changed = Bell()
        # Rung when somebody begins to wait: the next look at memory should come soon.
        self.queued = Bell()

    @property
    def waiting(self) -> int:
        """How many demands stand in line."""
        return len(self._line)

    def set_guards(
        self, node_guard: MemoryGuardSpec, engine_guards: dict[str, MemoryGuardSpec]
    ) -> None:
        """Follow new guards; an engine without its own follows the node's."""
        if (node_guard, engine_guards) == (self._node_guard, self._engine_guards):
            return
        self._node_guard, self._engine_guards = node_guard, dict(engine_guards)
        self._line.serve()
        self.changed.ring()

    def set_paused(self, paused: bool) -> None:
        """Hold new requests in line while anything is promised; loads and a lone request pass."""
        self._paused = paused
        if not paused:
            self._line.serve()

    def observe(self, host: HostMemory, uses: tuple[EngineUse, ...]) -> None:
        """Take in one sample; engines missing from it are gone.

        Promises stay: whoever holds one gives it back on every way out, the death of its
        engine included.
        """
        self._take_reading(host, uses)
        self._line.serve()

    async def admit(
        self, request: AdmissionRequest, *, wait_seconds: float = 0.0
    ) -> Reservation | Refusal:
        """Reserve a request's peak, or say why not; judging and reserving are one step."""
        case = PrefillCase(
            prompt_tokens=request.prompt_tokens,
            cached_tokens=request.cached_tokens,
            max_tokens=request.max_tokens,
            chunk_tokens=request.chunk_tokens,
            rows=request.rows,
        )
        ratio = self.lessons.of(request.engine).ratio
        need = estimate_need(request.shape, case, fused=self.fused, transient_ratio=ratio)
        demand = Demand(
            DemandKind.PREFILL, request.engine, need.need_bytes, least_bytes=need.least_bytes
        )
        answer = await self._await(demand, wait_seconds)
        if not isinstance(answer, Refusal) or answer.code is not Code.PREFILL_MEMORY_EXCEEDED:
            return answer
        fit_within = partial(
            plan_fit,
            request.shape,
            case,
            fused=self.fused,
            transient_ratio=self.transient_ratio(request.engine),
        )
        # Worded anew for whoever reads it; what fits is too dear to find at every try.
        return self._find_refusal(demand, fit_within) or answer

    async def admit_load(
        self, engine: str, need_bytes: int, *, wait_seconds: float = 0.0
    ) -> Reservation | Refusal:
        """Reserve bytes for loading a model, or say why not; release once loaded or failed."""
        return await self._await(Demand(DemandKind.LOAD, engine, need_bytes), wait_seconds)

    def admit_growth(self, engine: str, more_bytes: int) -> Reservation | Refusal:
        """Promise a running request more, ahead of the line: it holds memory others wait for."""
        answer = self._judge(Demand(DemandKind.PREFILL, engine, more_bytes), running=True)
        if isinstance(answer, Refusal):
            return answer
        self.changed.ring()
        return HeldReservation(self, answer)

    def release(self, number: int) -> None:
        """Take back a promise; called by its reservation."""
        if self._ledger.release(number, self._used()):
            self._line.serve()
            self.changed.ring()

    async def _await(self, demand: Demand, wait_seconds: float) -> Reservation | Refusal:
        waiter = Waiter(demand, asyncio.get_running_loop().create_future())
        if not self._line:
            self._try(waiter)
        elif (found := self._find_refusal(demand)) and found.retryable is Retryable.NO:
            return found
        if waiter.answer.done():
            return waiter.answer.result()
        if wait_seconds <= 0:
            return waiter.refusal or refuse_turn()
        self.queued.ring()
        return await self._line.wait(waiter, wait_seconds)

    def _try(self, waiter: Waiter) -> None:
        """Answer a waiter if it can be answered now, else note what it waits for."""
        answer = self._judge(waiter.demand)
        if not isinstance(answer, Refusal):
            waiter.answer.set_result(HeldReservation(self, answer))
            self.changed.ring()
            return
        waiter.refusal = answer
        if answer.code is Code.PREFILL_MEMORY_EXCEEDED:
            comes = answer.retryable is not Retryable.NO and self._ask_for_room(waiter)
            if answer.retryable is not Retryable.LATER and not comes:
                waiter.answer.set_result(answer)

    def _judge(self, demand: Demand, *, running: bool = False) -> int | Refusal:
        """Return the number of a new promise, or why there is none. Mutates: the ledger."""
        if not self.enforced:
            return self._ledger.reserve(demand.engine, 0, _BOUNDLESS_BYTES, self._used()) or 0
        refusal = self._find_refusal(demand)
        if refusal is not None:
            return refusal
        load = demand.kind is DemandKind.LOAD
        if self._paused and len(self._ledger) and not load and not running:
            return refuse_turn()
        standing = self.standing(demand.engine)
        need_bytes = clip_need(demand.need_bytes, demand.least_bytes, standing)
        spare = 0 if load else standing.margin_bytes
        ceiling = standing.ceilings.hard_bytes - spare
        number = self._ledger.reserve(demand.engine, need_bytes, ceiling, self._used())
        if number is None:
            raise RuntimeError(f"ledger and preflight disagree about {need_bytes} bytes")
        return number

    def _find_refusal(self, demand: Demand, fit_within: FitWithin | None = None) -> Refusal | None:
        """Return why a demand does not fit now, or None; promises nothing."""
        if self._reading is None:
            return _no_reading()
        standing = self.standing(demand.engine)
        need_bytes = clip_need(demand.need_bytes, demand.least_bytes, standing)
        if demand.kind is DemandKind.LOAD:
            return judge_load(need_bytes, standing)
        return judge_prefill(need_bytes, standing, fit_within)

    def _ask_for_room(self, waiter: Waiter) -> bool:
        """Have idle engines unloaded; return whether the demand will fit by that."""
        now = self._clock()
        if self.room is None:
            return False
        if now - waiter.room_asked < self._rules.room_every_seconds:
            return waiter.room_comes
        waiter.room_asked = now
        demand = waiter.demand
        standing = self.standing(demand.engine)
        spare = standing.margin_bytes if demand.kind is DemandKind.LOAD else 0
        headroom_bytes = standing.headroom_bytes + spare
        room = self.room.make_room(demand.engine, demand.need_bytes, headroom_bytes)
        waiter.room_comes = room.enough
        return room.enough


def _no_reading() -> Refusal:
    """Return the refusal while the first sample is not in yet."""
    return Refusal(
        Code.ENGINE_NOT_READY,
        "The agent has not measured its memory yet.",
        Retryable.LATER,
        retry_after_seconds=1,
    )
