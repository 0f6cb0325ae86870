"""Asking for memory, unloading and coming back, as transitions."""

from dataclasses import replace

import pytest

from node_agent.pool.lifecycle import (
    AdmissionDelayed,
    AdmissionRefused,
    Admitted,
    Effect,
    Evicted,
    Exited,
    HelloSeen,
    LinkLost,
    LoadedSeen,
    LoadFailedSeen,
    Phase,
    Resolved,
    State,
    StopStep,
    Stuck,
    Tick,
    Timings,
    Unwanted,
    Woken,
)
from node_agent.pool.slot_view import describe_reason
from node_agent.pool.states import transition

NOW = 1000.0
TIMINGS = Timings(shutdown_wait_seconds=10, terminate_wait_seconds=20, permanent_retry_seconds=60)
READY = State(phase=Phase.READY, since=NOW - 100, starts=3)


def after(state: State, *events, now: float = NOW) -> State:
    for event in events:
        state, _ = transition(state, event, now, TIMINGS)
    return state


EVICTED = after(READY, Evicted("Evicted", "for another"), Exited("exit code 0"))
BACK = (Resolved("1 GiB"), Admitted(), HelloSeen(), LoadedSeen())


def test_a_load_that_waits_for_memory_says_so_and_asks_again_when_told():
    state = after(State(since=NOW), Resolved("its load needs 1 GiB"))
    assert describe_reason(state) == ("WaitingForMemory", "its load needs 1 GiB")
    state = after(state, AdmissionDelayed("1 GiB needed, 10 MiB free", 3))
    assert describe_reason(state) == ("WaitingForMemory", "1 GiB needed, 10 MiB free")
    for seconds, effects in ((2.9, ()), (3, (Effect.ADMIT,))):
        again, told = transition(state, Tick(), NOW + seconds, TIMINGS)
        assert (again.phase, told) == (Phase.ADMITTING, effects)
    # It asks once, not at every tick.
    assert transition(again, Tick(), NOW + 60, TIMINGS) == (again, ())
    assert describe_reason(after(again, Admitted())) == ("Spawning", "")


def test_waiting_for_memory_does_not_hide_why_the_engine_failed_before():
    state = replace(State(since=NOW), reason="EngineDied", message="exit code 1")
    state = after(state, Resolved("1 GiB"))
    assert describe_reason(state)[0] == "WaitingForMemory"
    assert describe_reason(after(state, Admitted())) == ("EngineDied", "exit code 1")


def test_a_load_that_can_never_fit_is_failed_and_retried_slowly():
    state = after(State(since=NOW), Resolved(), AdmissionRefused("needs 9 GiB of 8 GiB"))
    assert (state.phase, state.deadline) == (Phase.FAILED, NOW + 60)
    assert describe_reason(state) == ("InsufficientMemory", "needs 9 GiB of 8 GiB")


def test_an_unload_is_asked_then_terminated_then_killed_and_ends_stopped():
    state, effects = transition(READY, Evicted("IdleTTL", "no request for 5m"), NOW, TIMINGS)
    seen = [(NOW, effects)]
    for second in range(1, 60):
        state, effects = transition(state, Tick(), NOW + second, TIMINGS)
        if effects:
            seen.append((NOW + second, effects))
    assert seen == [
        (NOW, (Effect.SHUTDOWN,)),
        (NOW + 10, (Effect.TERMINATE,)),
        (NOW + 30, (Effect.KILL,)),
    ]
    assert state.evicted
    state = after(state, Exited("killed by signal 9 (SIGKILL)"), now=NOW + 31)
    assert (state.phase, state.evicted) == (Phase.STOPPED, True)
    assert describe_reason(state) == ("IdleTTL", "no request for 5m")


def test_an_unloaded_engine_stays_so_until_somebody_asks():
    assert after(EVICTED, Tick(), Tick(), now=NOW + 10_000) == EVICTED


def test_a_request_brings_an_unloaded_engine_back_without_counting_a_restart():
    state, effects = transition(EVICTED, Woken(), NOW, TIMINGS)
    assert (state.phase, effects) == (Phase.RESOLVING, (Effect.RESOLVE,))
    for event in BACK:
        assert state.returning
        assert not state.evicted
        state = after(state, event)
    assert (state.phase, state.returning, state.woken) == (Phase.READY, False, True)
    assert state.restarts == READY.restarts
    assert (state.reason, state.message) == ("", "")


def test_a_request_during_the_unload_waits_for_the_exit_and_then_loads():
    leaving = after(READY, Evicted("Evicted", "x"))
    state, effects = transition(leaving, Woken(), NOW, TIMINGS)
    assert (state.phase, effects, state.returning) == (Phase.STOPPING, (), True)
    assert not state.evicted
    # Being asked for must not make the unload more patient.
    assert (state.stop_step, state.deadline) == (StopStep.ASKED, leaving.deadline)
    state, effects = transition(state, Exited("exit code 0"), NOW, TIMINGS)
    assert (state.phase, effects, state.woken) == (Phase.RESOLVING, (Effect.RESOLVE,), True)


def test_nothing_wakes_an_engine_that_leaves_for_another_reason():
    for leaving in (
        after(READY, LinkLost("closed")),
        after(READY, Stuck("no heartbeat")),
        after(State(phase=Phase.LOADING, since=NOW), LoadFailedSeen("bad")),
        after(State(phase=Phase.LOADING, since=NOW), Unwanted(1)),
    ):
        assert after(leaving, Woken()) == leaving


def test_an_engine_unwanted_while_it_is_unloaded_or_asked_back_goes_for_good():
    leaving = after(READY, Evicted("Evicted", "x"))
    for state in (leaving, after(leaving, Woken())):
        assert after(state, Unwanted(30), Exited("exit code 0")).phase is Phase.GONE
    assert after(EVICTED, Unwanted(30)).phase is Phase.GONE


@pytest.mark.parametrize(
    "ends",
    [
        (Resolved(), AdmissionRefused("no")),
        (Resolved(), Admitted(), Exited("exit code 1")),
        (Resolved(), Admitted(), HelloSeen(), LoadFailedSeen("bad"), Exited("exit code 3")),
    ],
)
def test_an_engine_that_fails_on_its_way_back_is_not_waited_for(ends):
    state = after(EVICTED, Woken(), *ends)
    assert (state.returning, state.evicted, state.woken) == (False, False, False)


def test_a_crash_after_the_return_is_a_crash_like_any_other():
    state = after(EVICTED, Woken(), *BACK, Exited("exit code 1"))
    assert (state.phase, state.returning) == (Phase.BACKOFF, False)
    state = after(state, Tick(), *BACK, now=NOW + 100)
    assert (state.phase, state.restarts) == (Phase.READY, READY.restarts + 1)


def test_the_time_of_a_load_is_counted_from_the_start_of_its_process():
    state = after(State(since=NOW), Resolved(), now=NOW)
    state = after(state, Admitted(), now=NOW + 50)
    state = after(state, HelloSeen(), LoadedSeen(), now=NOW + 57)
    assert state.load_seconds == 7


def test_granted_bytes_are_held_exactly_while_there_may_be_a_process():
    holding = {phase for phase in Phase if State(phase=phase).holds_memory}
    assert holding == {
        Phase.SPAWNING,
        Phase.LOADING,
        Phase.READY,
        Phase.DRAINING,
        Phase.STOPPING,
    }
