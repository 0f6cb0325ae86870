"""The arbiter: one door, one ledger, one line, the guard of the engine or of the node."""

import asyncio
from dataclasses import dataclass, field

import pytest

from manifests.errors import Code, Refusal, Retryable
from manifests.kinds.guard import MemoryGuardSpec, Tier
from manifests.kinds.node import PressureLevel
from manifests.sizing.estimate import PrefillCase, estimate_prefill, estimate_tokens_that_fit
from manifests.units import GIB, MIB
from node_agent.host.base import HostMemory
from node_agent.memory.arbiter import Arbiter
from node_agent.memory.base import AdmissionRequest, Reservation
from node_agent.memory.line import LineRules
from node_agent.memory.reading import EngineUse
from node_agent.memory.room_plan import RoomPlan
from tests.support.pools import SHAPE

HOST = HostMemory(20 * GIB, 16 * GIB, 0, 0)
MARGIN = 256 * MIB
PLAIN = MemoryGuardSpec.model_validate_json('{"prefillTransientMargin": "0"}')


@dataclass
class HandClock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Rooms:
    """Implements RoomMaker: says whether idle engines would be enough."""

    enough: bool
    asked: list[tuple[str, int]] = field(default_factory=list)

    def make_room(self, engine: str, need_bytes: int, headroom_bytes: int) -> RoomPlan:
        self.asked.append((engine, need_bytes))
        return RoomPlan(enough=self.enough)


def granted(answer: Reservation | Refusal) -> Reservation:
    assert not isinstance(answer, Refusal), answer
    return answer


def refused(answer: Reservation | Refusal) -> Refusal:
    assert isinstance(answer, Refusal)
    return answer


def engine(name: str, gib: int) -> EngineUse:
    return EngineUse(name, 7, gib * GIB, weights_bytes=gib * GIB)


def arbiter_with(*uses: EngineUse, clock: HandClock | None = None, most: int = 64) -> Arbiter:
    rules = LineRules(most_waiting=most)
    arbiter = Arbiter(PLAIN, rules=rules, clock=clock or HandClock())
    arbiter.observe(HOST, uses)
    return arbiter


async def load(arbiter: Arbiter, name: str, gib: int, wait: float = 0.0) -> Reservation | Refusal:
    return await arbiter.admit_load(name, gib * GIB, wait_seconds=wait)


async def in_line(arbiter: Arbiter, name: str, gib: int) -> "asyncio.Task[Reservation | Refusal]":
    task = asyncio.create_task(load(arbiter, name, gib, 60))
    before = arbiter.waiting
    await asyncio.sleep(0)
    assert arbiter.waiting == before + 1
    return task


async def test_nothing_is_admitted_before_the_first_sample() -> None:
    answer = refused(await Arbiter(PLAIN).admit_load("a", 1))
    assert (answer.code, answer.retryable) == (Code.ENGINE_NOT_READY, Retryable.LATER)


async def test_headroom_is_ceiling_less_used_less_reserved_and_returns_after_release() -> None:
    arbiter = arbiter_with(engine("a", 4))
    reservation = granted(await load(arbiter, "a", 5))
    state = arbiter.state()
    assert state.ceilings.hard_bytes == 16 * GIB
    assert (state.used_bytes, state.reserved_bytes) == (4 * GIB, 5 * GIB)
    assert state.headroom_bytes == 7 * GIB
    reservation.release()
    reservation.release()
    assert arbiter.state().headroom_bytes == 12 * GIB


async def test_two_loads_are_never_admitted_against_the_same_bytes() -> None:
    arbiter = arbiter_with()
    granted(await load(arbiter, "a", 10))
    assert refused(await load(arbiter, "b", 10)).retryable is Retryable.LATER


async def test_a_loading_engine_is_counted_once_while_it_grows() -> None:
    arbiter = arbiter_with()
    granted(await load(arbiter, "a", 10))
    arbiter.observe(HOST, (EngineUse("a", 7, 6 * GIB),))
    state = arbiter.state()
    assert state.used_bytes + state.reserved_bytes == 10 * GIB


