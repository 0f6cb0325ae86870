"""The arbiter under every order of events: nothing promised twice, nobody waits for ever."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from manifests.errors import Refusal
from manifests.kinds.guard import MemoryGuardSpec
from manifests.sizing.estimate import PrefillCase, estimate_prefill
from manifests.units import GIB
from node_agent.host.base import HostMemory
from node_agent.memory.arbiter import Arbiter
from node_agent.memory.base import AdmissionRequest, Reservation
from node_agent.memory.line import LineRules
from node_agent.memory.reading import EngineUse
from tests.support.pools import SHAPE

ENGINES = ("a", "b", "c")
RAM = 32 * GIB
MARGIN = 1 * GIB
FOR_EVER = 10**6
_T = TypeVar("_T")


def guard(reserve_gib: int) -> MemoryGuardSpec:
    text = f'{{"staticReserve": "{reserve_gib}Gi", "prefillTransientMargin": "1Gi"}}'
    return MemoryGuardSpec.model_validate_json(text)


@dataclass
class Asked:
    """One load or prefill of the model: what it asked for and what it has allocated so far."""

    engine: str
    need_bytes: int
    prefill: bool
    task: "asyncio.Task[Reservation | Refusal]"
    grown_bytes: int = 0

    @property
    def spare_bytes(self) -> int:
        return MARGIN if self.prefill else 0


async def take_turns() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


class ArbiterMachine(RuleBasedStateMachine):
    """Engines that hold 1 GiB each and grow by what they were promised, and no further.

    The model knows whose memory is whose. The arbiter sees samples only, and each sample three
    times, so that its high-water mark has settled.
    """

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.now, self.reserve_gib, self.other_apps_bytes, self.numbers = 0.0, 8, 0, 0
        self.pids = dict.fromkeys(ENGINES, 1)
        self.arbiter = Arbiter(guard(8), rules=LineRules(most_waiting=4), clock=lambda: self.now)
        self.waiting: dict[int, Asked] = {}
        self.held: dict[int, Asked] = {}
        self.sample()

    def run(self, coroutine: Coroutine[object, object, _T]) -> _T:
        return self.loop.run_until_complete(coroutine)

    def uses(self) -> tuple[EngineUse, ...]:
        grown = dict.fromkeys(ENGINES, GIB)
        for item in self.held.values():
            grown[item.engine] += item.grown_bytes
        return tuple(
            EngineUse(name, self.pids[name], size, weights_bytes=GIB)
            for name, size in grown.items()
        )

    def sample(self) -> None:
        uses = self.uses()
        free = RAM - self.other_apps_bytes - sum(use.measured_bytes for use in uses)
        for _ in range(3):
            self.arbiter.observe(HostMemory(RAM, max(0, free), 0, 0), uses)
        self.settle()

    def settle(self) -> None:
        """Let woken callers take their answers; what is granted must be there."""
        self.run(take_turns())
        granted = False
        for number, item in list(self.waiting.items()):
            if item.task.done():
                del self.waiting[number]
                if not isinstance(item.task.result(), Refusal):
                    self.held[number] = item
                    granted = True
        if granted:
            assert self.committed() <= self.arbiter.state().ceilings.hard_bytes

    def committed(self) -> int:
        """Return all that is held and all that is promised, by the model's own books."""
        return len(ENGINES) * GIB + sum(item.need_bytes for item in self.held.values())

    def end(self, number: int) -> None:
        answer = self.held.pop(number).task.result()
        assert not isinstance(answer, Refusal)
        answer.release()

    def ask(self, asked: Asked) -> None:
        self.numbers += 1
        before = self.committed()
        self.waiting[self.numbers] = asked
        self.settle()
        if self.numbers in self.held:
            ceiling = self.arbiter.state().ceilings.hard_bytes
            assert before + asked.need_bytes + asked.spare_bytes <= ceiling

    @rule(engine=st.sampled_from(ENGINES), gib=st.integers(1, 30))
    def ask_for_a_load(self, engine: str, gib: int) -> None:
        answer = self.arbiter.admit_load(engine, gib * GIB, wait_seconds=FOR_EVER)
        self.ask(Asked(engine, gib * GIB, False, self.loop.create_task(answer)))

    @rule(engine=st.sampled_from(ENGINES), tokens=st.integers(1, 4_000_000))
    def ask_for_a_prefill(self, engine: str, tokens: int) -> None:
        case = PrefillCase(prompt_tokens=tokens, max_tokens=100, chunk_tokens=256)
        request = AdmissionRequest(engine, "m", SHAPE, tokens, 0, 100, 1, 256)
        answer = self.arbiter.admit(request, wait_seconds=FOR_EVER)
        need = estimate_prefill(SHAPE, case).peak_bytes
        self.ask(Asked(engine, need, True, self.loop.create_task(answer)))

    @precondition(lambda self: self.held)
    @rule(data=st.data(), share=st.floats(0, 1))
    def allocate(self, data: st.DataObject, share: float) -> None:
        item = self.held[data.draw(st.sampled_from(sorted(self.held)))]
        item.grown_bytes += int((item.need_bytes - item.grown_bytes) * share)
        self.sample()

    @precondition(lambda self: self.held)
    @rule(data=st.data(), twice=st.booleans())
    def finish(self, data: st.DataObject, twice: bool) -> None:
        number = data.draw(st.sampled_from(sorted(self.held)))
        answer = self.held[number].task.result()
        self.end(number)
        if twice:
            assert not isinstance(answer, Refusal)
            answer.release()
        self.sample()

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        item = self.waiting.pop(data.draw(st.sampled_from(sorted(self.waiting))))
        item.task.cancel()
        self.run(asyncio.wait({item.task}))
        self.settle()

    @rule(engine=st.sampled_from(ENGINES))
    def die(self, engine: str) -> None:
        """Whoever holds a promise of a dead engine gives it back; its memory is gone at once."""
        for number in [n for n, item in self.held.items() if item.engine == engine]:
            self.end(number)
        self.pids[engine] += 1
        self.sample()

    @rule(gib=st.integers(0, 28))
    def other_apps_take(self, gib: int) -> None:
        self.other_apps_bytes = gib * GIB
        self.sample()

    @rule(reserve=st.integers(2, 20), seconds=st.floats(0, 5))
    def edit_the_guard(self, reserve: int, seconds: float) -> None:
        self.now += seconds
        self.reserve_gib = reserve
        self.arbiter.set_guards(guard(reserve), {})
        self.settle()

    @invariant()
    def reserved_covers_what_is_still_to_come(self) -> None:
        to_come = sum(item.need_bytes - item.grown_bytes for item in self.held.values())
        assert self.arbiter.state().reserved_bytes >= to_come

    @invariant()
    def nobody_waits_who_would_fit_at_the_front(self) -> None:
        if self.waiting:
            head = self.waiting[min(self.waiting)]
            state = self.arbiter.state()
            free = state.ceilings.hard_bytes - state.used_bytes - state.reserved_bytes
            assert free < head.need_bytes + head.spare_bytes

    def teardown(self) -> None:
        """Once everything else has ended and left, everyone who waits is answered."""
        try:
            self.other_apps_take(0)
            while self.held:
                self.end(min(self.held))
                self.sample()
            for _ in range(len(self.waiting)):
                self.arbiter.observe(HostMemory(RAM, RAM, 0, 0), ())
                self.run(take_turns())
                for item in self.waiting.values():
                    if item.task.done() and not isinstance(answer := item.task.result(), Refusal):
                        answer.release()
            assert all(item.task.done() for item in self.waiting.values())
            assert self.arbiter.waiting == 0
            assert self.arbiter.state().reserved_bytes == 0
        finally:
            for item in self.waiting.values():
                item.task.cancel()
            if self.waiting:
                self.run(asyncio.wait({item.task for item in self.waiting.values()}))
            self.loop.close()


TestArbiter = ArbiterMachine.TestCase
TestArbiter.settings = settings(max_examples=50, stateful_step_count=25, deadline=None)
