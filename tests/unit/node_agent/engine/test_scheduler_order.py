"""Who goes first, how long the others wait for it, and when time is up."""

from dataclasses import dataclass, field

import pytest

from manifests.errors import Code
from node_agent.engine.messages import (
    Event,
    Failed,
    Finished,
    Generate,
    Limits,
    PrefillProgress,
    Tokens,
)
from node_agent.engine.rows import HasRoom, PrefillStep, TokenStep, never
from node_agent.engine.scheduling.lockstep import Prefilling
from node_agent.engine.scheduling.pace import (
    DECODE_SHARE,
    FEED_SECONDS,
    LAST_STRETCH,
    MIN_CHUNK_TOKENS,
)
from node_agent.engine.scheduling.scheduler import Scheduler
from node_agent.engine.scheduling.waiting import Beside, WaitingLine, can_admit
from tests.support.counting_runner import CountingMemory, CountingRunner, row


@dataclass
class TimedRunner(CountingRunner):
    """Moves a clock of its own by what chunks and decode steps take."""

    decode_seconds: float = 0.02
    # What a pass takes besides that goes over drafts; each does, unless this is 0.
    draft_seconds: float = 0.0
    seconds: float = 0.0
    fed_by_step: list[int] = field(default_factory=list)

    def feed(self, uid: int, chunk_tokens: int) -> PrefillStep:
        self.seconds += chunk_tokens * self.token_seconds
        return super().feed(uid, chunk_tokens)

    def decode(self, has_room: HasRoom = never) -> tuple[TokenStep, ...]:
        self.seconds += self.decode_seconds + self.draft_seconds if self.joined else 0.0
        self.draft_tally.drafted_tokens += self.draft_seconds > 0
        return super().decode(has_room)


class Engine:
    """A scheduler on a timed runner."""

    def __init__(self, **fields: float) -> None:
        self.runner = TimedRunner(max_rows=8, **{"chunk_tokens": 512, **fields})
        memory = CountingMemory(self.runner)
        self.scheduler = Scheduler(self.runner, 1000, memory, clock=lambda: self.runner.seconds)

    def submit(self, *commands: Generate) -> None:
        for command in commands:
            assert self.scheduler.submit(command) == []

    def step(self, count: int = 1) -> list[Event]:
        return [event for _ in range(count) for event in self.scheduler.step()]

    def drain(self) -> list[Event]:
        events: list[Event] = []
        while self.scheduler.busy:
            events += self.scheduler.step()
        return events

    def worst_gap(self, request_id: str) -> float:
        """Run to the end of everything else; return the longest wait for a row's next token."""
        worst, last = 0.0, None
        while self.scheduler.counts.prefilling or self.scheduler.counts.waiting:
            for event in self.scheduler.step():
                if isinstance(event, Tokens) and event.request_id == request_id:
                    now = self.runner.seconds
                    worst, last = max(worst, 0.0 if last is None else now - last), now
        return worst


def ends(events: list[Event]) -> list[str]:
    return [event.request_id for event in events if isinstance(event, Finished | Failed)]


def with_running(**fields: float) -> Engine:
    engine = Engine(**fields)
    engine.submit(row("running", 3, max_tokens=100_000))
    engine.step(100)
    return engine


@pytest.mark.parametrize("token_seconds", [0.02, 0.01, 0.002, 0.0002])
def test_a_running_row_waits_no_longer_than_the_time_for_feeding(token_seconds):
    engine = with_running(token_seconds=token_seconds)
    engine.submit(row("long", 4000))
    widest = max(FEED_SECONDS * LAST_STRETCH, MIN_CHUNK_TOKENS * token_seconds)
    slowest = widest + 2 * engine.runner.decode_seconds
    assert 0 < engine.worst_gap("running") <= slowest


def test_passes_over_drafts_do_not_widen_the_chunks_beside_them():
    plain, drafting = (with_running(token_seconds=0.01, draft_seconds=one) for one in (0.0, 0.5))
    for engine in (plain, drafting):
        engine.runner.draft_seconds = 0.0
        engine.submit(row("long", 4000))
        engine.step(20)
    widest = [max(width for _, width in one.runner.chunks) for one in (drafting, plain)]
    assert widest[0] <= widest[1]


def test_prompts_that_come_together_share_the_time_of_one_step():
    engine = with_running(token_seconds=0.01)
    engine.submit(*(row(f"short-{number}", 15) for number in range(6)))
    assert engine.worst_gap("running") <= FEED_SECONDS + 0.1


