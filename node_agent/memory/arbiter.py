"""The arbiter: the one door to the node's memory.

Every demand, a request's prefill or a model's load, passes here and is judged and reserved in
one step on the event loop, so two of them never get the same bytes. What can never fit is refused
at once; what fits once something ends waits in one bounded line. It starts no process, reads no
host and writes nothing: the monitor feeds it, serving and the pool ask it. Units: bytes, seconds.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from manifests.errors import Code, Refusal, Retryable
from manifests.estimate import PrefillCase, estimate_prefill
from manifests.guard import MemoryGuardSpec
from node_agent.host.base import HostMemory
from node_agent.memory.advice import plan_fit
from node_agent.memory.base import AdmissionRequest, Reservation
from node_agent.memory.books import MemoryBooks
from node_agent.memory.learning import scale_transient
from node_agent.memory.line import Demand, DemandKind, LineRules, eligible
from node_agent.memory.preflight import FitWithin, judge_load, judge_prefill
from node_agent.memory.reading import EngineUse
from node_agent.memory.room_plan import RoomPlan


class RoomMaker(Protocol):
    """Who can unload idle engines when a demand needs their bytes."""

    def make_room(self, engine: str, need_bytes: int, headroom_bytes: int) -> RoomPlan:
        """Evict what is idle so that the demand fits later; nobody when it would not help."""
        ...


class HeldReservation:
    """Promises of one request or load; releasing twice is harmless."""

    def __init__(self, arbiter: "Arbiter", number: int) -> None:
        self._arbiter, self._number = arbiter, number

    def release(self) -> None:
        """Give the bytes back."""
        self._arbiter.release(self._number)


@dataclass(slots=True)
class _Waiter:
    demand: Demand
    answer: "asyncio.Future[Reservation | Refusal]"
    fit_within: FitWithin | None
    refusal: Refusal | None = None
    head_since: float | None = None
    room_asked: float = field(default=float("-inf"))
    room_comes: bool = False


class Arbiter(MemoryBooks):
    """Judges and reserves."""

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
        super().__init__(guard, fused=fused)
        self.enforced = enforced
        self._rules, self._clock = rules or LineRules(), clock
        self._line: list[_Waiter] = []
        self._numbers = 0
        self._paused = False
        self._grown: dict[tuple[str, str], list[int]] = {}
        self._room: RoomMaker | None = None
        self._listeners: list[Callable[[], None]] = []

    @property
    def waiting(self) -> int:
        """How many demands stand in line."""
        return len(self._line)

    def set_room_maker(self, room: RoomMaker) -> None:
        """Name who unloads idle engines for a demand that would fit then."""
        self._room = room

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call back at once after every promise, release and change of the guards."""
        self._listeners.append(callback)

    def set_guards(
        self, node_guard: MemoryGuardSpec, engine_guards: dict[str, MemoryGuardSpec]
    ) -> None:
        """Follow new guards; an engine without its own follows the node's."""
        if (node_guard, engine_guards) == (self._node_guard, self._engine_guards):
            return
        self._node_guard, self._engine_guards = node_guard, dict(engine_guards)
        self._serve_line()
        self._tell()

    def set_paused(self, paused: bool) -> None:
        """Hold new requests in line while anything is promised; loads and a lone request pass."""
        self._paused = paused
        if not paused:
            self._serve_line()

    def observe(self, host: HostMemory, uses: tuple[EngineUse, ...]) -> None:
        """Take in one sample; engines missing from it are gone.

        Promises stay: whoever holds one gives it back on every way out, the death of its
        engine included.
        """
        self._take_reading(host, uses)
        self._serve_line()

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
        estimate = estimate_prefill(request.shape, case, fused=self.fused)
        need = scale_transient(
            estimate.peak_bytes,
            estimate.scores_bytes + estimate.activations_bytes,
            self.learned(request.engine).ratio,
        )
        demand = self._demand(DemandKind.PREFILL, request.engine, need)
        return await self._await(
            demand,
            wait_seconds,
            lambda limit: plan_fit(request.shape, case, limit, fused=self.fused),
        )

    async def admit_load(
        self, engine: str, need_bytes: int, *, wait_seconds: float = 0.0
    ) -> Reservation | Refusal:
        """Reserve bytes for loading a model, or say why not; release once loaded or failed."""
        return await self._await(self._demand(DemandKind.LOAD, engine, need_bytes), wait_seconds)

    def extend(self, engine: str, request_id: str, more_bytes: int) -> Refusal | None:
        """Promise a running request more, ahead of the line: it holds memory others wait for.

        The growth belongs to the row and goes with it, see `forget_rows`.
        """
        demand = self._demand(DemandKind.PREFILL, engine, more_bytes)
        answer = self._judge(demand, None)
        if isinstance(answer, Refusal):
            return answer
        self._grown.setdefault((engine, request_id), []).append(answer)
        self._tell()
        return None

    def forget_rows(self, alive: set[tuple[str, str]]) -> None:
        """Take back what rows had been promised in addition that no engine holds any more."""
        for key in [key for key in self._grown if key not in alive]:
            for number in self._grown.pop(key):
                self.release(number)

    def release(self, number: int) -> None:
        """Take back a promise; called by its reservation."""
        if self._ledger.release(number, self._used()):
            self._serve_line()
            self._tell()

    def _demand(self, kind: DemandKind, engine: str, need_bytes: int) -> Demand:
        self._numbers += 1
        return Demand(self._numbers, kind, engine, need_bytes, self._clock())

    async def _await(
        self, demand: Demand, wait_seconds: float, fit_within: FitWithin | None = None
    ) -> Reservation | Refusal:
        waiter = _Waiter(demand, asyncio.get_running_loop().create_future(), fit_within)
        refusal = self._try(waiter, may_pass=not self._line)
        if waiter.answer.done():
            return waiter.answer.result()
        if wait_seconds <= 0:
            return refusal or _no_room(waiter)
        if len(self._line) >= self._rules.most_waiting:
            return _line_full(len(self._line))
        self._line.append(waiter)
        self._serve_line()
        try:
            await asyncio.wait({waiter.answer}, timeout=wait_seconds)
        except asyncio.CancelledError:
            _give_back(waiter)
            raise
        finally:
            if waiter in self._line:
                self._line.remove(waiter)
                self._serve_line()
        return waiter.answer.result() if waiter.answer.done() else _no_room(waiter)

    def _serve_line(self) -> None:
        """Give each waiter whose turn it is an answer, from the front, until nothing moves."""
        before = -1
        while self._line and len(self._line) != before:
            before, now = len(self._line), self._clock()
            head = self._line[0]
            head.head_since = now if head.head_since is None else head.head_since
            demands = [item.demand for item in self._line]
            count = eligible(demands, head.head_since, now, self._rules)
            for waiter in tuple(self._line[:count]):
                if not waiter.answer.done():
                    self._try(waiter, may_pass=True)
            self._line = [item for item in self._line if not item.answer.done()]

    def _try(self, waiter: _Waiter, *, may_pass: bool) -> Refusal | None:
        """Answer a waiter if it can be answered now; what it waits for otherwise."""
        answer = self._judge(waiter.demand, waiter.fit_within, may_pass=may_pass)
        if not isinstance(answer, Refusal):
            waiter.answer.set_result(HeldReservation(self, answer))
            self._tell()
            return None
        waiter.refusal = answer
        if answer.code is Code.PREFILL_MEMORY_EXCEEDED:
            comes = answer.retryable is not Retryable.NO and self._ask_for_room(waiter)
            if answer.retryable is not Retryable.LATER and not comes:
                waiter.answer.set_result(answer)
        return answer

    def _judge(
        self, demand: Demand, fit_within: FitWithin | None, *, may_pass: bool = True
    ) -> int | Refusal:
        """Return the number of a new promise, or why there is none. Mutates: the ledger."""
        reading = self._reading
        if not self.enforced:
            return self._ledger.reserve(demand.engine, 0, 1 << 62, self._used()) or 0
        if reading is None:
            return _no_reading()
        standing = self.standing(demand.engine, reading)
        load = demand.kind is DemandKind.LOAD
        refusal = (
            judge_load(demand.need_bytes, standing)
            if load
            else judge_prefill(demand.need_bytes, standing, fit_within)
        )
        if refusal is not None:
            return refusal
        if not may_pass or (self._paused and not load and len(self._ledger)):
            return _wait_in_line()
        spare = 0 if load else standing.margin_bytes
        ceiling = standing.ceilings.hard_bytes - spare
        number = self._ledger.reserve(demand.engine, demand.need_bytes, ceiling, self._used())
        if number is None:
            raise RuntimeError(f"ledger and preflight disagree about {demand.need_bytes} bytes")
        return number

    def _ask_for_room(self, waiter: _Waiter) -> bool:
        """Have idle engines unloaded; return whether the demand will fit by that."""
        now, reading = self._clock(), self._reading
        if self._room is None or reading is None:
            return False
        if now - waiter.room_asked < self._rules.room_every_seconds:
            return waiter.room_comes
        waiter.room_asked = now
        demand = waiter.demand
        standing = self.standing(demand.engine, reading)
        spare = standing.margin_bytes if demand.kind is DemandKind.LOAD else 0
        headroom_bytes = standing.headroom_bytes + spare
        room = self._room.make_room(demand.engine, demand.need_bytes, headroom_bytes)
        waiter.room_comes = room.enough
        return room.enough

    def _tell(self) -> None:
        for callback in self._listeners:
            callback()


def _give_back(waiter: _Waiter) -> None:
    """Undo a grant that came while its caller was being cancelled."""
    if waiter.answer.done() and not waiter.answer.cancelled():
        answer = waiter.answer.result()
        if not isinstance(answer, Refusal):
            answer.release()


def _no_room(waiter: _Waiter) -> Refusal:
    return waiter.refusal or _wait_in_line()


def _wait_in_line() -> Refusal:
    return Refusal(
        Code.QUEUE_FULL,
        "Other requests wait for this node's memory.",
        Retryable.LATER,
        hint="Try again shortly.",
        retry_after_seconds=1,
    )


def _line_full(waiting: int) -> Refusal:
    return Refusal(
        Code.QUEUE_FULL,
        f"{waiting} requests already wait for this node's memory.",
        Retryable.ELSEWHERE,
        hint="Try again shortly, or another node.",
        retry_after_seconds=2,
    )


def _no_reading() -> Refusal:
    """Return the refusal while the first sample is not in yet."""
    return Refusal(
        Code.ENGINE_NOT_READY,
        "The agent has not measured its memory yet.",
        Retryable.LATER,
        retry_after_seconds=1,
    )
