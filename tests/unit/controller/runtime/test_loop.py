import asyncio
from collections.abc import Callable

import pytest

from controller.runtime.loop import Controller, Result
from controller.runtime.workqueue import WorkQueue
from manifests.wire.status import ApiError


class Passes:
    """A reconcile that plays outcomes in order and then succeeds."""

    def __init__(self, *outcomes: Exception | Result) -> None:
        self.outcomes = list(outcomes)
        self.keys: list[str] = []
        self.second = asyncio.Event()

    async def __call__(self, key: str) -> Result:
        self.keys.append(key)
        if len(self.keys) == 2:
            self.second.set()
        outcome = self.outcomes.pop(0) if self.outcomes else Result()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


def controller(passes: Passes, keys: Callable[[], list[str]] = list) -> Controller:
    queue = WorkQueue(clock=lambda: 0.0, jitter=lambda: 1.0, least_seconds=1.0)
    return Controller("test", passes, keys=keys, queue=queue)


async def test_a_conflict_is_looked_at_again_at_once() -> None:
    passes = Passes(ApiError(409, "changed"), ApiError(409, "changed"))
    loop = controller(passes)
    await loop.step("a")
    assert passes.keys == ["a", "a", "a"]
    assert (loop.faults, len(loop.queue)) == (0, 0)


async def test_an_endless_conflict_backs_off_in_the_end() -> None:
    passes = Passes(*(ApiError(409, "changed") for _ in range(50)))
    loop = controller(passes)
    await loop.step("a")
    assert len(passes.keys) == 4
    assert (loop.faults, len(loop.queue)) == (1, 1)


@pytest.mark.parametrize(
    "fault", [ApiError(503, "starting"), ConnectionError("refused"), RuntimeError("a bug")]
)
async def test_a_fault_backs_the_key_off_and_does_not_end_the_loop(fault: Exception) -> None:
    passes = Passes(fault)
    loop = controller(passes)
    await loop.step("a")
    assert (loop.faults, len(loop.queue)) == (1, 1)
    assert loop.queue.retry("a") == 2.0
    await loop.step("a")
    assert loop.queue.retry("a") == 1.0


async def test_a_result_can_ask_to_come_again_later() -> None:
    loop = controller(Passes(Result(30.0)))
    await loop.step("a")
    assert len(loop.queue) == 1


async def test_all_keys_are_worked_on_at_the_start() -> None:
    passes = Passes()
    loop = controller(passes, lambda: ["a", "b"])
    task = asyncio.create_task(loop.run())
    async with asyncio.timeout(5):
        await passes.second.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert passes.keys == ["a", "b"]


async def test_every_pass_is_told_with_its_outcome() -> None:
    told: list[tuple[str, str]] = []
    loop = controller(Passes(OSError("down")))
    loop.on_pass(lambda name, outcome, seconds: told.append((name, outcome)))
    await loop.step("a")
    await loop.step("a")
    assert told == [(loop.name, "fault"), (loop.name, "ok")]