@pytest.mark.parametrize("decode_seconds", [0.01, 0.05, 0.15])
def test_rows_that_decode_have_their_share_of_the_time_and_feeding_all_the_rest(decode_seconds):
    engine = with_running(token_seconds=0.01, decode_seconds=decode_seconds)
    engine.submit(row("long", 40_000))
    engine.step(20)
    chunks, started_seconds = len(engine.runner.chunks), engine.runner.seconds
    decoded = sum(isinstance(one, Tokens) for one in engine.step(200)) * decode_seconds
    fed = engine.runner.seconds - started_seconds - decoded
    turns = len(engine.runner.chunks) - chunks
    # A decode step more than the share at most: the one before it is too short by so much.
    assert DECODE_SHARE * fed <= decoded + decode_seconds
    assert decoded <= DECODE_SHARE * fed + (turns + 1) * decode_seconds


def test_a_row_fed_while_nobody_decoded_has_its_share_before_the_next_is_fed():
    engine = Engine(token_seconds=0.005, decode_seconds=0.02, chunk_tokens=64)
    engine.submit(row("first", 61, max_tokens=100), row("second", 61))
    tokens = 0
    while len(engine.runner.chunks) < 2:
        tokens += sum(isinstance(one, Tokens) for one in engine.step())
    assert tokens == pytest.approx(DECODE_SHARE * 60 * 0.005 / 0.02, abs=1)


def test_a_row_that_waits_for_its_turn_to_be_fed_does_not_wait_once_nobody_decodes():
    engine = with_running(token_seconds=0.01)
    engine.submit(row("long", 4000))
    while not any(name == "long" for name, _ in engine.runner.chunks):
        engine.step()
    chunks = len(engine.runner.chunks)
    engine.step()
    assert len(engine.runner.chunks) == chunks
    engine.scheduler.cancel("running")
    engine.step()
    assert len(engine.runner.chunks) == chunks + 1


def test_turns_that_follow_each_other_seldom_wait_for_another_prompt():
    """Four conversations, each turn after the last one's end, all begun at once."""
    feeding, reply = 0.3, 24
    engine = Engine(token_seconds=0.005, decode_seconds=0.1, chunk_tokens=64)
    waits: list[float] = []
    asked = dict.fromkeys(("a-0", "b-0", "c-0", "d-0"), 0.0)
    engine.submit(*(row(name, 61, reply) for name in asked))
    while engine.scheduler.busy:
        for event in engine.scheduler.step():
            if isinstance(event, Tokens) and event.request_id in asked:
                waits.append(engine.runner.seconds - asked.pop(event.request_id))
            elif isinstance(event, Finished):
                name, turn = event.request_id.split("-")
                if turn != "5":
                    asked[f"{name}-{int(turn) + 1}"] = engine.runner.seconds
                    engine.submit(row(f"{name}-{int(turn) + 1}", 61, reply))
    assert len(waits) == 24
    # Its own prompt, and the steps of decode before and after it.
    assert sorted(waits)[12] < feeding + 3 * engine.runner.decode_seconds


def test_alone_a_prompt_is_fed_in_whole_chunks():
    engine = Engine(token_seconds=0.01)
    engine.submit(row("long", 1025))
    engine.drain()
    assert engine.runner.chunks == [("long", 512), ("long", 512)]


def test_once_nobody_decodes_chunks_are_whole_again():
    engine = with_running(token_seconds=0.01)
    engine.submit(row("long", 2049))
    engine.step(3)
    assert {tokens for _, tokens in engine.runner.chunks[1:]} <= set(range(1, 40))
    engine.scheduler.cancel("running")
    engine.drain()
    # The first goes to the next boundary of the caches, and the rest are whole.
    assert [tokens for _, tokens in engine.runner.chunks[-3:]] == [512, 512, 512]


def test_slow_decode_steps_give_feeding_more_time():
    slow, fast = with_running(decode_seconds=1.0), with_running(decode_seconds=0.02)
    for engine in (slow, fast):
        engine.runner.token_seconds = 0.01
        engine.submit(row("long", 1025))
        engine.step(8)
    assert max(tokens for _, tokens in slow.runner.chunks) > 2 * max(
        tokens for _, tokens in fast.runner.chunks
    )


def test_higher_priorities_go_first_and_equals_in_order_of_arrival():
    engine = Engine()
    engine.runner.max_rows = 1
    for name, priority in (("a", 0), ("low", -1), ("high-1", 5), ("b", 0), ("high-2", 5)):
        engine.submit(row(name, priority=priority))
    assert ends(engine.drain()) == ["high-1", "high-2", "a", "b", "low"]


