"""The arbiter under every order of events: nothing promised twice, nobody waits for ever."""

import asyncio
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from manifests.errors import Refusal
from manifests.guard import MemoryGuardSpec
from manifests.units import GIB
from node_agent.host.base import HostMemory
from node_agent.memory.arbiter import Arbiter
from node_agent.memory.base import Reservation
from node_agent.memory.line import LineRules
from node_agent.memory.reading import EngineUse

ENGINES = ("a", "b", "c")
RAM = 32


def guard(reserve_gib: int) -> MemoryGuardSpec:
    text = f'{{"staticReserve": "{reserve_gib}Gi", "prefillTransientMargin": "0"}}'
    return MemoryGuardSpec.model_validate_json(text)


class ArbiterMachine(RuleBasedStateMachine):
    """Engines that hold 1 GiB each and grow by what they were promised, and no further.

    The model knows whose memory is whose. The arbiter sees samples only, and each sample three
    times, so that its high-water mark has settled.
    """

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.now = 0.0
        self.reserve = 8
        self.arbiter = Arbiter(
            guard(self.reserve), rules=LineRules(most_waiting=4), clock=lambda: self.now
        )
        self.waiting: dict[int, tuple[str, int, asyncio.Task[Reservation | Refusal]]] = {}
        self.held: dict[int, tuple[str, int, int, Reservation]] = {}
        self.numbers = 0
        self.sample()

    def sample(self) -> None:
        for _ in range(3):
            self.arbiter.observe(HostMemory(RAM * GIB, RAM * GIB, 0, 0), self.uses())
        self.settle()

    def uses(self) -> tuple[EngineUse, ...]:
        grown = dict.fromkeys(ENGINES, 1)
        for engine, _, used, _ in self.held.values():
            grown[engine] += used
        return tuple(
            EngineUse(name, 7, gib * GIB, weights_bytes=GIB) for name, gib in grown.items()
        )

    def run(self, coroutine: Any) -> Any:
        return self.loop.run_until_complete(coroutine)

    def settle(self) -> None:
        """Let woken callers take their answers."""
        for _ in range(3):
            self.run(asyncio.sleep(0))
        for number, (engine, gib, task) in list(self.waiting.items()):
            if task.done():
                del self.waiting[number]
                answer = task.result()
                if not isinstance(answer, Refusal):
                    self.held[number] = (engine, gib, 0, answer)

    def ceiling(self) -> int:
        return RAM - self.reserve

    def committed(self) -> int:
        return len(ENGINES) + sum(gib for _, gib, _, _ in self.held.values())

    @rule(engine=st.sampled_from(ENGINES), gib=st.integers(1, 30))
    def ask(self, engine: str, gib: int) -> None:
        self.numbers += 1
        before = self.committed()
        task = self.loop.create_task(self.arbiter.admit_load(engine, gib * GIB, wait_seconds=10**6))
        self.waiting[self.numbers] = (engine, gib, task)
        self.settle()
        if self.numbers in self.held:
            assert before + gib <= max(self.ceiling(), before)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def allocate(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.held)))
        engine, gib, used, held = self.held[number]
        self.held[number] = (engine, gib, min(gib, used + data.draw(st.integers(0, 8))), held)
        self.sample()

    @precondition(lambda self: self.held)
    @rule(data=st.data(), twice=st.booleans())
    def finish(self, data: st.DataObject, twice: bool) -> None:
        number = data.draw(st.sampled_from(sorted(self.held)))
        *_, held = self.held[number]
        held.release()
        if twice:
            held.release()
        del self.held[number]
        self.sample()

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.waiting)))
        *_, task = self.waiting.pop(number)
        task.cancel()
        self.run(asyncio.gather(task, return_exceptions=True))
        self.settle()

    @rule(reserve=st.integers(2, 20), seconds=st.floats(0, 5))
    def edit_the_guard(self, reserve: int, seconds: float) -> None:
        self.now += seconds
        self.reserve = reserve
        self.arbiter.set_guards(guard(reserve), {})
        self.settle()

    @invariant()
    def reserved_covers_what_is_still_to_come(self) -> None:
        to_come = sum(gib - used for _, gib, used, _ in self.held.values())
        assert self.arbiter.state().reserved_bytes >= to_come * GIB

    @invariant()
    def nobody_waits_who_would_fit_at_the_front(self) -> None:
        if not self.waiting:
            return
        _, gib, _ = self.waiting[min(self.waiting)]
        assert self.arbiter.state().headroom_bytes < gib * GIB

    def teardown(self) -> None:
        while self.waiting:
            # One that leaves may let another in, which then holds memory.
            _, (_, _, task) = self.waiting.popitem()
            task.cancel()
            self.run(asyncio.gather(task, return_exceptions=True))
            self.settle()
        for _, _, _, held in self.held.values():
            held.release()
        assert self.arbiter.state().reserved_bytes == 0
        assert self.arbiter.waiting == 0
        self.loop.close()


TestArbiter = ArbiterMachine.TestCase
TestArbiter.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
