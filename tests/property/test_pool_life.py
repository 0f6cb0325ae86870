"""Whatever happens to an engine: one process at a time, memory before it, and a way out."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from node_agent.pool.lifecycle import (
    AdmissionDelayed,
    AdmissionRefused,
    Admitted,
    Drained,
    Effect,
    Evicted,
    Exited,
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
    Unwanted,
    Woken,
)
from node_agent.pool.states import transition

EVENTS = st.sampled_from(
    [
        Started(),
        Resolved(),
        ResolveFailed("x", "SourceNotFound", permanent=True),
        ResolveFailed("x", "HubUnreachable", permanent=False),
        Admitted(),
        AdmissionDelayed("x", 1.0),
        AdmissionRefused("x"),
        Spawned(),
        SpawnFailed("x"),
        HelloSeen(),
        LoadedSeen(),
        LoadFailedSeen("x"),
        LinkLost("x"),
        Exited("exit code 1"),
        Stuck("x"),
        Evicted("Evicted", "x"),
        Woken(),
        Drained(),
        RowsChanged(),
        Tick(),
    ]
)


@given(st.lists(st.tuples(EVENTS, st.floats(0, 400)), max_size=40))
def test_after_any_events_an_unwanted_engine_goes_once_its_process_is_killed(events):
    state, now, forgotten = State(), 0.0, 0
    for event, seconds in events:
        now += seconds
        state, _ = transition(state, event, now)
    state, effects = transition(state, Unwanted(30), now)
    forgotten += effects.count(Effect.FORGET)
    for _ in range(8):
        now += 1000
        state, effects = transition(state, Tick(), now)
        forgotten += effects.count(Effect.FORGET)
        if state.phase is Phase.STOPPING and state.stop_step is StopStep.KILLED:
            state, effects = transition(state, Exited("killed"), now)
            forgotten += effects.count(Effect.FORGET)
    assert (state.phase, forgotten) == (Phase.GONE, 1)
    for event in (Tick(), Woken(), Admitted(), Exited("x")):
        assert transition(state, event, now + 1000) == (state, ())


class LifeOfAnEngine(RuleBasedStateMachine):
    """A world in which only possible things happen: effects make and end tasks and processes."""

    def __init__(self) -> None:
        super().__init__()
        self.state = State()
        self.now = 0.0
        self.resolving = self.asking = self.granted = self.process = False
        self.feed(Started())

    def feed(self, event) -> None:
        self.state, effects = transition(self.state, event, self.now)
        for effect in effects:
            match effect:
                case Effect.RESOLVE:
                    assert not self.resolving
                    self.resolving = True
                case Effect.CANCEL_RESOLVE:
                    self.resolving = False
                case Effect.ADMIT:
                    assert not self.asking, "asked for the same memory twice"
                    self.asking = True
                case Effect.CANCEL_ADMIT:
                    self.asking = False
                case Effect.SPAWN:
                    assert not self.process, "two processes of one engine"
                    assert self.granted, "a process without memory set aside"
                    self.process = True
        self.granted = self.granted and self.state.holds_memory

    @precondition(lambda self: self.resolving)
    @rule(failed=st.booleans(), permanent=st.booleans())
    def resolve(self, failed, permanent) -> None:
        self.resolving = False
        self.feed(ResolveFailed("x", "X", permanent) if failed else Resolved())

    @precondition(lambda self: self.asking)
    @rule(answer=st.sampled_from([Admitted(), AdmissionDelayed("x", 1), AdmissionRefused("x")]))
    def answer(self, answer) -> None:
        self.asking = False
        self.granted = isinstance(answer, Admitted)
        self.feed(answer)

    @precondition(lambda self: self.process)
    @rule(
        event=st.sampled_from(
            [HelloSeen(), LoadedSeen(), LoadFailedSeen("x"), LinkLost("x"), Stuck("x"), Spawned()]
        )
    )
    def hear(self, event) -> None:
        self.feed(event)

    @precondition(lambda self: self.process)
    @rule()
    def end(self) -> None:
        self.process = False
        self.feed(Exited("exit code 1"))

    @rule(seconds=st.sampled_from([0.1, 5, 100, 1000]))
    def tick(self, seconds) -> None:
        self.now += seconds
        self.feed(Tick())

    @rule(event=st.sampled_from([Evicted("Evicted", "x"), Woken(), RowsChanged()]))
    def use(self, event) -> None:
        self.feed(event)

    @rule()
    def unwant(self) -> None:
        self.feed(Unwanted(30))

    @invariant()
    def a_process_is_never_forgotten(self) -> None:
        at_rest = {Phase.GONE, Phase.STOPPED, Phase.BACKOFF, Phase.FAILED}
        assert not (self.process and self.state.phase in at_rest)

    @invariant()
    def an_engine_that_returns_is_getting_somewhere(self) -> None:
        if self.state.returning:
            busy = self.resolving or self.asking or self.process
            assert busy or self.state.deadline is not None

    @invariant()
    def evicted_and_returning_exclude_each_other(self) -> None:
        assert not (self.state.evicted and self.state.returning)


TestLifeOfAnEngine = LifeOfAnEngine.TestCase


@given(st.floats(0, 1000), st.booleans())
def test_a_wake_never_delays_the_end_of_an_unload(seconds, woken):
    ready = State(phase=Phase.READY, starts=1)
    state, _ = transition(ready, Evicted("Evicted", "x"), 0.0)
    plain, effects = transition(state, Tick(), seconds)
    if woken:
        state, _ = transition(state, Woken(), seconds / 2)
    other, same_effects = transition(state, Tick(), seconds)
    assert same_effects == effects
    assert replace(other, then=plain.then, woken=plain.woken) == plain
