"""The scheduler under budgets: asks, answers, requeues, refusals, and memory it watches."""

import pytest

from manifests.errors import Code
from node_agent.engine.messages import (
    Answer,
    Ask,
    ChunkMeasured,
    Event,
    Failed,
    Finished,
    Limits,
    Reclaim,
    Tokens,
)
from node_agent.engine.scheduling.gatekeeper import ANSWER_SECONDS
from node_agent.engine.scheduling.scheduler import Scheduler
from tests.support.counting_runner import FORECAST, CountingMemory, CountingRunner, row

CHUNK_TOKENS = 64
LONG_TOKENS = 1200
NEVER = 1 << 10


def answer(name: str, verdict: str) -> Answer:
    return Answer(request_id=name, granted=verdict == "granted", retryable=verdict)


class Engine:
    """A scheduler with a clock of its own and a budget; rows are long or short."""

    def __init__(self, budget_bytes: int) -> None:
        self.runner = CountingRunner(max_rows=4, chunk_tokens=CHUNK_TOKENS)
        self.memory = CountingMemory(self.runner)
        self.seconds = 0.0
        self.scheduler = Scheduler(
            self.runner, 1000, self.memory, FORECAST, clock=lambda: self.seconds
        )
        self.set_budget(budget_bytes)

    def set_budget(self, budget_bytes: int) -> None:
        self.scheduler.steer(Limits(budget_bytes=budget_bytes))

    def step(self, count: int = 1) -> list[Event]:
        events: list[Event] = []
        for _ in range(count):
            self.seconds += 0.5
            events += self.scheduler.step()
        return events

    def step_until(self, kind: type[Event], limit: int = 100) -> Event:
        for _ in range(limit):
            for event in self.step():
                if isinstance(event, kind):
                    return event
        raise AssertionError(f"no {kind.__name__} in {limit} steps")


def need_bytes(tokens: int = LONG_TOKENS, chunk_tokens: int = CHUNK_TOKENS) -> int:
    return FORECAST.finish_bytes(0, tokens, chunk_tokens)