def test_a_long_prompt_of_higher_priority_makes_a_lower_one_stand_still():
    engine = Engine()
    engine.submit(row("low", 4000))
    engine.step()
    engine.submit(row("high", 4000, priority=1))
    events = engine.drain()
    assert ends(events) == ["high", "low"]
    order = [name for name, _ in engine.runner.chunks]
    assert order == ["low", *["high"] * order.count("high"), *["low"] * (order.count("low") - 1)]


def test_a_lower_priority_is_not_admitted_beside_a_long_prompt_of_a_higher_one():
    assert can_admit(Prefilling(900, 1), Beside([Prefilling(900, 0)], 64))
    assert not can_admit(Prefilling(900, 0), Beside([Prefilling(900, 1)], 64))
    assert not can_admit(Prefilling(900, 1), Beside([Prefilling(900, 1)], 64))


def test_a_requeued_row_stands_before_its_equals_and_behind_higher_ones():
    line = WaitingLine()
    for name, priority in (("a", 0), ("high", 1), ("low", -1)):
        line.append(row(name, priority=priority))
    taken = line.take("a")
    assert taken is not None
    line.append(row("b"))
    line.requeue(taken.command, taken.tries)
    assert line.request_ids == ["high", "a", "b", "low"]


@pytest.mark.parametrize("stage", ["waiting", "prefilling", "decoding"])
def test_a_request_ends_at_its_deadline_wherever_it_is(stage):
    engine = Engine(token_seconds=0.01)
    late = row("late", 3 if stage == "decoding" else 4000, 100_000, deadline_seconds=2.0)
    engine.submit(late)
    if stage == "waiting":
        engine.scheduler.steer(Limits(prefill_turn=False))
    engine.submit(row("other", 3, max_tokens=2))
    events: list[Event] = []
    while ends(events)[-1:] != ["late"] and engine.runner.seconds < 20:
        engine.runner.seconds += 0.1
        events += engine.step()
    (failed,) = [event for event in events if isinstance(event, Failed)]
    assert (failed.request_id, failed.retryable) == ("late", "no")
    assert failed.code == Code.DEADLINE_EXCEEDED
    assert "2 seconds" in failed.message
    # One chunk at most runs past it.
    assert 2.0 <= engine.runner.seconds < 2.0 + 0.1 + 512 * 0.01 + 0.2
    engine.scheduler.steer(Limits())
    assert ends(events + engine.drain()).count("other") == 1
    assert engine.runner.rows == {}


def test_a_deadline_ends_with_its_request_and_does_not_meet_the_next_of_that_name():
    engine = Engine()
    engine.submit(row("a", deadline_seconds=1.0))
    assert ends(engine.drain()) == ["a"]
    engine.submit(row("a", max_tokens=50))
    engine.runner.seconds += 5.0
    (end,) = [event for event in engine.drain() if isinstance(event, Finished | Failed)]
    assert isinstance(end, Finished)


def test_a_cancelled_request_is_not_ended_again_at_its_deadline():
    engine = Engine()
    engine.submit(row("a", deadline_seconds=1.0), row("b", max_tokens=5))
    assert ends(engine.scheduler.cancel("a")) == ["a"]
    engine.runner.seconds += 5.0
    assert ends(engine.drain()) == ["b"]


def test_what_was_decoded_is_told_before_the_chunk_of_the_same_step():
    engine = with_running(token_seconds=0.01)
    engine.submit(row("long", 4000))
    engine.step(2)
    started_seconds = engine.runner.seconds
    told: list[Event] = []
    took_seconds = []

    def between(events: list[Event]) -> None:
        told.extend(events)
        took_seconds.append(engine.runner.seconds - started_seconds)

    left = engine.scheduler.step(between)
    assert [one.request_id for one in told if isinstance(one, Tokens)] == ["running"]
    assert took_seconds == [pytest.approx(engine.runner.decode_seconds)]
    assert any(isinstance(one, PrefillProgress) for one in left)


def test_what_comes_while_a_step_decodes_is_fed_in_the_same_step():
    engine = with_running(token_seconds=0.01)
    left = engine.scheduler.step(lambda _events: engine.submit(row("new", 20)))
    assert "new" in [one.request_id for one in left if isinstance(one, PrefillProgress)]


def test_a_row_that_is_cancelled_between_decode_and_feed_is_gone():
    engine = with_running(token_seconds=0.01)
    engine.submit(row("long", 4000))
    engine.step(2)
    ended: list[Event] = []
    left = engine.scheduler.step(lambda _events: ended.extend(engine.scheduler.cancel("long")))
    assert [type(one) for one in ended] == [Finished]
    assert not any(getattr(one, "request_id", "") == "long" for one in left)