def test_a_gone_engines_memory_is_free_at_the_next_sample() -> None:
    arbiter = arbiter_with(engine("a", 10))
    arbiter.observe(HOST, ())
    assert arbiter.state().used_bytes == 0


def test_a_trough_after_a_cache_clear_is_not_believed() -> None:
    clock = HandClock()
    arbiter = arbiter_with(engine("a", 10), clock=clock)
    arbiter.observe(HOST, (engine("a", 2),))
    assert arbiter.state().used_bytes == 10 * GIB
    for _ in range(3):
        clock.now += 1.0
        arbiter.observe(HOST, (engine("a", 2),))
    assert arbiter.state().used_bytes == 2 * GIB


def ask(name: str, prompt_tokens: int = 1000, max_tokens: int = 50) -> AdmissionRequest:
    return AdmissionRequest(name, "m", SHAPE, prompt_tokens, 200, max_tokens, 2, 256)


@pytest.mark.parametrize("fused", [False, True])
async def test_a_request_reserves_what_the_shared_estimator_says(fused: bool) -> None:
    arbiter = Arbiter(PLAIN, fused=fused)
    arbiter.observe(HOST, (engine("a", 1),))
    granted(await arbiter.admit(ask("a")))
    case = PrefillCase(
        prompt_tokens=1000, cached_tokens=200, max_tokens=50, rows=2, chunk_tokens=256
    )
    peak = estimate_prefill(SHAPE, case, fused=fused).peak_bytes
    assert arbiter.state().reserved_bytes == peak


async def test_what_was_learned_shuts_nobody_out_who_has_the_node_to_himself() -> None:
    arbiter = arbiter_with(engine("a", 1))
    arbiter.lessons.note("a", 100 * MIB, 300 * MIB)
    shape = SHAPE.model_copy(update={"context_tokens": 1 << 24})
    tokens = estimate_tokens_that_fit(shape, 12 * GIB, chunk_tokens=256)
    fits = AdmissionRequest("a", "m", shape, tokens, 0, 1, 1, 256)
    first = granted(await arbiter.admit(fits))
    room = 15 * GIB
    assert arbiter.state().reserved_bytes == room
    second = refused(await arbiter.admit(fits))
    assert second.retryable is Retryable.LATER
    waiting = asyncio.create_task(arbiter.admit(fits, wait_seconds=60))
    await asyncio.sleep(0)
    first.release()
    granted(await waiting)


async def test_a_refusal_names_what_fits_and_a_full_line_keeps_its_own_words() -> None:
    arbiter = arbiter_with(engine("a", 1), most=1)
    never = refused(await arbiter.admit(ask("a", 10_000_000, 1)))
    assert never.retryable is Retryable.NO
    assert never.fitting_tokens
    held = granted(await load(arbiter, "b", 15))
    waiting = await in_line(arbiter, "b", 10)
    full = refused(await arbiter.admit(ask("a"), wait_seconds=60))
    assert full.code is Code.QUEUE_FULL
    waiting.cancel()
    held.release()


async def test_what_can_never_fit_is_told_at_once_behind_any_line() -> None:
    clock = HandClock()
    arbiter = arbiter_with(engine("a", 1), clock=clock)
    granted(await load(arbiter, "b", 14))
    waiting = await in_line(arbiter, "b", 10)
    clock.now = 5.0
    answer = refused(await arbiter.admit(ask("a", 10_000_000, 1), wait_seconds=60))
    assert answer.retryable is Retryable.NO
    assert arbiter.waiting == 1
    waiting.cancel()


