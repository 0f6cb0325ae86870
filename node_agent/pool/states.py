"""The life of one engine as a pure state machine: (state, event, now) -> (state, effects).

Owns every decision about starting, restarting and stopping. It does no I/O and reads no clock;
`slot.py` feeds it events and carries out the effects. A pair that is not in the table changes
nothing, so a late or repeated event is harmless.
"""

from collections.abc import Callable
from dataclasses import replace

from node_agent.pool.lifecycle import (
    AdmissionDelayed,
    AdmissionRefused,
    Admitted,
    Drained,
    Effect,
    Event,
    Evicted,
    Exited,
    GuardChanged,
    HelloSeen,
    LinkLost,
    LoadedSeen,
    LoadFailedSeen,
    Phase,
    Reason,
    Resolved,
    ResolveFailed,
    Spawned,
    SpawnFailed,
    Started,
    State,
    StopStep,
    Stuck,
    Tick,
    Timings,
    Unwanted,
    Woken,
)

Outcome = tuple[State, tuple[Effect, ...]]
DEFAULT_TIMINGS = Timings()


def transition(
    state: State, event: Event, now: float, timings: Timings = DEFAULT_TIMINGS
) -> Outcome:
    """Return the next state and what to do. Pure; an unforeseen pair changes nothing."""
    handler = TABLE.get((state.phase, type(event)))
    return (state, ()) if handler is None else handler(state, event, now, timings)


def backoff_seconds(then: Phase, failures: int, timings: Timings) -> float:
    """Return how long to wait after the n-th failure in a row; loads wait longer. Pure."""
    slow = then is Phase.FAILED
    low = timings.load_backoff_min_seconds if slow else timings.backoff_min_seconds
    high = timings.load_backoff_max_seconds if slow else timings.backoff_max_seconds
    # The exponent is capped so that a thousand failures do not overflow.
    return min(high, low * 2.0 ** min(max(failures - 1, 0), 32))


def _enter(state: State, phase: Phase, now: float) -> State:
    return replace(state, phase=phase, since=now, deadline=None, then=Phase.GONE, waits_for="")


def _start(state: State, _event: Event, now: float, _timings: Timings) -> Outcome:
    return _enter(state, Phase.RESOLVING, now), (Effect.RESOLVE,)


def _resolved(state: State, event: Event, now: float, _timings: Timings) -> Outcome:
    assert isinstance(event, Resolved)  # noqa: S101 - the table guarantees it
    return replace(_enter(state, Phase.ADMITTING, now), waits_for=event.needs), (Effect.ADMIT,)


def _admitted(state: State, _event: Event, now: float, _timings: Timings) -> Outcome:
    spawning = replace(_enter(state, Phase.SPAWNING, now), starts=state.starts + 1, spawned_at=now)
    return spawning, (Effect.SPAWN,)


def _admission_delayed(state: State, event: Event, now: float, _timings: Timings) -> Outcome:
    assert isinstance(event, AdmissionDelayed)  # noqa: S101 - the table guarantees it
    return replace(state, waits_for=event.message, deadline=now + event.again_seconds), ()


def _ask_again(state: State, _event: Event, now: float, _timings: Timings) -> Outcome:
    if state.deadline is None or now < state.deadline:
        return state, ()
    return replace(state, deadline=None), (Effect.ADMIT,)


def _admission_refused(state: State, event: Event, now: float, timings: Timings) -> Outcome:
    assert isinstance(event, AdmissionRefused)  # noqa: S101 - the table guarantees it
    told = replace(state, reason=Reason.INSUFFICIENT_MEMORY, message=event.message)
    return _fail_for_long(told, now, timings), ()


def _leave_admitting(state: State, _event: Event, now: float, _timings: Timings) -> Outcome:
    return _enter(state, Phase.GONE, now), (Effect.CANCEL_ADMIT, Effect.FORGET)


