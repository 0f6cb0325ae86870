import asyncio

from controller.runtime.workqueue import WorkQueue


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def queue(clock: Clock) -> WorkQueue:
    return WorkQueue(clock=clock, jitter=lambda: 1.0, least_seconds=1.0, most_seconds=8.0)


async def drain(work: WorkQueue) -> list[str]:
    keys: list[str] = []
    try:
        while True:
            async with asyncio.timeout(0.02):
                keys.append(await work.get())
            work.done(keys[-1])
    except TimeoutError:
        return keys


async def test_a_key_added_many_times_is_handed_out_once_in_order() -> None:
    work = queue(Clock())
    for key in ("b", "a", "b", "b"):
        work.add(key)
    assert await drain(work) == ["b", "a"]


async def test_a_key_added_while_in_work_comes_again_afterwards_and_not_before() -> None:
    work = queue(Clock())
    work.add("a")
    assert await work.get() == "a"
    work.add("a")
    assert await drain(work) == []
    work.done("a")
    assert await drain(work) == ["a"]


async def test_a_delayed_key_waits_for_its_time_and_the_sooner_time_wins() -> None:
    clock = Clock()
    work = queue(clock)
    work.add_after("a", 10)
    work.add_after("a", 5)
    work.add_after("a", 20)
    clock.now += 4.9
    assert await drain(work) == []
    clock.now += 0.1
    assert await drain(work) == ["a"]
    clock.now += 100
    assert await drain(work) == []


async def test_an_immediate_add_replaces_the_delayed_one() -> None:
    clock = Clock()
    work = queue(clock)
    work.add_after("a", 10)
    work.add("a")
    assert await drain(work) == ["a"]
    clock.now += 100
    assert await drain(work) == []


async def test_failures_back_a_key_off_and_success_clears_them() -> None:
    work = queue(Clock())
    assert [work.retry("a") for _ in range(5)] == [1.0, 2.0, 4.0, 8.0, 8.0]
    assert work.retry("b") == 1.0
    work.forget("a")
    assert work.retry("a") == 1.0


async def test_a_waiting_reader_wakes_for_a_new_key() -> None:
    work = queue(Clock())
    reader = asyncio.create_task(work.get())
    await asyncio.sleep(0)
    work.add("a")
    async with asyncio.timeout(5):
        assert await reader == "a"