async def test_what_prefills_really_took_raises_later_requests_and_fades() -> None:
    arbiter = arbiter_with(engine("a", 1))
    granted(await arbiter.admit(ask("a"))).release()
    plain = await reserved(arbiter)
    arbiter.lessons.note("a", 100 * MIB, 150 * MIB)
    raised = await reserved(arbiter)
    assert raised > plain
    for _ in range(200):
        arbiter.lessons.note("a", 100 * MIB, 90 * MIB)
    assert await reserved(arbiter) == plain


async def reserved(arbiter: Arbiter) -> int:
    held = granted(await arbiter.admit(ask("a")))
    found = arbiter.state().reserved_bytes
    held.release()
    return found


async def test_an_engines_own_guard_stands_before_the_nodes() -> None:
    arbiter = arbiter_with(engine("a", 1), engine("b", 1))
    strict = MemoryGuardSpec.model_validate({"tier": Tier.CUSTOM, "customCeiling": "1Gi"})
    arbiter.set_guards(PLAIN, {"a": strict})
    answer = refused(await arbiter.admit(ask("a")))
    assert "customCeiling" in answer.hint
    granted(await arbiter.admit(ask("b")))


async def test_room_tells_what_fits_now_and_on_an_idle_node() -> None:
    arbiter = arbiter_with(engine("a", 4), engine("b", 2))
    granted(await load(arbiter, "b", 3))
    assert arbiter.engine_room_bytes("a") == (7 * GIB, 12 * GIB)


def test_pressure_is_reported_by_level() -> None:
    assert arbiter_with(engine("a", 10)).state().pressure is PressureLevel.OK
    assert arbiter_with(engine("a", 15)).state().pressure is PressureLevel.SOFT


async def test_what_fits_later_waits_and_goes_when_memory_is_given_back() -> None:
    arbiter = arbiter_with()
    first = granted(await load(arbiter, "a", 10))
    waiting = await in_line(arbiter, "b", 10)
    first.release()
    granted(await waiting)
    assert arbiter.waiting == 0


async def prefill_in_line(
    arbiter: Arbiter, name: str, tokens: int
) -> "asyncio.Task[Reservation | Refusal]":
    task = asyncio.create_task(arbiter.admit(ask(name, tokens, 1), wait_seconds=60))
    before = arbiter.waiting
    await asyncio.sleep(0)
    assert arbiter.waiting == before + 1
    return task


async def test_the_line_is_served_in_order_once_its_head_is_impatient() -> None:
    clock = HandClock()
    arbiter = arbiter_with(engine("a", 1), clock=clock)
    first = granted(await load(arbiter, "b", 13))
    large = await prefill_in_line(arbiter, "a", 400_000)
    granted(await arbiter.admit(ask("a"), wait_seconds=60)).release()
    clock.now = 5.0
    late = await prefill_in_line(arbiter, "a", 1000)
    arbiter.observe(HOST, (engine("a", 1),))
    await asyncio.sleep(0)
    assert not late.done()
    first.release()
    granted(await large)
    granted(await late)


@pytest.mark.parametrize("room_comes", [True, False])
async def test_a_load_holds_the_line_only_while_room_is_made_for_it(room_comes: bool) -> None:
    """Else one that waits for a pinned or busy model would shut the node to small requests."""
    clock = HandClock()
    arbiter = arbiter_with(engine("a", 1), clock=clock)
    arbiter.room = Rooms(enough=room_comes)
    first = granted(await load(arbiter, "b", 10))
    waiting = await in_line(arbiter, "c", 12)
    clock.now = 5.0
    small = asyncio.create_task(arbiter.admit(ask("a"), wait_seconds=60))
    for _ in range(3):
        await asyncio.sleep(0)
    assert small.done() is not room_comes
    first.release()
    granted(await small).release()
    granted(await waiting)


async def test_a_load_that_waits_does_not_hide_an_impatient_request_behind_it() -> None:
    clock = HandClock()
    arbiter = arbiter_with(engine("a", 1), clock=clock)
    first = granted(await load(arbiter, "b", 13))
    waiting = await in_line(arbiter, "c", 16)
    large = await prefill_in_line(arbiter, "a", 400_000)
    clock.now = 5.0
    late = await prefill_in_line(arbiter, "a", 1000)
    first.release()
    granted(await large)
    granted(await late)
    waiting.cancel()


