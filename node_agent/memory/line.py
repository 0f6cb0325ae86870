"""The line for memory: who waits, who may go next, and who may slip past.

Owns the order and the waiting; whether a demand fits is the arbiter's to say. Units: bytes,
seconds of the agent's monotonic clock.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from manifests.errors import Code, Refusal, Retryable
from node_agent.memory.base import Reservation


class DemandKind(StrEnum):
    """What the bytes are for."""

    PREFILL = "prefill"
    LOAD = "load"


@dataclass(frozen=True, slots=True)
class LineRules:
    """How long the line may be and how patient its head must be.

    Others may pass a head that does not fit yet for `pass_seconds` after it came to the front,
    because small requests should not wait for a large one; after that nobody passes it, so it
    is served as soon as its bytes are free. A load whose room is not on its way may wait for as
    long as another model is busy or pinned, so it keeps its place and holds up nobody.
    """

    most_waiting: int = 64
    pass_seconds: float = 2.0
    room_every_seconds: float = 1.0


@dataclass(frozen=True, slots=True)
class Demand:
    """One request's or load's need.

    `need_bytes` takes into account what the engine's earlier prefills have taught, `least_bytes`
    does not; a load has learned nothing.
    """

    kind: DemandKind
    engine: str
    need_bytes: int
    least_bytes: int | None = None


@dataclass(slots=True)
class Waiter:
    """A demand and whom to answer; `refusal` is why it was not served yet.

    `room_asked` is when idle engines were last asked to make room for it, `room_comes` whether
    that will be enough.
    """

    demand: Demand
    answer: "asyncio.Future[Reservation | Refusal]"
    refusal: Refusal | None = None
    head_since: float | None = None
    room_asked: float = field(default=float("-inf"))
    room_comes: bool = False

    @property
    def yields(self) -> bool:
        """Whether it holds up nobody: a load that nothing makes room for yet."""
        return self.demand.kind is DemandKind.LOAD and not self.room_comes


def plan_tries(line: Sequence[Waiter], now: float, rules: LineRules) -> list[Waiter]:
    """Return who may be tried now, from the front; nobody passes an impatient head. Pure."""
    head = find_head(line)
    if head is None or head.head_since is None or now - head.head_since < rules.pass_seconds:
        return list(line)
    return [waiter for waiter in line if waiter.yields or waiter is head]


def find_head(line: Sequence[Waiter]) -> Waiter | None:
    """Return the first whom others wait behind, or None."""
    return next((waiter for waiter in line if not waiter.yields), None)


class WaitingLine:
    """The one line of a node. `attempt` answers a waiter's future if it can be answered now."""

    def __init__(
        self, rules: LineRules, clock: Callable[[], float], attempt: Callable[[Waiter], object]
    ) -> None:
        self._rules, self._clock, self._attempt = rules, clock, attempt
        self._waiters: list[Waiter] = []

    def __len__(self) -> int:
        return len(self._waiters)

    def serve(self) -> None:
        """Give each waiter whose turn it is a try, from the front, until nothing moves."""
        before = -1
        while self._waiters and len(self._waiters) != before:
            before, now = len(self._waiters), self._clock()
            head = find_head(self._waiters)
            if head is not None and head.head_since is None:
                head.head_since = now
            for waiter in plan_tries(self._waiters, now, self._rules):
                if not waiter.answer.done():
                    self._attempt(waiter)
            self._waiters = [item for item in self._waiters if not item.answer.done()]

    async def wait(self, waiter: Waiter, seconds: float) -> Reservation | Refusal:
        """Stand in line for an answer; a cancelled caller leaves it and holds nothing."""
        if len(self._waiters) >= self._rules.most_waiting:
            return refuse_full(len(self._waiters))
        self._waiters.append(waiter)
        self.serve()
        try:
            await asyncio.wait({waiter.answer}, timeout=seconds)
        except asyncio.CancelledError:
            _give_back(waiter)
            raise
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
                self.serve()
        if waiter.answer.done():
            return waiter.answer.result()
        return waiter.refusal or refuse_turn()


def refuse_turn() -> Refusal:
    """Return the refusal of a demand that others stand before."""
    return Refusal(
        Code.QUEUE_FULL,
        "Other requests wait for this node's memory.",
        Retryable.LATER,
        hint="Try again shortly.",
        retry_after_seconds=1,
    )


def refuse_full(waiting: int) -> Refusal:
    """Return the refusal of a line that holds all it may."""
    return Refusal(
        Code.QUEUE_FULL,
        f"{waiting} requests already wait for this node's memory.",
        Retryable.ELSEWHERE,
        hint="Try again shortly, or another node.",
        retry_after_seconds=2,
    )


def _give_back(waiter: Waiter) -> None:
    """Undo a grant that came while its caller was being cancelled."""
    if waiter.answer.done() and not waiter.answer.cancelled():
        answer = waiter.answer.result()
        if not isinstance(answer, Refusal):
            answer.release()
