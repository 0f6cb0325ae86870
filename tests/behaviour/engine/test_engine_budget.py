"""Real engines under budgets they have to work for: the gate in front of every chunk."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from manifests.sizing.estimate import read_shape
from node_agent.engine.messages import (
    Abort,
    Answer,
    Ask,
    ChunkMeasured,
    Command,
    Event,
    Failed,
    Finished,
    Generate,
    Heartbeat,
    Limits,
    Load,
    Loaded,
    PrefillProgress,
    Reclaim,
    Tokens,
)
from node_agent.engine.scheduling.forecast import Forecast
from tests.support.mlx_engine import BareEngine
from tests.support.pools import ending, greedy, token_ids
from tests.support.tiny_models import tiny_model

pytestmark = pytest.mark.processes

CHUNK_TOKENS = 256
MARGIN_BYTES = 256 << 10
LONG = [20 + position % 900 for position in range(2500)]

Reply = Callable[[Ask], list[Command]]


def no_reply(ask: Ask) -> list[Command]:
    raise AssertionError(f"nobody expected {ask}")


def deny(ask: Ask) -> list[Command]:
    return [Answer(request_id=ask.request_id, granted=False, retryable="later")]


@dataclass
class Guarded:
    """An engine with a shape, told what it may hold beyond what it held when loaded."""

    engine: BareEngine
    forecast: Forecast
    base_bytes: int
    rows: dict[str, list[Event]] = field(default_factory=dict)

    def limits(self, more_bytes: int, **fields: int) -> Limits:
        budget = self.base_bytes + MARGIN_BYTES + more_bytes
        return Limits(budget_bytes=budget, margin_bytes=MARGIN_BYTES, **fields)

    def need_bytes(self, prompt: list[int], chunk_tokens: int = CHUNK_TOKENS) -> int:
        return self.forecast.finish_bytes(0, len(prompt) - 1, chunk_tokens)

    def run(self, *commands: Command, reply: Reply = no_reply) -> dict[str, list[Event]]:
        """Send commands, answer what is asked, and return the events of each row."""
        rows: dict[str, list[Event]] = {
            one.request_id: [] for one in commands if isinstance(one, Generate)
        }
        left = set(rows)
        self.engine.send(*commands)
        for event in self.engine.events:
            if isinstance(event, Ask):
                self.engine.send(*reply(event))
            request_id = getattr(event, "request_id", None)
            if request_id in rows:
                rows[request_id].append(event)
            if isinstance(event, Finished | Failed):
                left.discard(event.request_id)
            if not left:
                return rows
        raise AssertionError("the engine left while rows ran")

    def heartbeat(self) -> Heartbeat:
        """Return the first heartbeat that is sent from now on."""
        self.engine.await_event(Heartbeat)
        beat = self.engine.await_event(Heartbeat)
        assert isinstance(beat, Heartbeat)
        return beat


@contextmanager
def guarded(name: str = "llama", **fields: int) -> Iterator[Guarded]:
    path = tiny_model(name)
    shape = read_shape(json.loads((path / "config.json").read_text()))
    engine = BareEngine()
    try:
        engine.send(
            Load(
                model_path=str(path),
                shape=shape.model_dump_json(),
                **{"chunk_tokens": CHUNK_TOKENS, **fields},
            )
        )
        loaded = engine.await_event(Loaded)
        assert isinstance(loaded, Loaded)
        # A first row compiles what is left to compile, and shows what stays after it.
        engine.run(greedy("first", list(range(300)), 2))
        beat = engine.await_event(Heartbeat)
        assert isinstance(beat, Heartbeat)
        yield Guarded(engine, Forecast(shape, fused=False), beat.active_bytes + beat.cache_bytes)
    finally:
        engine.stop()


def chunks(events: list[Event]) -> list[int]:
    return [event.chunk_tokens for event in events if isinstance(event, ChunkMeasured)]


def test_a_budget_slightly_below_the_need_shrinks_chunks_and_changes_no_token():
    with guarded() as guard:
        more_bytes = guard.need_bytes(LONG, 100)
        limits = guard.limits(more_bytes)
        tight = guard.run(limits, greedy("tight", LONG, 12))["tight"]
        # The promise was kept: at no moment was more held than the budget.
        assert guard.heartbeat().peak_bytes <= limits.budget_bytes
        free = guard.run(Limits(), greedy("free", LONG, 12))["free"]
        assert guard.heartbeat().peak_bytes > limits.budget_bytes
        assert token_ids(tight) == token_ids(free)
        assert sum(chunks(tight)) == len(LONG) - 1
        assert (min(chunks(tight)) < 256, max(chunks(tight))) == (True, 256)
        assert set(chunks(free)) == {256, 2499 % 256}


def test_every_chunk_is_measured_beside_its_prediction():
    with guarded() as guard:
        events = guard.run(greedy("a", LONG, 2))["a"]
        measured = [event for event in events if isinstance(event, ChunkMeasured)]
        assert [one.context_tokens for one in measured] == [*range(256, 2499, 256), 2499]
        for one in measured:
            assert 0 < one.actual_bytes <= one.predicted_bytes < 5 * one.actual_bytes


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "qwen3_next", "mamba2", "llama4"])
def test_a_tight_budget_is_kept_by_every_kind_of_cache(name):
    """llama4 runs one row at a time, behind the same gate."""
    with guarded(name) as guard:
        free = guard.run(greedy("free", LONG[:1200], 6))["free"]
        more_bytes = guard.need_bytes(LONG[:1200], 64)
        tight = guard.run(guard.limits(more_bytes), greedy("tight", LONG[:1200], 6))["tight"]
        assert token_ids(tight) == token_ids(free)
        assert min(chunks(tight)[:-1]) < 256


def test_a_budget_far_below_the_need_fails_the_request_and_disturbs_no_other():
    with guarded() as guard:
        alone = guard.run(greedy("alone", [1, 2, 3], 120))["alone"]
        asks: list[Ask] = []

        def reply(ask: Ask) -> list[Command]:
            asks.append(ask)
            return deny(ask)

        rows = guard.run(
            guard.limits(guard.need_bytes(LONG, 32) // 2),
            greedy("small", [1, 2, 3], 120),
            greedy("big", LONG, 12),
            reply=reply,
        )
        assert token_ids(rows["small"]) == token_ids(alone)
        failed = ending(rows["big"])
        assert isinstance(failed, Failed)
        assert (failed.code, failed.retryable) == ("prefill_memory_exceeded", "later")
        assert "of memory" in failed.message
        assert "may hold" in failed.message
        assert 1 <= len(asks) <= 3
        # Freed at once: the next request has the whole budget again.
        after = guard.run(greedy("after", [1, 2, 3], 120))["after"]
        assert token_ids(after) == token_ids(alone)
        assert guard.heartbeat().active_bytes <= guard.base_bytes


def test_a_row_that_asked_goes_on_when_the_budget_is_raised():
    with guarded() as guard:
        free = guard.run(greedy("free", LONG, 12))["free"]
        low_bytes = guard.need_bytes(LONG, 32) // 2
        asked: list[int] = []

        def raise_budget(ask: Ask) -> list[Command]:
            asked.append(ask.more_bytes)
            assert guard.heartbeat().held == 1
            # No Answer: the new budget alone is enough.
            return [guard.limits(guard.need_bytes(LONG))]

        events = guard.run(guard.limits(low_bytes), greedy("a", LONG, 12), reply=raise_budget)["a"]
        assert token_ids(events) == token_ids(free)
        assert len(asked) == 1
        assert 0 < asked[0] < guard.need_bytes(LONG)


def test_rows_of_unequal_length_are_not_padded_to_the_longest():
    """One batch of 17 rows padded to 2,500 tokens would hold 44 MB of KV."""
    with guarded(max_running=20) as guard:
        wanted = {f"s{i}": greedy(f"s{i}", [i + 1] * (3 + i), 150) for i in range(16)}
        wanted["long"] = greedy("long", LONG, 30)
        rows = guard.run(*wanted.values())
        # The long one was decoded beside the short ones, or there was nothing to pad.
        seen = [e.request_id for e in guard.engine.seen if isinstance(e, Tokens)]
        assert seen.index("long") < len(seen) - seen[::-1].index("s0") - 30
        per_token_bytes = sum(g.layers * g.bytes_per_token for g in guard.forecast.shape.groups)
        padded_bytes = 17 * len(LONG) * per_token_bytes
        assert guard.heartbeat().peak_bytes < guard.base_bytes + 0.75 * padded_bytes
        for name in ("s0", "s15", "long"):
            assert token_ids(guard.run(wanted[name])[name]) == token_ids(rows[name])


def test_decode_that_outgrows_its_budget_is_told_and_never_ended_by_the_engine():
    with guarded() as guard:
        guard.engine.send(greedy("a", [1, 2, 3], 1500))
        guard.engine.await_event(Tokens)
        guard.engine.send(Limits(budget_bytes=1 << 10))
        assert guard.heartbeat().over_budget_bytes > 0
        # What comes new has no room, neither beside it nor after it.
        events = guard.run(Reclaim(), greedy("b", [4], 2), reply=deny)["b"]
        assert isinstance(ending(events), Failed)
        (end,) = [e for e in guard.engine.seen if isinstance(e, Finished) and e.request_id == "a"]
        assert end.reason == "length"


def test_an_abort_in_the_middle_of_a_prefill_frees_what_it_held():
    with guarded(chunk_tokens=32) as guard:
        guard.engine.send(greedy("a", LONG, 5))
        for event in guard.engine.events:
            if isinstance(event, PrefillProgress) and event.done_tokens >= 1000:
                break
        guard.engine.send(Abort(request_id="a", code="prefill_memory_exceeded", message="out"))
        failed = guard.engine.await_event(Failed)
        assert (failed.request_id, failed.message) == ("a", "out")
        beat = guard.heartbeat()
        assert (beat.running, beat.active_bytes <= guard.base_bytes) == (0, True)


def test_limits_before_the_load_hold_from_the_first_request_on():
    path = tiny_model("llama")
    shape = read_shape(json.loads((path / "config.json").read_text())).model_dump_json()
    for early, at_load in ((Limits(budget_bytes=1), Limits()), (Limits(), Limits(budget_bytes=1))):
        engine = BareEngine()
        engine.send(early, Load(model_path=str(path), shape=shape, limits=at_load))
        engine.await_event(Loaded)
        engine.send(greedy("a", [1, 2, 3], 2))
        ask = engine.await_event(Ask)
        assert ask.request_id == "a"
        assert engine.stop() == 0