def _resolve_failed(state: State, event: Event, now: float, timings: Timings) -> Outcome:
    assert isinstance(event, ResolveFailed)  # noqa: S101 - the table guarantees it
    failed = replace(state, reason=event.code, message=event.message)
    if not event.permanent:
        return _wait(failed, Phase.BACKOFF, now, timings), ()
    return _fail_for_long(failed, now, timings), ()


def _fail_for_long(state: State, now: float, timings: Timings) -> State:
    """Return the state after a failure that only a change of the world cures."""
    return replace(
        _enter(state, Phase.FAILED, now),
        failures=state.failures + 1,
        deadline=now + timings.permanent_retry_seconds,
        woken=False,
    )


def _spawn_failed(state: State, event: Event, now: float, timings: Timings) -> Outcome:
    assert isinstance(event, SpawnFailed)  # noqa: S101 - the table guarantees it
    failed = replace(state, reason=Reason.SPAWN_FAILED, message=event.message)
    return _wait(failed, Phase.BACKOFF, now, timings), ()


def _wait(state: State, phase: Phase, now: float, timings: Timings) -> State:
    """Return the state of waiting for the next try."""
    failures = state.failures + 1
    deadline = now + backoff_seconds(phase, failures, timings)
    return replace(_enter(state, phase, now), failures=failures, deadline=deadline, woken=False)


def _hello(state: State, _event: Event, now: float, _timings: Timings) -> Outcome:
    return _enter(state, Phase.LOADING, now), (Effect.LOAD,)


def _loaded(state: State, _event: Event, now: float, _timings: Timings) -> Outcome:
    ready = replace(_enter(state, Phase.READY, now), reason="", message="")
    return replace(ready, load_seconds=now - state.spawned_at), ()


def _evict(state: State, event: Event, now: float, timings: Timings) -> Outcome:
    assert isinstance(event, Evicted)  # noqa: S101 - the table guarantees it
    calm = _forgive(state, now, timings)
    told = replace(calm, reason=event.reason, message=event.message, woken=False)
    return _stop(told, Phase.STOPPED, now, timings), (Effect.SHUTDOWN,)


def _wake(state: State, event: Event, now: float, timings: Timings) -> Outcome:
    """Bring it back; this start is nobody's fault, so it is not counted as a restart."""
    woken = replace(state, woken=True, starts=state.starts - 1, reason="", message="")
    return _start(woken, event, now, timings)


def _wake_once_gone(state: State, _event: Event, _now: float, _timings: Timings) -> Outcome:
    """Its memory must be back before it can be asked for again, so it leaves first."""
    if state.then is not Phase.STOPPED:
        return state, ()
    return replace(state, then=Phase.RESOLVING, woken=True), ()


def _stop(state: State, then: Phase, now: float, timings: Timings) -> State:
    return replace(
        _enter(state, Phase.STOPPING, now),
        then=then,
        stop_step=StopStep.ASKED,
        deadline=now + timings.shutdown_wait_seconds,
    )


def _load_failed(state: State, event: Event, now: float, timings: Timings) -> Outcome:
    assert isinstance(event, LoadFailedSeen)  # noqa: S101 - the table guarantees it
    failed = replace(state, reason=Reason.LOAD_FAILED, message=event.message)
    return _stop(failed, Phase.FAILED, now, timings), ()


def _forgive(state: State, now: float, timings: Timings) -> State:
    """A long stable run forgets the failures before it."""
    ready = state.phase in {Phase.READY, Phase.DRAINING}
    stable = ready and now - state.since >= timings.stable_seconds
    return replace(state, failures=0) if stable else state


def _crashed(state: State, event: Event, now: float, timings: Timings) -> Outcome:
    assert isinstance(event, Exited)  # noqa: S101 - the table guarantees it
    dead = replace(_forgive(state, now, timings), reason=Reason.ENGINE_DIED, message=event.words)
    return _wait(dead, Phase.BACKOFF, now, timings), (Effect.FAIL_STREAMS,)


