"""Rows wait for blocks another row computes, and never for good; restores go through the gate."""

from collections.abc import Sequence

from node_agent.engine.messages import (
    Ask,
    Event,
    Finished,
    Generate,
    Limits,
    PrefillProgress,
    Restored,
)
from node_agent.engine.rows import PrefixPlan
from node_agent.engine.scheduling.scheduler import Scheduler
from tests.support.counting_runner import FORECAST, CountingMemory, CountingRunner, row

BLOCK = 4


class Blocks:
    """Prefixes by length only: the prompts are all alike. What is fed is stored at once."""

    def __init__(self, runner: CountingRunner) -> None:
        self.runner = runner
        self.stored: set[bytes] = set()
        self.told: set[tuple[str, bytes]] = set()
        self.silent = False

    def plan(self, command: Generate) -> PrefixPlan:
        names = [bytes([end]) for end in range(BLOCK, len(command.prompt), BLOCK)]
        missing = [name for name in names if name not in self.stored]
        cached = (len(names) - len(missing)) * BLOCK
        self.runner.stored_tokens = cached
        return PrefixPlan(cached, tuple(missing))

    def take_done(self) -> Sequence[tuple[str, bytes]]:
        done = []
        for uid, command in self.runner.rows.items():
            for end in range(BLOCK, self.runner.fed[uid] + 1, BLOCK):
                one = (command.request_id, bytes([end]))
                if one not in self.told and not self.silent:
                    self.told.add(one)
                    self.stored.add(one[1])
                    done.append(one)
        return tuple(done)


class Engine:
    def __init__(self, forecast: object = None, **fields: int) -> None:
        self.runner = CountingRunner(**{"max_rows": 4, "chunk_tokens": 64, **fields})
        self.blocks, self.seconds = Blocks(self.runner), 0.0
        self.scheduler = Scheduler(
            self.runner,
            1000,
            CountingMemory(self.runner),
            forecast,
            lambda: self.seconds,
            self.blocks,
        )

    def drain(self, limit: int = 200) -> list[Event]:
        events: list[Event] = []
        for _ in range(limit):
            if not self.scheduler.busy:
                return events
            events += self.scheduler.step()
        raise AssertionError("rows are left")


def cached(events: list[Event]) -> dict[str, int]:
    return {one.request_id: one.cached_tokens for one in events if isinstance(one, Finished)}


def test_rows_that_come_together_feed_a_shared_prefix_once():
    engine = Engine()
    for name in "abc":
        engine.scheduler.submit(row(name, prompt_tokens=21))
    events = engine.drain()
    assert cached(events) == {"a": 0, "b": 20, "c": 20}
    assert engine.runner.chunks == [("a", 20)]


def test_a_longer_row_goes_on_from_the_blocks_it_waited_for():
    engine = Engine()
    engine.scheduler.submit(row("short", prompt_tokens=9))
    engine.scheduler.submit(row("long", prompt_tokens=21))
    assert cached(engine.drain()) == {"short": 0, "long": 8}
    assert engine.runner.chunks == [("short", 8), ("long", 12)]


def test_those_who_wait_for_a_row_that_goes_compute_for_themselves():
    engine = Engine(chunk_tokens=30)
    engine.blocks.silent = True
    for name in "abc":
        engine.scheduler.submit(row(name, prompt_tokens=25, max_tokens=50))
    engine.scheduler.step()
    assert (engine.scheduler.counts.running, engine.scheduler.counts.waiting) == (1, 2)
    ended = engine.scheduler.cancel("a")
    assert [event.reason for event in ended] == ["cancelled"]
    assert set(cached(engine.drain())) == {"b", "c"}


def test_a_row_that_waits_can_be_cancelled_and_takes_its_id_with_it():
    engine = Engine(chunk_tokens=8)
    engine.scheduler.submit(row("a", prompt_tokens=8, max_tokens=3))
    engine.scheduler.submit(row("b", prompt_tokens=8))
    engine.blocks.silent = True
    engine.runner.chunk_tokens = 4
    engine.scheduler.step()
    assert engine.scheduler.counts.waiting == 1
    assert engine.scheduler.submit(row("b", prompt_tokens=8)) == []
    assert [event.request_id for event in engine.scheduler.cancel("b")] == ["b"]
    assert set(cached(engine.drain())) == {"a"}


def test_a_row_waits_only_so_long():
    engine = Engine(forecast=FORECAST)
    engine.scheduler.steer(Limits(budget_bytes=1))
    engine.scheduler.submit(row("a", prompt_tokens=21))
    engine.scheduler.submit(row("b", prompt_tokens=21))
    engine.scheduler.step()
    assert engine.scheduler.counts.waiting == 1
    engine.seconds = 61
    engine.scheduler.step()
    engine.scheduler.step()
    assert engine.scheduler.counts.running + engine.scheduler.counts.waiting > 0
    assert engine.scheduler.counts.prefilling == 2


def test_a_restore_asks_the_gate_before_it_builds_anything():
    engine = Engine(forecast=FORECAST)
    engine.blocks.stored = {bytes([end]) for end in range(BLOCK, 21, BLOCK)}
    engine.runner.restore_token_bytes = 1 << 20
    engine.scheduler.steer(Limits(budget_bytes=10 << 20))
    engine.scheduler.submit(row("a", prompt_tokens=21))
    (ask,) = engine.scheduler.step()
    assert isinstance(ask, Ask)
    assert ask.more_bytes >= 10 << 20
    assert sum(engine.runner.fed.values()) == 0
    engine.scheduler.steer(Limits(budget_bytes=64 << 20))
    events = engine.drain()
    assert [type(event) for event in events[:2]] == [Restored, PrefillProgress]
    assert cached(events) == {"a": 20}


def test_a_restore_that_never_fits_ends_in_a_cold_start_not_in_a_refusal():
    engine = Engine(forecast=FORECAST)
    engine.blocks.stored = {bytes([end]) for end in range(BLOCK, 21, BLOCK)}
    engine.runner.restore_token_bytes = 1 << 30
    engine.scheduler.steer(Limits(budget_bytes=10 << 20))
    engine.scheduler.submit(row("a", prompt_tokens=21))
    events: list[Event] = []
    for _ in range(20):
        engine.seconds += 61
        events += engine.scheduler.step()
    assert cached(events) == {"a": 0}
    assert engine.runner.chunks == [("a", 20)]


def test_what_is_stored_makes_a_long_prompt_a_short_one():
    """It need not wait behind a long prompt that is being fed."""
    engine = Engine(chunk_tokens=4)
    engine.blocks.plan = lambda _command: PrefixPlan()
    engine.scheduler.submit(row("long", prompt_tokens=80))
    engine.scheduler.step()
    engine.blocks.plan = lambda _command: PrefixPlan(cached_tokens=40)
    engine.runner.stored_tokens = 40
    engine.scheduler.submit(row("stored", prompt_tokens=42))
    events = engine.drain()
    ends = [event.request_id for event in events if isinstance(event, Finished)]
    assert ends == ["stored", "long"]
