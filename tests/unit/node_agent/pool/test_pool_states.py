"""The life of an engine, pair by pair."""

import itertools
from dataclasses import replace

import pytest

from node_agent.pool.lifecycle import (
    AdmissionDelayed,
    AdmissionRefused,
    Admitted,
    Drained,
    Effect,
    Evicted,
    Exited,
    GuardChanged,
    HelloSeen,
    LinkLost,
    LoadedSeen,
    LoadFailedSeen,
    Phase,
    Resolved,
    ResolveFailed,
    RowsChanged,
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
from node_agent.pool.states import backoff_seconds, transition

NOW = 1000.0
EVENTS = [
    Started(),
    Resolved(),
    ResolveFailed("no files", "SourceNotFound", permanent=True),
    Admitted(),
    AdmissionDelayed("another model loads", 1.0),
    AdmissionRefused("needs 9 GiB"),
    GuardChanged(),
    Spawned(),
    SpawnFailed("no python"),
    HelloSeen(),
    LoadedSeen(),
    LoadFailedSeen("bad weights"),
    LinkLost("closed"),
    Exited("exit code 1"),
    Stuck("no heartbeat"),
    Unwanted(30),
    Evicted("Evicted", "for another"),
    Woken(),
    Drained(),
    RowsChanged(),
    Tick(),
]
E = Effect
# Where each event leads from each phase; what is not listed changes nothing. Deadlines have
# passed, so a Tick acts wherever it can.
EXPECTED = {
    (Phase.RESOLVING, Started): (Phase.RESOLVING, [E.RESOLVE]),
    (Phase.RESOLVING, Resolved): (Phase.ADMITTING, [E.ADMIT]),
    (Phase.RESOLVING, ResolveFailed): (Phase.FAILED, []),
    (Phase.RESOLVING, Unwanted): (Phase.GONE, [E.CANCEL_RESOLVE, E.FORGET]),
    (Phase.ADMITTING, Admitted): (Phase.SPAWNING, [E.SPAWN]),
    (Phase.ADMITTING, AdmissionDelayed): (Phase.ADMITTING, []),
    (Phase.ADMITTING, AdmissionRefused): (Phase.FAILED, []),
    (Phase.ADMITTING, Unwanted): (Phase.GONE, [E.CANCEL_ADMIT, E.FORGET]),
    (Phase.ADMITTING, Tick): (Phase.ADMITTING, [E.ADMIT]),
    (Phase.SPAWNING, SpawnFailed): (Phase.BACKOFF, []),
    (Phase.SPAWNING, HelloSeen): (Phase.LOADING, [E.LOAD]),
    (Phase.SPAWNING, LinkLost): (Phase.STOPPING, [E.FAIL_STREAMS]),
    (Phase.SPAWNING, Exited): (Phase.BACKOFF, [E.FAIL_STREAMS]),
    (Phase.SPAWNING, Stuck): (Phase.STOPPING, [E.FAIL_STREAMS, E.KILL]),
    (Phase.SPAWNING, Unwanted): (Phase.STOPPING, [E.SHUTDOWN]),
    (Phase.LOADING, LoadedSeen): (Phase.READY, []),
    (Phase.LOADING, LoadFailedSeen): (Phase.STOPPING, []),
    (Phase.LOADING, LinkLost): (Phase.STOPPING, [E.FAIL_STREAMS]),
    (Phase.LOADING, Exited): (Phase.BACKOFF, [E.FAIL_STREAMS]),
    (Phase.LOADING, Stuck): (Phase.STOPPING, [E.FAIL_STREAMS, E.KILL]),
    (Phase.LOADING, Unwanted): (Phase.STOPPING, [E.SHUTDOWN]),
    (Phase.READY, LinkLost): (Phase.STOPPING, [E.FAIL_STREAMS]),
    (Phase.READY, Exited): (Phase.BACKOFF, [E.FAIL_STREAMS]),
    (Phase.READY, Stuck): (Phase.STOPPING, [E.FAIL_STREAMS, E.KILL]),
    (Phase.READY, Unwanted): (Phase.DRAINING, []),
    (Phase.READY, Evicted): (Phase.STOPPING, [E.SHUTDOWN]),
    (Phase.DRAINING, LinkLost): (Phase.STOPPING, [E.FAIL_STREAMS]),
    (Phase.DRAINING, Exited): (Phase.GONE, [E.FAIL_STREAMS, E.FORGET]),
    (Phase.DRAINING, Stuck): (Phase.STOPPING, [E.FAIL_STREAMS, E.KILL]),
    (Phase.DRAINING, Unwanted): (Phase.DRAINING, []),
    (Phase.DRAINING, Drained): (Phase.STOPPING, [E.SHUTDOWN]),
    (Phase.DRAINING, Tick): (Phase.STOPPING, [E.SHUTDOWN]),
    (Phase.STOPPING, Spawned): (Phase.STOPPING, [E.SHUTDOWN]),
    (Phase.STOPPING, SpawnFailed): (Phase.GONE, [E.FAIL_STREAMS, E.FORGET]),
    (Phase.STOPPING, Exited): (Phase.GONE, [E.FAIL_STREAMS, E.FORGET]),
    (Phase.STOPPING, Unwanted): (Phase.STOPPING, []),
    (Phase.STOPPING, Tick): (Phase.STOPPING, [E.TERMINATE]),
    (Phase.BACKOFF, Unwanted): (Phase.GONE, [E.FORGET]),
    (Phase.BACKOFF, Tick): (Phase.RESOLVING, [E.RESOLVE]),
    (Phase.FAILED, Unwanted): (Phase.GONE, [E.FORGET]),
    (Phase.FAILED, Tick): (Phase.RESOLVING, [E.RESOLVE]),
    (Phase.STOPPED, Woken): (Phase.RESOLVING, [E.RESOLVE]),
    (Phase.STOPPED, Unwanted): (Phase.GONE, [E.FORGET]),
}


def at(phase: Phase, **fields) -> State:
    return replace(State(phase=phase, since=NOW - 5, deadline=NOW), **fields)


def name_pair(pair) -> str:
    return f"{pair[0].value}-{type(pair[1]).__name__}"


@pytest.mark.parametrize("pair", list(itertools.product(Phase, EVENTS)), ids=name_pair)
def test_every_pair_leads_where_the_table_says(pair):
    phase, event = pair
    before = at(phase)
    after, effects = transition(before, event, NOW)
    if (phase, type(event)) not in EXPECTED:
        assert (after, effects) == (before, ())
        return
    expected_phase, expected_effects = EXPECTED[phase, type(event)]
    assert (after.phase, list(effects)) == (expected_phase, expected_effects)


def test_another_guard_lets_a_load_refused_for_memory_ask_again_at_once():
    refused, _ = transition(at(Phase.ADMITTING), AdmissionRefused("needs 9 GiB"), NOW)
    again, effects = transition(refused, GuardChanged(), NOW + 1)
    assert (again.phase, effects) == (Phase.RESOLVING, (E.RESOLVE,))
    broken = replace(refused, reason="LoadFailed")
    assert transition(broken, GuardChanged(), NOW + 1) == (broken, ())


@pytest.mark.parametrize("phase", [Phase.BACKOFF, Phase.FAILED, Phase.DRAINING, Phase.STOPPING])
def test_a_tick_before_the_deadline_changes_nothing(phase):
    before = at(phase, deadline=NOW + 0.01)
    assert transition(before, Tick(), NOW) == (before, ())


def test_a_stopping_engine_is_asked_then_terminated_then_killed_once():
    timings = Timings(shutdown_wait_seconds=10, terminate_wait_seconds=20)
    state, effects = transition(at(Phase.DRAINING), Drained(), NOW, timings)
    seen = [(NOW, effects)]
    for second in range(1, 60):
        state, effects = transition(state, Tick(), NOW + second, timings)
        if effects:
            seen.append((NOW + second, effects))
    assert seen == [(NOW, (E.SHUTDOWN,)), (NOW + 10, (E.TERMINATE,)), (NOW + 30, (E.KILL,))]
    assert state.phase is Phase.STOPPING
    assert state.stop_step is StopStep.KILLED


def test_crashes_wait_longer_each_time_up_to_a_minute():
    state, waits = at(Phase.READY), []
    for _ in range(9):
        state, _ = transition(state, Exited("exit code 1"), NOW)
        waits.append(state.deadline - NOW)
        state = replace(state, phase=Phase.READY, since=NOW)
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert backoff_seconds(Phase.BACKOFF, 10_000, Timings()) == 60


def test_failed_loads_wait_longer_than_crashes():
    state, waits = at(Phase.LOADING), []
    for _ in range(7):
        state, _ = transition(state, LoadFailedSeen("bad"), NOW)
        state, _ = transition(state, Exited("exit code 3"), NOW)
        assert (state.phase, state.reason, state.message) == (Phase.FAILED, "LoadFailed", "bad")
        waits.append(state.deadline - NOW)
        state = replace(state, phase=Phase.LOADING)
    assert waits == [10, 20, 40, 80, 160, 300, 300]


def test_a_stable_minute_forgets_earlier_failures_and_a_short_run_does_not():
    for ready_seconds, failures in ((59, 6), (60, 1)):
        ready = replace(at(Phase.READY), failures=5, since=NOW - ready_seconds)
        for event in (Exited("exit code 1"), Stuck("x"), LinkLost("x")):
            after, _ = transition(ready, event, NOW)
            if after.phase is Phase.STOPPING:
                after, _ = transition(after, Exited("exit code 1"), NOW)
            assert (after.phase, after.failures) == (Phase.BACKOFF, failures)


def test_a_lost_link_is_named_by_the_exit_that_follows():
    state, _ = transition(at(Phase.READY), LinkLost("closed its socket"), NOW)
    assert state.message == "closed its socket"
    state, _ = transition(state, Exited("killed by signal 9 (SIGKILL)"), NOW)
    assert (state.phase, state.message) == (Phase.BACKOFF, "killed by signal 9 (SIGKILL)")


def test_a_lost_link_without_an_exit_is_killed_soon():
    state, _ = transition(at(Phase.READY), LinkLost("closed"), NOW)
    _, effects = transition(state, Tick(), NOW + 2)
    assert effects == (E.KILL,)


def test_a_stuck_engine_keeps_its_reason_whatever_the_kill_looks_like():
    state, _ = transition(at(Phase.READY), Stuck("one step took 130 s"), NOW)
    state, _ = transition(state, Exited("killed by signal 9 (SIGKILL)"), NOW)
    assert (state.phase, state.reason) == (Phase.BACKOFF, "EngineStuck")
    assert state.message == "one step took 130 s"


def test_an_engine_unwanted_while_it_is_being_killed_does_not_return():
    state, _ = transition(at(Phase.READY), Stuck("x"), NOW)
    state, _ = transition(state, Unwanted(30), NOW)
    state, effects = transition(state, Exited("killed"), NOW)
    assert (state.phase, effects) == (Phase.GONE, (E.FAIL_STREAMS, E.FORGET))


def test_an_old_failure_does_not_lead_a_later_drain_astray():
    state, _ = transition(at(Phase.LOADING), LoadFailedSeen("bad"), NOW)
    state, _ = transition(state, Exited("exit code 3"), NOW)
    for event in (Tick(), Resolved(), Admitted(), HelloSeen(), LoadedSeen()):
        state, _ = transition(state, event, NOW + 1000)
    assert (state.phase, state.reason, state.message) == (Phase.READY, "", "")
    state, _ = transition(state, Unwanted(30), NOW + 1000)
    state, _ = transition(state, Exited("exit code 1"), NOW + 1001)
    assert state.phase is Phase.GONE


def test_a_second_stop_can_only_shorten_the_grace():
    draining, _ = transition(at(Phase.READY), Unwanted(30), NOW)
    longer, _ = transition(draining, Unwanted(60), NOW)
    shorter, _ = transition(draining, Unwanted(5), NOW)
    assert (longer.deadline, shorter.deadline) == (NOW + 30, NOW + 5)


def test_permanent_source_errors_are_retried_each_minute_and_others_with_backoff():
    state = at(Phase.RESOLVING)
    permanent, _ = transition(state, ResolveFailed("gone", "SourceNotFound", True), NOW)
    passing, _ = transition(state, ResolveFailed("slow", "HubUnreachable", False), NOW)
    assert (permanent.phase, permanent.deadline) == (Phase.FAILED, NOW + 60)
    assert (passing.phase, passing.deadline) == (Phase.BACKOFF, NOW + 1)
    assert (passing.reason, passing.message) == ("HubUnreachable", "slow")


def test_restarts_count_processes_after_the_first():
    state = State(since=NOW)
    assert state.restarts == 0
    for expected in (0, 1, 2):
        state, _ = transition(replace(state, phase=Phase.ADMITTING), Admitted(), NOW)
        assert state.restarts == expected