def _link_lost(state: State, event: Event, now: float, timings: Timings) -> Outcome:
    assert isinstance(event, LinkLost)  # noqa: S101 - the table guarantees it
    then = Phase.GONE if state.phase is Phase.DRAINING else Phase.BACKOFF
    dying = replace(_forgive(state, now, timings), reason=Reason.ENGINE_DIED, message=event.message)
    # It is most likely exiting by itself; a signal now would hide its own exit code.
    stopping = replace(
        _stop(dying, then, now, timings),
        stop_step=StopStep.TERMINATED,
        deadline=now + timings.lost_link_wait_seconds,
    )
    return stopping, (Effect.FAIL_STREAMS,)


def _stuck(state: State, event: Event, now: float, timings: Timings) -> Outcome:
    assert isinstance(event, Stuck)  # noqa: S101 - the table guarantees it
    then = Phase.GONE if state.phase is Phase.DRAINING else Phase.BACKOFF
    stuck = replace(
        _forgive(state, now, timings), reason=Reason.ENGINE_STUCK, message=event.message
    )
    killed = replace(_stop(stuck, then, now, timings), stop_step=StopStep.KILLED, deadline=None)
    return killed, (Effect.FAIL_STREAMS, Effect.KILL)


def _leave_resolving(state: State, _event: Event, now: float, _timings: Timings) -> Outcome:
    return _enter(state, Phase.GONE, now), (Effect.CANCEL_RESOLVE, Effect.FORGET)


def _leave(state: State, _event: Event, now: float, _timings: Timings) -> Outcome:
    return _enter(state, Phase.GONE, now), (Effect.FORGET,)


def _stop_starting(state: State, _event: Event, now: float, timings: Timings) -> Outcome:
    return _stop(state, Phase.GONE, now, timings), (Effect.SHUTDOWN,)


def _drain(state: State, event: Event, now: float, _timings: Timings) -> Outcome:
    assert isinstance(event, Unwanted)  # noqa: S101 - the table guarantees it
    return replace(_enter(state, Phase.DRAINING, now), deadline=now + event.grace_seconds), ()


def _hurry(state: State, event: Event, now: float, _timings: Timings) -> Outcome:
    """A second call to stop can only shorten the grace."""
    assert isinstance(event, Unwanted)  # noqa: S101 - the table guarantees it
    deadline = now + event.grace_seconds
    current = state.deadline if state.deadline is not None else deadline
    return replace(state, deadline=min(current, deadline)), ()


def _drained(state: State, _event: Event, now: float, timings: Timings) -> Outcome:
    return _stop(state, Phase.GONE, now, timings), (Effect.SHUTDOWN,)


def _grace_over(state: State, event: Event, now: float, timings: Timings) -> Outcome:
    if state.deadline is None or now < state.deadline:
        return state, ()
    return _drained(state, event, now, timings)


def _push(state: State, _event: Event, now: float, timings: Timings) -> Outcome:
    """Push a stopping engine harder: asked, terminated, killed."""
    if state.deadline is None or now < state.deadline:
        return state, ()
    if state.stop_step is StopStep.ASKED:
        pushed = replace(
            state,
            stop_step=StopStep.TERMINATED,
            deadline=now + timings.terminate_wait_seconds,
        )
        return pushed, (Effect.TERMINATE,)
    return replace(state, stop_step=StopStep.KILLED, deadline=None), (Effect.KILL,)


def _spawned_too_late(state: State, _event: Event, now: float, timings: Timings) -> Outcome:
    again = replace(state, stop_step=StopStep.ASKED, deadline=now + timings.shutdown_wait_seconds)
    return again, (Effect.SHUTDOWN,)


