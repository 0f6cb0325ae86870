"""Whatever the budgets and the answers do: no chunk above the budget, and every request ends."""

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from node_agent.engine.messages import Answer, Ask, Failed, Finished, Limits
from node_agent.engine.rows import PrefillStep
from node_agent.engine.scheduling.forward_gate import (
    Attempts,
    GateReading,
    NextChunk,
    Run,
    Shrink,
    decide,
)
from node_agent.engine.scheduling.scheduler import Scheduler
from tests.support.counting_runner import FORECAST, CountingMemory, CountingRunner, row

sizes = st.integers(0, 1 << 20)
readings = st.builds(GateReading, sizes, sizes, sizes, sizes, st.integers(1, 64))
attempts = st.builds(
    Attempts,
    reclaimed=st.booleans(),
    waiting=st.booleans(),
    asks=st.integers(0, 4),
    requeues=st.integers(0, 3),
    final=st.booleans(),
    alone=st.booleans(),
)


@given(readings, attempts, st.integers(1, 2048), st.integers(0, 4096))
def test_the_gate_never_lets_a_chunk_run_that_does_not_fit(reading, tried, wanted, token_bytes):
    chunk = NextChunk(wanted, lambda n: n * token_bytes, lambda n: n * token_bytes)
    decision = decide(reading, chunk, tried)
    if not reading.budget_bytes:
        assert decision == Run()
    elif isinstance(decision, Run | Shrink):
        tokens = decision.chunk_tokens if isinstance(decision, Shrink) else wanted
        assert tokens == wanted or reading.min_chunk_tokens <= tokens < wanted
        need_bytes = tokens * token_bytes + reading.margin_bytes
        assert reading.high_water_bytes + need_bytes <= reading.budget_bytes


class WatchfulRunner(CountingRunner):
    """Fails the test when a chunk is fed that the budget has no room for."""

    memory: CountingMemory
    limits: Limits

    def feed(self, uid: int, chunk_tokens: int) -> PrefillStep:
        need_bytes = FORECAST.chunk_bytes(self.fed[uid], chunk_tokens)
        total_bytes = self.memory.active_bytes + need_bytes + self.limits.margin_bytes
        assert self.limits.budget_bytes == 0 or total_bytes <= self.limits.budget_bytes
        return super().feed(uid, chunk_tokens)


class Drill:
    """A scheduler under budgets and answers that come as they come; a second passes each step."""

    def __init__(self, prompts: Sequence[int], max_tokens: int) -> None:
        self.runner = WatchfulRunner(max_rows=4, chunk_tokens=64)
        self.memory = self.runner.memory = CountingMemory(self.runner)
        self.seconds = 0.0
        self.scheduler = Scheduler(
            self.runner, 1000, self.memory, FORECAST, clock=lambda: self.seconds
        )
        self.ends: list[str] = []
        self.asks: list[str] = []
        self.set_limits(0)
        for index, tokens in enumerate(prompts):
            self.scheduler.submit(row(str(index), tokens, max_tokens))

    def set_limits(self, budget_bytes: int, *, turn: bool = True) -> None:
        self.runner.limits = Limits(budget_bytes=budget_bytes, margin_bytes=512, prefill_turn=turn)
        self.scheduler.steer(self.runner.limits)

    def answer(self, verdict: str | None) -> None:
        if self.asks and verdict is not None:
            self.scheduler.steer(
                Answer(request_id=self.asks.pop(0), granted=verdict == "granted", retryable=verdict)
            )

    def step(self) -> None:
        self.seconds += 1
        for event in self.scheduler.step():
            if isinstance(event, Finished | Failed):
                self.ends.append(event.request_id)
            if isinstance(event, Ask):
                assert event.more_bytes > 0
                self.asks.append(event.request_id)


@settings(deadline=None, max_examples=150)
@given(
    prompts=st.lists(st.integers(1, 1500), min_size=1, max_size=6),
    max_tokens=st.integers(1, 20),
    course=st.lists(
        st.tuples(
            st.integers(0, 400_000),
            st.booleans(),
            st.sampled_from([None, "granted", "later", "elsewhere", "no"]),
            st.integers(0, 40_000),
        ),
        min_size=1,
        max_size=80,
    ),
)
def test_every_request_ends_once_within_bounded_steps(prompts, max_tokens, course):
    drill = Drill(prompts, max_tokens)
    for budget_bytes, turn, verdict, cached_bytes in course:
        if not drill.scheduler.busy:
            break
        drill.set_limits(budget_bytes, turn=turn)
        drill.answer(verdict)
        drill.memory.cached_bytes += cached_bytes
        drill.step()
    drill.set_limits(course[-1][0])
    # A prompt is fed in chunks of at least 32, three times over at most; it asks three times
    # and waits a minute for each answer; then its tokens.
    bound = sum(3 * (tokens // 32 + 12) + 3 * 62 + max_tokens + 3 for tokens in prompts)
    for _ in range(bound):
        if not drill.scheduler.busy:
            break
        drill.step()
    assert not drill.scheduler.busy
    assert sorted(drill.ends) == sorted(str(index) for index in range(len(prompts)))
    assert drill.runner.rows == {}
    assert drill.memory.active_bytes == 0