def held_engine() -> Engine:
    """A long row that waits for an answer, half fed."""
    engine = Engine(need_bytes(LONG_TOKENS // 2, 32))
    engine.scheduler.submit(row("long", LONG_TOKENS))
    engine.step_until(Ask)
    assert engine.scheduler.counts.held == 1
    assert engine.memory.active_bytes > 0
    return engine


def test_drafts_are_verified_where_they_have_room_and_nobody_is_asked_for_more():
    engine = Engine(0)
    engine.runner.draft_width = 8
    engine.scheduler.submit(row("alone", 2, 50))
    engine.step(5)
    assert set(engine.runner.drafted) == {True}
    verify_bytes = FORECAST.verify_bytes(10, 8)
    for room_bytes, has_room in ((verify_bytes // 2, False), (2 * verify_bytes, True)):
        engine.runner.drafted.clear()
        engine.set_budget(engine.memory.active_bytes + room_bytes)
        events = engine.step(2)
        assert engine.runner.drafted == [has_room] * 2
        assert [type(event) for event in events] == [Tokens] * 2


def test_what_is_asked_for_is_enough_to_finish():
    engine = Engine(need_bytes(LONG_TOKENS // 2, 32))
    budget_bytes = need_bytes(LONG_TOKENS // 2, 32)
    engine.scheduler.submit(row("long", LONG_TOKENS))
    ask = engine.step_until(Ask)
    engine.set_budget(budget_bytes + ask.more_bytes)
    engine.scheduler.steer(answer("long", "granted"))
    # All chunks but the first are whole again, and nobody asks a second time.
    events = engine.step(30)
    assert not [event for event in events if isinstance(event, Ask)]
    assert isinstance(events[-1], Finished)
    assert {e.chunk_tokens for e in events if isinstance(e, ChunkMeasured)} >= {CHUNK_TOKENS}


def test_the_last_denial_ends_a_lonely_row_with_its_advice():
    engine = held_engine()
    for _ in range(2):
        engine.scheduler.steer(answer("long", "later"))
        engine.step_until(Ask)
    last = Answer(request_id="long", granted=False, retryable="elsewhere", message="close apps")
    engine.scheduler.steer(last)
    failed = engine.step_until(Failed)
    assert (failed.code, failed.retryable) == (Code.PREFILL_MEMORY_EXCEEDED, "elsewhere")
    assert "may hold" in failed.message
    assert failed.message.endswith("; close apps")
    assert (engine.runner.rows, engine.scheduler.busy) == ({}, False)


def test_a_lasting_no_is_final_at_once():
    engine = held_engine()
    engine.scheduler.steer(answer("long", "no"))
    assert engine.step_until(Failed, limit=1).retryable == "no"


def test_an_answer_to_an_older_question_is_not_taken_for_one_to_the_last():
    engine = held_engine()
    # More budget came before the answer, and was eaten up again: the row has asked twice.
    engine.set_budget(need_bytes(LONG_TOKENS * 3 // 4, 32))
    engine.step_until(Ask)
    engine.scheduler.steer(answer("long", "no"))
    assert engine.step(3) == []
    assert engine.scheduler.counts.held == 1
    engine.scheduler.steer(answer("long", "no"))
    assert engine.step_until(Failed, limit=1).retryable == "no"


def test_an_agent_that_never_answers_does_not_hold_a_row_for_ever():
    engine = held_engine()
    asked_at = engine.seconds
    failed = engine.step_until(Failed, limit=2 * 4 * int(ANSWER_SECONDS))
    assert failed.retryable == "later"
    assert 3 * ANSWER_SECONDS < engine.seconds - asked_at < 3 * ANSWER_SECONDS + 10


def test_a_held_row_stands_in_nobodys_way():
    engine = held_engine()
    engine.set_budget(need_bytes(LONG_TOKENS // 2, 32) + 30 * 1024)
    engine.memory.extra_bytes = 30 * 1024
    engine.scheduler.submit(row("short", 4, max_tokens=3))
    events = engine.step(10)
    assert [e.request_id for e in events if isinstance(e, Finished)] == ["short"]


def test_a_requeued_row_frees_its_memory_and_starts_again_when_another_row_has_ended():
    engine = Engine(0)
    engine.scheduler.submit(row("decoding", 4, max_tokens=40))
    engine.step(2)
    engine.set_budget(need_bytes(LONG_TOKENS // 2, 32))
    engine.scheduler.submit(row("long", LONG_TOKENS))
    engine.step_until(Ask)
    engine.scheduler.steer(answer("long", "no"))
    engine.step()
    assert engine.scheduler.counts.waiting == 1
    assert list(engine.runner.rows) == [10]
    # Another long prompt does not take the memory it waits for; a short one may pass.
    engine.scheduler.submit(row("other-long", LONG_TOKENS))
    engine.scheduler.submit(row("short", 4, max_tokens=100))
    engine.step(3)
    assert {c.request_id for c in engine.runner.rows.values()} == {"decoding", "short"}
    engine.set_budget(0)
    engine.step(3)
    assert {c.request_id for c in engine.runner.rows.values()} == {"decoding", "short"}
    engine.step_until(Finished)
    engine.step(2)
    assert "long" in {c.request_id for c in engine.runner.rows.values()}
    ends = [e.request_id for e in engine.step(120) if isinstance(e, Finished)]
    assert ends == ["long", "other-long", "short"]


def test_a_requeued_row_keeps_its_deadline():
    engine = Engine(0)
    engine.scheduler.submit(row("decoding", 4, max_tokens=400))
    engine.step(2)
    engine.set_budget(need_bytes(LONG_TOKENS // 2, 32))
    engine.scheduler.submit(row("long", LONG_TOKENS, deadline_seconds=60.0))
    engine.step_until(Ask)
    engine.scheduler.steer(answer("long", "no"))
    engine.step()
    assert engine.scheduler.counts.waiting == 1
    failed = engine.step_until(Failed, limit=120)
    assert (failed.request_id, failed.code) == ("long", Code.DEADLINE_EXCEEDED)
    assert 60 <= engine.seconds < 63
    assert engine.scheduler.counts.waiting == 0


@pytest.mark.parametrize("vacant_tokens", [4 * LONG_TOKENS, 0])
def test_what_rows_that_ended_still_hold_is_given_back_before_anybody_asks(vacant_tokens):
    """Readings of the steps before do not hold it against the row either."""
    engine = Engine(0)
    engine.scheduler.submit(row("decoding", 4, max_tokens=400))
    engine.runner.vacant_tokens = vacant_tokens
    engine.step(5)
    engine.set_budget(need_bytes() + 100 * FORECAST.shape.groups[0].bytes_per_token)
    engine.scheduler.submit(row("long", LONG_TOKENS))
    events = engine.step(40)
    assert not [event for event in events if isinstance(event, Ask)]
    assert engine.scheduler.counts.prefilling == 0
    assert engine.runner.vacant_tokens == 0


def test_freed_buffers_are_given_back_before_anybody_asks():
    engine = Engine(need_bytes() + 10)
    engine.memory.cached_bytes = NEVER << 10
    engine.scheduler.submit(row("long", LONG_TOKENS))
    clears = engine.memory.clears
    events = engine.step()
    assert [type(event) for event in events][-1] is ChunkMeasured
    assert engine.memory.clears == clears + 2  # before the chunk, and after it
    assert engine.memory.cached_bytes == 0


def test_a_chunk_bigger_than_predicted_makes_the_next_ones_smaller():
    engine = Engine(2_000_000)
    engine.scheduler.submit(row("long", 4000))
    first = engine.step_until(ChunkMeasured)
    engine.memory.chunk_bytes = 3 * first.predicted_bytes
    engine.set_budget(int(2.5 * first.predicted_bytes))
    # Predictions this small teach nothing, so the chunk stays whole.
    assert engine.step_until(ChunkMeasured).chunk_tokens == CHUNK_TOKENS


@pytest.mark.parametrize("cached_bytes", [0, 5000])
def test_decode_past_its_budget_gives_buffers_back_now_and_then_and_goes_on(cached_bytes):
    engine = Engine(0)
    engine.scheduler.submit(row("a", 4, max_tokens=30))
    engine.step(2)
    engine.set_budget(engine.memory.active_bytes // 2)
    engine.memory.cached_bytes = cached_bytes
    clears = engine.memory.clears
    events = engine.step(16)
    assert len([event for event in events if isinstance(event, Tokens)]) == 16
    assert engine.scheduler.counts.over_budget_bytes > 0
    assert engine.memory.clears - clears == 2
    events = engine.step(20)
    assert [type(e) for e in events if isinstance(e, Finished | Failed)] == [Finished]
    assert engine.scheduler.counts.over_budget_bytes == 0


@pytest.mark.parametrize(("padding_bytes", "apart"), [(100, []), (1 << 20, ["a"])])
def test_a_row_whose_padding_has_no_room_is_decoded_in_a_batch_of_its_own(padding_bytes, apart):
    engine = Engine(1 << 20)
    engine.runner.padding_bytes = padding_bytes
    engine.scheduler.submit(row("a", 40))
    assert isinstance(engine.step_until(Finished), Finished)
    assert engine.runner.apart == apart


def test_reclaim_gives_freed_buffers_back_at_once():
    engine = Engine(0)
    engine.memory.cached_bytes = 100
    engine.scheduler.steer(Reclaim())
    assert engine.memory.cached_bytes == 0


def test_what_a_restore_on_its_way_was_granted_is_not_given_to_another_row():
    engine = Engine(0)
    engine.runner.stored_tokens, engine.runner.restore_pieces = 400, 10_000
    engine.scheduler.submit(row("stored", 402))
    engine.step()
    engine.runner.stored_tokens = 0
    engine.scheduler.submit(row("other", CHUNK_TOKENS))
    granted_bytes = 400 * engine.runner.restore_token_bytes
    budget_bytes = granted_bytes + need_bytes(CHUNK_TOKENS) // 2
    engine.set_budget(budget_bytes)
    engine.step_until(Ask)
    engine.step(20)
    assert engine.runner.restore_pieces > 1
    assert engine.memory.active_bytes <= budget_bytes - granted_bytes
    # Once it is dropped, the other goes on.
    engine.scheduler.cancel("stored")
    assert engine.step_until(Finished).request_id == "other"