def _stopped(state: State, event: Event, now: float, timings: Timings) -> Outcome:
    if state.phase is Phase.DRAINING and isinstance(event, Exited):
        state = replace(state, reason=Reason.ENGINE_DIED, message=event.words)
    if state.then is Phase.GONE:
        return _enter(state, Phase.GONE, now), (Effect.FAIL_STREAMS, Effect.FORGET)
    if state.then is Phase.STOPPED:
        return _enter(state, Phase.STOPPED, now), (Effect.FAIL_STREAMS,)
    if state.then is Phase.RESOLVING:
        return _wake(state, event, now, timings)
    if isinstance(event, Exited) and state.reason == Reason.ENGINE_DIED:
        state = replace(state, message=event.words)
    return _wait(state, state.then, now, timings), (Effect.FAIL_STREAMS,)


def _do_not_return(state: State, _event: Event, _now: float, _timings: Timings) -> Outcome:
    return replace(state, then=Phase.GONE), ()


def _retry(state: State, event: Event, now: float, timings: Timings) -> Outcome:
    if state.deadline is None or now < state.deadline:
        return state, ()
    return _start(state, event, now, timings)


def _retry_refused(state: State, event: Event, now: float, timings: Timings) -> Outcome:
    """The user has just turned the knob that the refusal named, so it is not waited for."""
    if state.reason != Reason.INSUFFICIENT_MEMORY:
        return state, ()
    return _start(state, event, now, timings)


Handler = Callable[[State, Event, float, Timings], Outcome]

TABLE: dict[tuple[Phase, type[Event]], Handler] = {
    (Phase.RESOLVING, Started): _start,
    (Phase.RESOLVING, Resolved): _resolved,
    (Phase.RESOLVING, ResolveFailed): _resolve_failed,
    (Phase.RESOLVING, Unwanted): _leave_resolving,
    (Phase.ADMITTING, Admitted): _admitted,
    (Phase.ADMITTING, AdmissionDelayed): _admission_delayed,
    (Phase.ADMITTING, AdmissionRefused): _admission_refused,
    (Phase.ADMITTING, Unwanted): _leave_admitting,
    (Phase.ADMITTING, Tick): _ask_again,
    (Phase.SPAWNING, SpawnFailed): _spawn_failed,
    (Phase.SPAWNING, HelloSeen): _hello,
    (Phase.SPAWNING, LinkLost): _link_lost,
    (Phase.SPAWNING, Exited): _crashed,
    (Phase.SPAWNING, Stuck): _stuck,
    (Phase.SPAWNING, Unwanted): _stop_starting,
    (Phase.LOADING, LoadedSeen): _loaded,
    (Phase.LOADING, LoadFailedSeen): _load_failed,
    (Phase.LOADING, LinkLost): _link_lost,
    (Phase.LOADING, Exited): _crashed,
    (Phase.LOADING, Stuck): _stuck,
    (Phase.LOADING, Unwanted): _stop_starting,
    (Phase.READY, LinkLost): _link_lost,
    (Phase.READY, Exited): _crashed,
    (Phase.READY, Stuck): _stuck,
    (Phase.READY, Unwanted): _drain,
    (Phase.READY, Evicted): _evict,
    (Phase.DRAINING, LinkLost): _link_lost,
    (Phase.DRAINING, Exited): _stopped,
    (Phase.DRAINING, Stuck): _stuck,
    (Phase.DRAINING, Unwanted): _hurry,
    (Phase.DRAINING, Drained): _drained,
    (Phase.DRAINING, Tick): _grace_over,
    (Phase.STOPPING, Spawned): _spawned_too_late,
    (Phase.STOPPING, SpawnFailed): _stopped,
    (Phase.STOPPING, Exited): _stopped,
    (Phase.STOPPING, Unwanted): _do_not_return,
    (Phase.STOPPING, Woken): _wake_once_gone,
    (Phase.STOPPING, Tick): _push,
    (Phase.BACKOFF, Unwanted): _leave,
    (Phase.BACKOFF, Tick): _retry,
    (Phase.FAILED, Unwanted): _leave,
    (Phase.FAILED, Tick): _retry,
    (Phase.FAILED, GuardChanged): _retry_refused,
    (Phase.STOPPED, Woken): _wake,
    (Phase.STOPPED, Unwanted): _leave,
}
