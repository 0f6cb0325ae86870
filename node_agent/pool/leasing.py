"""Who gets which engine: the choice, the refusals in words, and the lease itself."""

import math
from collections.abc import Sequence

from manifests.engine import EnginePhase
from manifests.errors import Code, Refusal, Retryable
from node_agent.engine.messages import Generate
from node_agent.pool.base import EngineView
from node_agent.pool.slot import Slot
from node_agent.pool.streams import RowStream

_BUSY_RETRY_SECONDS = 1
_LOADING_RETRY_SECONDS = 5


class PoolLease:
    """The right to use one engine until released."""

    def __init__(self, slot: Slot, view: EngineView) -> None:
        self._slot, self._view = slot, view
        self._idle, self._held = True, True
        slot.leases += 1
        slot.idle_leases += 1

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
        self._slot.leases -= 1
        self._slot.note_idle()

    def _settle(self) -> None:
        """From the first row on, the rows count and not the lease."""
        if self._idle:
            self._idle = False
            self._slot.idle_leases -= 1


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
    if view.phase is not EnginePhase.FAILED:
        return words
    again = view.restart_in_seconds
    retry = "" if again is None else f", next try in {math.ceil(again)} s"
    return f"{words} ({view.reason}: {view.message}){retry}"
