"""What the publisher tells engines, and what it answers them."""

import pytest

from manifests.errors import Refusal
from manifests.kinds.engine import EnginePhase
from manifests.kinds.guard import MemoryGuardSpec
from manifests.units import GIB, MIB
from node_agent.engine.messages import Answer, Ask, ChunkMeasured, Command, Limits
from node_agent.host.base import HostMemory
from node_agent.memory.arbiter import Arbiter
from node_agent.memory.budget import STEP_BYTES
from node_agent.memory.publisher import Publisher
from node_agent.memory.reading import EngineUse
from node_agent.pool.base import EngineView, RowView
from tests.support.pools import make_want

HOST = HostMemory(20 * GIB, 20 * GIB, 0, 0)


class Engines:
    """Implements LimitedPool: notes what is sent to whom."""

    def __init__(self) -> None:
        self.rows: dict[str, tuple[RowView, ...]] = {"a": (), "b": ()}
        self.sent: list[tuple[str, Command]] = []

    def views(self) -> tuple[EngineView, ...]:
        return tuple(
            EngineView(make_want(name), EnginePhase.READY, pid=7, rows=rows)
            for name, rows in self.rows.items()
        )

    def send(self, name: str, command: Command) -> bool:
        self.sent.append((name, command))
        return True

    def newest(self, name: str) -> Limits:
        return next(
            item for to, item in reversed(self.sent) if to == name and isinstance(item, Limits)
        )


@pytest.fixture
def engines() -> Engines:
    return Engines()


@pytest.fixture
def arbiter() -> Arbiter:
    arbiter = Arbiter(MemoryGuardSpec())
    uses = tuple(EngineUse(name, 7, GIB, weights_bytes=GIB - 100 * MIB) for name in ("a", "b"))
    arbiter.observe(HOST, uses)
    return arbiter


@pytest.fixture
def publisher(engines: Engines, arbiter: Arbiter) -> Publisher:
    publisher = Publisher(engines, arbiter, clock=lambda: 0.0)
    arbiter.changed.listen(publisher.publish)
    return publisher


async def test_a_promise_raises_the_budget_of_its_engine_before_the_caller_goes_on(
    engines: Engines, arbiter: Arbiter, publisher: Publisher
) -> None:
    publisher.publish()
    idle = engines.newest("a").budget_bytes
    assert idle == GIB - 100 * MIB + 256 * MIB
    held = await arbiter.admit_load("a", GIB)
    assert not isinstance(held, Refusal)
    assert engines.newest("a").budget_bytes == idle + GIB
    assert engines.newest("b").budget_bytes == idle
    held.release()
    assert engines.newest("a").budget_bytes == idle


def test_unchanged_limits_are_not_sent_again(engines: Engines, publisher: Publisher) -> None:
    publisher.publish()
    count = len(engines.sent)
    publisher.publish()
    assert len(engines.sent) == count


def test_an_edited_guard_reaches_running_engines_at_once(
    engines: Engines, arbiter: Arbiter, publisher: Publisher
) -> None:
    publisher.publish()
    edited = MemoryGuardSpec.model_validate_json(
        '{"minChunkTokens": 8, "prefillTransientMargin": "1Gi"}'
    )
    arbiter.set_guards(edited, {})
    limits = engines.newest("a")
    assert (limits.min_chunk_tokens, limits.margin_bytes) == (8, GIB)


def test_only_the_engine_whose_turn_it_is_feeds_prompts(
    engines: Engines, publisher: Publisher
) -> None:
    engines.rows = {"a": (RowView("1", 0.0),), "b": (RowView("2", 0.0),)}
    publisher.publish()
    turns = {name: engines.newest(name).prefill_turn for name in engines.rows}
    assert sorted(turns.values()) == [False, True]


def test_an_ask_is_granted_after_its_budget_and_given_back_with_its_row(
    engines: Engines, arbiter: Arbiter, publisher: Publisher
) -> None:
    engines.rows["a"] = (RowView("1", 0.0),)
    publisher.publish()
    before = engines.newest("a").budget_bytes
    publisher.on_memory_event("a", Ask(request_id="1", more_bytes=GIB))
    (_, limits), (_, answer) = engines.sent[-2:]
    assert isinstance(limits, Limits)
    assert limits.budget_bytes == before + GIB + STEP_BYTES
    assert answer == Answer(request_id="1", granted=True)
    engines.rows["a"] = ()
    publisher.publish()
    assert arbiter.state().reserved_bytes == 0
    assert engines.newest("a").budget_bytes == before


@pytest.mark.parametrize("promised_bytes", [0, 1, MIB // 3, MIB - 1])
@pytest.mark.parametrize("more_bytes", [1, 103_688, MIB - 1, 31 * MIB + 103_688])
async def test_a_granted_ask_raises_the_budget_by_all_that_was_asked(
    engines: Engines,
    arbiter: Arbiter,
    publisher: Publisher,
    promised_bytes: int,
    more_bytes: int,
) -> None:
    """Budgets are rounded up: what is promised next may vanish in what rounding gave before."""
    engines.rows["a"] = (RowView("1", 0.0),)
    await arbiter.admit_load("a", promised_bytes)
    publisher.publish()
    before = engines.newest("a").budget_bytes
    publisher.on_memory_event("a", Ask(request_id="1", more_bytes=more_bytes))
    assert engines.sent[-1] == ("a", Answer(request_id="1", granted=True))
    assert engines.newest("a").budget_bytes >= before + more_bytes


def test_an_ask_that_cannot_be_met_is_answered_with_words(
    engines: Engines, publisher: Publisher
) -> None:
    publisher.on_memory_event("a", Ask(request_id="1", more_bytes=100 * GIB))
    _, answer = engines.sent[-1]
    assert isinstance(answer, Answer)
    assert not answer.granted
    assert "100 GiB" in answer.message


def test_measured_chunks_teach_the_arbiter(arbiter: Arbiter, publisher: Publisher) -> None:
    chunk = ChunkMeasured(
        request_id="1",
        chunk_tokens=64,
        context_tokens=64,
        predicted_bytes=100 * MIB,
        actual_bytes=120 * MIB,
    )
    publisher.on_memory_event("a", chunk)
    assert arbiter.lessons.of("a").ratio == pytest.approx(1.2)


async def test_a_guard_that_changes_its_wired_limit_reaches_running_engines_at_once(
    engines: Engines, arbiter: Arbiter, publisher: Publisher
) -> None:
    publisher.publish()
    assert engines.newest("a").wired_limit_bytes == 0
    node = MemoryGuardSpec.model_validate({"wiredLimit": "2Gi"})
    arbiter.set_guards(node, {"b": MemoryGuardSpec.model_validate({"wiredLimit": "3Gi"})})
    told = [engines.newest(name).wired_limit_bytes for name in ("a", "b")]
    assert told == [2 * GIB, 3 * GIB]
