"""Which prompts walk together, and what the scheduler makes of it."""

import pytest

from node_agent.engine.messages import Event, Failed, Finished, Limits, PrefillProgress, Tokens
from node_agent.engine.scheduling.feeder import Fed, FedRow, Feeder
from node_agent.engine.scheduling.gatekeeper import Gatekeeper, Tries
from node_agent.engine.scheduling.lockstep import (
    MAX_TOGETHER_ROWS,
    MIN_SHARE_TOKENS,
    NOBODY,
    Prefilling,
    Reach,
    Walkers,
    can_walk_together,
    choose_walkers,
)
from node_agent.engine.scheduling.scheduler import Scheduler
from tests.support.counting_runner import FORECAST, CountingMemory, CountingRunner, row

REACH = Reach(together_tokens=8000, catch_up_tokens=250, pass_tokens=500)
CHUNK_TOKENS = 128


class Engine:
    """A scheduler over a runner whose rows can walk together; it has measured how fast it is."""

    def __init__(self, moved_bytes: int | None = 0, budget_bytes: int = 0) -> None:
        self.runner = CountingRunner(
            max_rows=8, chunk_tokens=CHUNK_TOKENS, token_seconds=0.004, moved_bytes=moved_bytes
        )
        memory = CountingMemory(self.runner)
        self.scheduler = Scheduler(self.runner, 1000, memory, FORECAST)
        self.submit(first=300)
        self.drain()
        self.scheduler.steer(Limits(budget_bytes=budget_bytes))
        self.runner.passes.clear()

    def submit(self, **tokens: int) -> None:
        for name, count in tokens.items():
            assert self.scheduler.submit(row(name, count, max_tokens=4)) == []

    def drain(self) -> list[Event]:
        events: list[Event] = []
        while self.scheduler.busy:
            events += self.scheduler.step()
        return events


def names(events: list[Event], kind: type[Event]) -> list[str]:
    return [event.request_id for event in events if isinstance(event, kind)]


@pytest.mark.parametrize(
    ("rows", "together"),
    [
        ([Prefilling(500), Prefilling(550)], True),
        ([Prefilling(500)], False),
        ([Prefilling(500), Prefilling(700)], False),
        ([Prefilling(500), Prefilling(500, priority=1)], False),
        ([Prefilling(500), Prefilling(500, at_tokens=250)], True),
        ([Prefilling(500), Prefilling(500, at_tokens=251)], False),
        ([Prefilling(120), Prefilling(120)], False),
        ([Prefilling(4000), Prefilling(4000)], True),
        ([Prefilling(4000), Prefilling(4001)], False),
        ([Prefilling(200)] * MAX_TOGETHER_ROWS, True),
        ([Prefilling(200)] * (MAX_TOGETHER_ROWS + 1), False),
    ],
)
def test_prompts_walk_together_when_they_are_alike_and_soon_through(rows, together):
    assert can_walk_together(rows, REACH) is together
    assert not can_walk_together(rows, NOBODY)


def test_the_hindmost_are_fed_first_and_only_up_to_the_others():
    rows = [Prefilling(500, at_tokens=64), Prefilling(500), Prefilling(900), Prefilling(520)]
    assert choose_walkers(rows, REACH, CHUNK_TOKENS) == Walkers((1, 3), 64)
    level = [Prefilling(500), Prefilling(500), Prefilling(500)]
    assert choose_walkers(level, REACH, CHUNK_TOKENS) == Walkers((0, 1, 2), CHUNK_TOKENS)
    assert choose_walkers([Prefilling(500), Prefilling(900)], REACH, CHUNK_TOKENS) == Walkers()


def test_a_pass_takes_no_longer_than_it_may_but_chunks_are_never_tiny():
    level = [Prefilling(500)] * 8
    assert choose_walkers(level, REACH, CHUNK_TOKENS).limit_tokens == 500 // 8
    slow = Reach(together_tokens=8000, catch_up_tokens=10, pass_tokens=20)
    assert choose_walkers(level, slow, CHUNK_TOKENS).limit_tokens == MIN_SHARE_TOKENS


def test_prompts_that_came_together_are_through_together_and_decode_in_one_batch():
    engine = Engine()
    engine.submit(a=500, b=520, c=540)
    events = engine.drain()
    first = next(at for at, event in enumerate(events) if isinstance(event, Tokens))
    assert not [event for event in events[first:] if isinstance(event, PrefillProgress)]
    assert engine.runner.passes[0] == ("a", "b", "c")
    assert engine.runner.passes[-1] == ("b", "c")
    assert sorted(names(events, Finished)) == ["a", "b", "c"]


def test_who_came_a_moment_later_catches_up():
    engine = Engine()
    engine.submit(a=500)
    engine.scheduler.step()
    engine.submit(b=500, c=500)
    engine.drain()
    assert engine.runner.passes[0] == ("b", "c")
    assert engine.runner.passes[1] == ("a", "b", "c")


def test_while_a_row_decodes_prompts_are_fed_one_after_the_other():
    engine = Engine()
    engine.scheduler.submit(row("running", 3, max_tokens=1000))
    engine.scheduler.step()
    engine.submit(a=500, b=500)
    for _ in range(20):
        engine.scheduler.step()
    fed = [name for name, _ in engine.runner.chunks[4:]]
    assert engine.runner.passes == []
    assert "b" not in fed[: fed.count("a")]


@pytest.mark.parametrize("moved_bytes", [None, 1 << 40])
def test_rows_that_cannot_walk_together_or_have_no_room_for_it_go_one_by_one(moved_bytes):
    engine = Engine(moved_bytes, budget_bytes=1 << 30)
    engine.submit(a=500, b=500)
    events = engine.drain()
    fed = names(events, PrefillProgress)
    assert engine.runner.passes == []
    assert fed == sorted(fed)
    assert names(events, Failed) == []
    assert sorted(names(events, Finished)) == ["a", "b"]


def test_one_that_leaves_does_not_stop_the_others():
    engine = Engine()
    engine.submit(a=500, b=500, c=500)
    engine.scheduler.step()
    assert len(engine.scheduler.cancel("b")) == 1
    events = engine.drain()
    assert engine.runner.passes[1] == ("a", "c")
    assert sorted(names(events, Finished)) == ["a", "c"]


def test_room_is_kept_for_taking_apart_what_walks_together():
    runner = CountingRunner(moved_bytes=1 << 20)
    memory = CountingMemory(runner)
    gatekeeper = Gatekeeper(memory, FORECAST, lambda: 0.0)
    feeder = Feeder(runner, memory, gatekeeper)
    commands = [row("a", 500), row("b", 500)]
    rows = [FedRow(command, runner.insert(command), Tries()) for command in commands]
    assert feeder.feed_together(rows, 64, Fed())
    assert gatekeeper.reserved.total_bytes == 1 << 20
    assert feeder.feed_together(rows, 64, Fed())
    assert gatekeeper.reserved.total_bytes == 1 << 20
    assert feeder.feed_chunk(rows[0], 64, Fed(), alone=False)
    assert gatekeeper.reserved.total_bytes == 0
