"""The gateway's line as it runs: order, claims, time, leaving, and no place lost."""

import asyncio
import math
from collections.abc import Callable
from typing import Any

import pytest

from controller.gateway.choice.demand import Demand
from controller.gateway.choice.fit import Fit, Limit
from controller.gateway.choice.queueing import (
    Claims,
    LineFullError,
    Seat,
    Wait,
    WaitingQueue,
    WaitOverError,
)
from controller.gateway.choice.reservations import Amount, Reservations
from controller.gateway.choice.selection import Candidate, Decision, Excluded, Outcome, Why
from controller.gateway.nodes.endpoints import EndpointKey
from tests.support.gateway_host import until
from tests.support.rooms import make_endpoint

DEMAND = Demand(1, 1, exact=True)


class Place:
    """One node with so many places, each taken by one request; `sizes` it cannot hold wait."""

    def __init__(self, free: int = 0) -> None:
        self.free = free
        self.endpoint = make_endpoint("n", 1, 1)
        self.reservations = Reservations(1.0)

    def attempt(self, size: int = 1) -> Callable[[Claims], Seat]:
        def ask(claimed: Claims) -> Seat:
            taken = self.reservations.total
            if self.endpoint.key in claimed or taken + size > self.free:
                fit = Fit(fits_now=False, limited_by=Limit.MEMORY, known=True)
                waits = (Candidate(self.endpoint, fit, 0, Excluded.NO_ROOM),)
                return Seat(Decision(Outcome.WAIT, Why.NO_ROOM, DEMAND, waits))
            place = self.reservations.reserve(self.endpoint.key, Amount(1), 0.0)
            sent = Decision(Outcome.SEND, Why.FITS, DEMAND, winner=self.endpoint)
            return Seat(sent, place)

        return ask


async def never() -> None:
    raise AssertionError("no tick is due")


def terms(**changes: Any) -> Wait:
    given: dict[str, Any] = {
        "models": ("m",),
        "priority": 0,
        "tenant": "",
        "tokens": 10,
        "seconds": 60.0,
        "tick": never,
        "first_tick_seconds": math.inf,
        "tick_seconds": 1.0,
    }
    return Wait(**{**given, **changes})


def line(most: int = 9) -> WaitingQueue:
    return WaitingQueue(most, asyncio.get_running_loop().time)


async def test_room_that_comes_goes_to_the_first_in_line() -> None:
    queue, place = line(), Place()
    low = asyncio.create_task(queue.wait(terms(), place.attempt()))
    high = asyncio.create_task(queue.wait(terms(priority=1), place.attempt()))
    await until(lambda: len(queue) == 2)
    place.free = 1
    queue.poke()
    seat = await high
    assert not low.done()
    assert place.reservations.total == 1
    seat.release()
    queue.poke()
    (await low).release()
    assert place.reservations.total == 0


async def test_a_small_request_does_not_take_the_room_a_large_one_waits_for() -> None:
    queue, place = line(), Place(free=1)
    large = asyncio.create_task(queue.wait(terms(), place.attempt(size=3)))
    await until(lambda: len(queue) == 1)
    assert queue.claims(["m"], priority=0) == {EndpointKey("n", "m-n")}
    assert queue.claims(["m"], priority=1) == frozenset()
    assert queue.claims(["other"], priority=0) == frozenset()
    small = asyncio.create_task(queue.wait(terms(), place.attempt()))
    await until(lambda: len(queue) == 2)
    assert not small.done()
    place.free = 4
    queue.poke()
    await asyncio.gather(large, small)


async def test_who_leaves_holds_nothing_and_lets_those_behind_go() -> None:
    queue, place = line(), Place(free=1)
    large = asyncio.create_task(queue.wait(terms(), place.attempt(size=3)))
    await until(lambda: len(queue) == 1)
    small = asyncio.create_task(queue.wait(terms(), place.attempt()))
    await until(lambda: len(queue) == 2)
    large.cancel()
    await small
    assert len(queue) == 0


async def test_a_seat_given_at_the_moment_of_leaving_is_given_back() -> None:
    queue, place = line(), Place()
    task = asyncio.create_task(queue.wait(terms(), place.attempt()))
    await until(lambda: len(queue) == 1)
    place.free = 1
    queue.poke()
    # The look runs first and seats it; the cancel comes before the task can take the seat.
    asyncio.get_running_loop().call_soon(task.cancel)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert place.reservations.total == 0


async def test_the_time_ends_with_the_last_decision() -> None:
    queue, place = line(), Place()
    with pytest.raises(WaitOverError) as caught:
        await queue.wait(terms(seconds=0.01), place.attempt())
    assert caught.value.decision is not None
    assert len(queue) == 0


async def test_the_line_is_bounded() -> None:
    queue, place = line(most=1), Place()
    first = asyncio.create_task(queue.wait(terms(), place.attempt()))
    await until(lambda: len(queue) == 1)
    with pytest.raises(LineFullError):
        await queue.wait(terms(), place.attempt())
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)


async def test_who_waits_long_is_ticked_and_a_failing_tick_ends_the_wait() -> None:
    queue, place, ticks = line(), Place(), asyncio.Queue[int]()

    async def tick() -> None:
        ticks.put_nowait(1)
        if ticks.qsize() == 3:
            raise ConnectionResetError

    wait = terms(tick=tick, first_tick_seconds=0.001, tick_seconds=0.001)
    with pytest.raises(ConnectionResetError):
        await queue.wait(wait, place.attempt())
    assert len(queue) == 0