async def test_a_waiter_that_leaves_holds_nothing() -> None:
    arbiter = arbiter_with()
    first = granted(await load(arbiter, "a", 10))
    waiting = await in_line(arbiter, "b", 10)
    first.release()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert arbiter.waiting == 0
    assert arbiter.state().reserved_bytes == 0


async def test_the_line_is_bounded_and_a_wait_has_an_end() -> None:
    arbiter = arbiter_with(most=1)
    granted(await load(arbiter, "a", 10))
    waiting = await in_line(arbiter, "b", 10)
    full = refused(await load(arbiter, "c", 10, 60))
    assert (full.code, full.retryable) == (Code.QUEUE_FULL, Retryable.ELSEWHERE)
    waiting.cancel()
    await asyncio.sleep(0)
    late = refused(await load(arbiter, "d", 10, 0.01))
    assert late.retryable is Retryable.LATER
    assert late.http_status == 503


async def test_idle_engines_make_room_before_anyone_is_refused() -> None:
    arbiter = arbiter_with(engine("a", 1), engine("idle", 14))
    rooms = Rooms(enough=True)
    arbiter.room = rooms
    task = asyncio.create_task(arbiter.admit(ask("a", 800_000, 1), wait_seconds=60))
    await asyncio.sleep(0)
    assert rooms.asked
    assert not task.done()
    for _ in range(3):
        arbiter.observe(HOST, (engine("a", 1),))
    granted(await task)


async def test_what_other_models_keep_out_for_good_is_refused_at_once() -> None:
    arbiter = arbiter_with(engine("a", 1), engine("busy", 14))
    arbiter.room = Rooms(enough=False)
    answer = refused(await arbiter.admit(ask("a", 800_000, 1), wait_seconds=60))
    assert answer.retryable is Retryable.ELSEWHERE


async def test_a_pause_holds_new_requests_but_not_a_lone_one_and_not_a_load() -> None:
    arbiter = arbiter_with(engine("a", 1))
    arbiter.set_paused(True)
    lone = granted(await arbiter.admit(ask("a")))
    held = asyncio.create_task(arbiter.admit(ask("a"), wait_seconds=60))
    await asyncio.sleep(0)
    assert not held.done()
    lone.release()
    second = granted(await held)
    blocked = asyncio.create_task(arbiter.admit(ask("a"), wait_seconds=60))
    await asyncio.sleep(0)
    arbiter.set_paused(False)
    granted(await blocked)
    second.release()


async def test_an_edited_guard_serves_the_line_at_once() -> None:
    arbiter = arbiter_with()
    granted(await load(arbiter, "a", 10))
    waiting = await in_line(arbiter, "b", 7)
    roomier = MemoryGuardSpec.model_validate_json(
        '{"tier": "aggressive", "staticReserve": "2Gi", "prefillTransientMargin": "0"}'
    )
    arbiter.observe(HostMemory(20 * GIB, 20 * GIB, 0, 0), ())
    arbiter.set_guards(roomier, {})
    granted(await waiting)


async def test_a_running_request_grows_ahead_of_the_line() -> None:
    arbiter = arbiter_with(engine("a", 1))
    granted(await load(arbiter, "b", 14))
    await in_line(arbiter, "c", 2)
    grown = granted(arbiter.admit_growth("a", GIB // 2))
    assert arbiter.state().reserved_bytes == 14 * GIB + GIB // 2
    refused(arbiter.admit_growth("a", 100 * GIB))
    grown.release()
    assert arbiter.state().reserved_bytes == 14 * GIB


async def test_without_enforcement_everything_is_granted() -> None:
    arbiter = Arbiter(PLAIN, enforced=False)
    granted(await load(arbiter, "a", 1000)).release()
