"""One engine as others see it, from its state and its run. Pure.

Called by the slot.
"""

from dataclasses import dataclass, field

from manifests.errors import Code
from manifests.kinds.engine import EnginePhase
from node_agent.pool.base import EngineView, EngineWant
from node_agent.pool.cache_side import CacheTerms
from node_agent.pool.lifecycle import Phase, Reason, State
from node_agent.pool.returned import ReturnedMemory
from node_agent.pool.run import EngineRun
from node_agent.pool.watch import Pulse, WatchLimits, can_progress
from node_agent.sources.base import ModelFiles

_SHOWN_PHASE = {
    Phase.RESOLVING: EnginePhase.PENDING,
    Phase.ADMITTING: EnginePhase.PENDING,
    Phase.SPAWNING: EnginePhase.LOADING,
    Phase.LOADING: EnginePhase.LOADING,
    Phase.READY: EnginePhase.READY,
    Phase.DRAINING: EnginePhase.DRAINING,
    Phase.STOPPING: EnginePhase.DRAINING,
    Phase.BACKOFF: EnginePhase.FAILED,
    Phase.FAILED: EnginePhase.FAILED,
    Phase.STOPPED: EnginePhase.STOPPED,
    Phase.GONE: EnginePhase.STOPPED,
}


@dataclass(frozen=True, slots=True)
class SlotParts:
    """What a slot knows at one moment; `idle_seconds` is None unless it is ready and unused."""

    want: EngineWant
    state: State
    files: ModelFiles | None
    run: EngineRun
    now: float
    leases: int
    idle_seconds: float | None
    returned: ReturnedMemory
    cache_terms: CacheTerms = field(default_factory=CacheTerms)


def describe_slot(parts: SlotParts, limits: WatchLimits) -> EngineView:
    """Return the view of one engine."""
    run, state = parts.run, parts.state
    pulse = take_pulse(state, run, parts.now)
    reason, message = describe_reason(state)
    restart_in_seconds = None
    if state.phase in {Phase.BACKOFF, Phase.FAILED} and state.deadline is not None:
        restart_in_seconds = max(0.0, state.deadline - parts.now)
    return EngineView(
        want=parts.want,
        phase=_shown_phase(state, run),
        reason=reason,
        message=message,
        files=parts.files,
        loaded=run.loaded,
        heartbeat=run.heartbeat,
        heartbeat_age_seconds=None if run.heartbeat is None else pulse.heartbeat_age_seconds,
        pid=run.pid,
        restarts=state.restarts,
        restart_in_seconds=restart_in_seconds,
        started_epoch_seconds=run.started_epoch_seconds,
        progress_done_bytes=run.done_bytes,
        progress_total_bytes=run.total_bytes,
        running=run.streams.running,
        waiting=run.streams.waiting,
        prompt_tokens_left=run.streams.prompt_tokens_left,
        prefill_tokens_per_second=run.rates.prefill_tokens_per_second,
        prefill_context_tokens=run.rates.prefill_context_tokens,
        decode_tokens_per_second=run.rates.decode_tokens_per_second,
        making_progress=can_progress(pulse, limits),
        idle_seconds=parts.idle_seconds,
        leases=parts.leases,
        evicted=state.evicted,
        returning=state.returning,
        rows=run.streams.rows,
        load_seconds=state.load_seconds,
        freed_bytes=parts.returned.freed_bytes,
        unwired_bytes=parts.returned.unwired_bytes,
        cache=run.cache.view(parts.cache_terms),
    )


def take_pulse(state: State, run: EngineRun, now: float) -> Pulse:
    """Return what is known of an engine's movement at a moment."""
    return Pulse(
        phase=state.phase,
        phase_seconds=now - state.since,
        heartbeat=run.heartbeat,
        heartbeat_age_seconds=now - run.heartbeat_at,
    )


def describe_reason(state: State) -> tuple[str, str]:
    """Return the reason and the message to show; while it waits for memory, that."""
    if state.phase is Phase.ADMITTING:
        return Reason.WAITING_FOR_MEMORY, state.waits_for
    fallback = "" if state.phase is Phase.READY else state.phase.value
    return state.reason or fallback, state.message


def explain_end(name: str, state: State) -> tuple[Code, str]:
    """Return the code and the words with which an engine's rows end."""
    if state.reason == Reason.ENGINE_STUCK:
        return Code.ENGINE_STUCK, f"engine {name} was stopped: {state.message}"
    if state.reason == Reason.ENGINE_DIED:
        return Code.ENGINE_DIED, f"engine {name} died: {state.message}"
    return Code.SHUTTING_DOWN, f"engine {name} was stopped"


def _shown_phase(state: State, run: EngineRun) -> EnginePhase:
    if state.phase is Phase.STOPPING and state.then in {Phase.BACKOFF, Phase.FAILED}:
        return EnginePhase.FAILED
    if state.phase is Phase.RESOLVING and run.total_bytes > 0:
        return EnginePhase.DOWNLOADING
    return _SHOWN_PHASE[state.phase]
