"""Who gets which engine: the choice, whom to bring back, the refusals in words, the lease.

Called by the pool. Choosing and leasing are one step, with no await between them.
"""

import math
from collections.abc import Sequence

from manifests.errors import Code, Refusal, Retryable
from manifests.kinds.engine import EnginePhase
from node_agent.engine.messages import Generate
from node_agent.pool.base import EngineView
from node_agent.pool.lifecycle import Woken
from node_agent.pool.roster import Roster
from node_agent.pool.slot import Slot
from node_agent.pool.streams import RowStream

_BUSY_RETRY_SECONDS = 1
_LOADING_RETRY_SECONDS = 5


class PoolLease:
    """The right to use one engine until released."""

    def __init__(self, slot: Slot, view: EngineView) -> None:
        self._slot, self._view = slot, view
        self._idle, self._held = True, True
        slot.use.take()

    @property
    def view(self) -> EngineView:
        """The engine as it was when leased."""
        return self._view

    def generate(self, command: Generate) -> RowStream:
        """Send one row. Raises RuntimeError after release."""
        if not self._held:
            raise RuntimeError("the lease was released")
        self._settle()
        return self._slot.generate(command)

    def release(self) -> None:
        """Give the lease back; a second call does nothing."""
        if not self._held:
            return
        self._held = False
        self._settle()
        self._slot.use.give_back()
        self._slot.note_use()

    def _settle(self) -> None:
        """From the first row on, the rows count and not the lease."""
        if self._idle:
            self._idle = False
            self._slot.use.settle()


def take_lease(roster: Roster, model: str) -> PoolLease | Refusal:
    """Lease the least busy accepting engine that serves a public model name, or say why not.

    Mutates: the engine's leases.
    """
    views = roster.views()
    serving = [view for view in views if serves(view, model)]
    if not serving:
        return refuse_unknown(model, views)
    accepting = [view for view in serving if view.accepting]
    if not accepting:
        return refuse_not_ready(model, serving)
    pairs = [(view, slot) for view in accepting if (slot := roster.get(view.want.name))]
    free = [(view, slot) for view, slot in pairs if slot.load < _places(view)]
    if not free:
        return refuse_full(model, accepting)
    view, slot = min(free, key=lambda pair: (pair[1].load, pair[0].want.name))
    return PoolLease(slot, view)


def bring_back(roster: Roster, model: str) -> bool:
    """Return whether an unloaded engine of a model is on its way back, waking one if need be.

    Mutates: one engine at most, and none while another one is on its way already.
    """
    serving = [view for view in roster.views() if serves(view, model)]
    if any(view.returning for view in serving):
        return True
    for view in serving:
        slot = roster.get(view.want.name)
        if view.evicted and slot is not None:
            slot.handle(Woken())
            return slot.state.returning
    return False


def _places(view: EngineView) -> int:
    return view.want.spec.batching.max_running + view.want.spec.batching.max_waiting


def serves(view: EngineView, model: str) -> bool:
    """Return whether an engine answers to a public model name. Pure."""
    return model == view.want.spec.model or model in view.want.spec.aliases


def refuse_unknown(model: str, views: Sequence[EngineView]) -> Refusal:
    """Return the refusal for a name that no engine here serves. Pure."""
    known = sorted({view.want.spec.model for view in views})
    return Refusal(
        code=Code.MODEL_NOT_FOUND,
        message=f"the model {model!r} is not served here",
        hint=f"served here: {', '.join(known)}" if known else "no model is served here yet",
        param="model",
        retryable=Retryable.ELSEWHERE,
    )


def refuse_full(model: str, views: Sequence[EngineView]) -> Refusal:
    """Return the refusal for engines that hold all they may. Pure."""
    running = sum(view.running for view in views)
    waiting = sum(view.waiting for view in views)
    return Refusal(
        code=Code.QUEUE_FULL,
        message=f"the model {model!r} is busy: {running} requests run and {waiting} wait",
        hint="retry, or raise batching.maxWaiting or replicas of the model",
        retryable=Retryable.ELSEWHERE,
        retry_after_seconds=_BUSY_RETRY_SECONDS,
    )


def refuse_not_ready(model: str, views: Sequence[EngineView]) -> Refusal:
    """Return the refusal for engines that are on their way, stuck or failed. Pure."""
    told = "; ".join(f"engine {view.want.name} is {describe(view)}" for view in views)
    waits = [view.restart_in_seconds for view in views if view.restart_in_seconds is not None]
    retry_after_seconds = max(1, math.ceil(min(waits))) if waits else _LOADING_RETRY_SECONDS
    return Refusal(
        code=Code.ENGINE_NOT_READY,
        message=f"the model {model!r} is not ready: {told}",
        hint="retry later; `mlxctl describe engine` tells more",
        retryable=Retryable.ELSEWHERE,
        retry_after_seconds=retry_after_seconds,
    )


def describe(view: EngineView) -> str:
    """Return an engine's phase in words, such as `loading, 40%`. Pure."""
    if view.phase is EnginePhase.READY and not view.making_progress:
        return "not making progress"
    words = view.phase.value.lower()
    if view.phase in {EnginePhase.LOADING, EnginePhase.DOWNLOADING} and view.progress_total_bytes:
        return f"{words}, {100 * view.progress_done_bytes // view.progress_total_bytes}%"
    if view.phase is EnginePhase.PENDING and view.message:
        return f"{words} ({view.reason}: {view.message})"
    if view.evicted:
        return f"unloaded ({view.reason}: {view.message})"
    if view.phase is not EnginePhase.FAILED:
        return words
    again = view.restart_in_seconds
    retry = "" if again is None else f", next try in {math.ceil(again)} s"
    return f"{words} ({view.reason}: {view.message}){retry}"
