"""What clients say about their turn and their time reaches the engine, and comes back as 504."""

from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from node_agent.engine.messages import Event, Failed, Generate
from tests.support.scripted_pool import say, tokens_event

HI: Any = [{"role": "user", "content": "Hi."}]


class Listening:
    """A script that keeps what it was given and answers one token."""

    def __init__(self) -> None:
        self.commands: list[Generate] = []

    def __call__(self, command: Generate) -> AsyncIterator[Event]:
        self.commands.append(command)
        return say([[70]])(command)


def late_after(count: int) -> Any:
    async def script(command: Generate) -> AsyncIterator[Event]:
        for _ in range(count):
            yield tokens_event(command, [70])
        yield Failed(
            request_id=command.request_id,
            code="deadline_exceeded",
            message="the deadline of 5 seconds has passed",
            retryable="no",
        )

    return script


async def test_turn_and_time_reach_the_engine_of_every_row(start_agent: Any) -> None:
    heard = Listening()
    agent = await start_agent(heard)
    extra = {"priority": -7, "deadline_seconds": 30}
    await agent.openai.chat.completions.create(model="tiny", messages=HI, n=2, extra_body=extra)
    await agent.openai.chat.completions.create(model="tiny", messages=HI)
    tier: Any = "flex"
    await agent.openai.chat.completions.create(model="tiny", messages=HI, service_tier=tier)
    assert [command.priority for command in heard.commands] == [7, 7, 0, -1]
    first, second, plain, _ = (command.deadline_seconds for command in heard.commands)
    # The engine is given what is left of it.
    assert 20 < first <= 30
    assert first == second
    assert plain == 0


async def test_what_a_gateway_used_up_before_is_taken_off(start_agent: Any) -> None:
    heard = Listening()
    agent = await start_agent(heard)
    for elapsed in ("4000", "nonsense"):
        await agent.openai.chat.completions.create(
            model="tiny",
            messages=HI,
            extra_body={"deadline_seconds": 5000},
            extra_headers={"x-mlxfleet-elapsed-seconds": elapsed},
        )
    first, second = (command.deadline_seconds for command in heard.commands)
    assert first <= 1000 < second <= 5000
    with pytest.raises(openai.InternalServerError) as caught:
        await agent.openai.chat.completions.create(
            model="tiny",
            messages=HI,
            extra_body={"deadline_seconds": 5},
            extra_headers={"x-mlxfleet-elapsed-seconds": "5"},
        )
    assert caught.value.code == "deadline_exceeded"
    assert len(heard.commands) == 2


async def test_a_request_whose_time_is_over_before_it_runs_is_refused(
    start_agent: Any,
) -> None:
    heard, now = Listening(), 0.0

    def slow_clock() -> float:
        nonlocal now
        now += 10.0
        return now

    agent = await start_agent(heard, monotonic=slow_clock)
    with pytest.raises(openai.InternalServerError) as caught:
        await agent.openai.chat.completions.create(
            model="tiny", messages=HI, extra_body={"deadline_seconds": 5}
        )
    assert (caught.value.status_code, caught.value.code) == (504, "deadline_exceeded")
    assert caught.value.response.headers["x-should-retry"] == "false"
    assert heard.commands == []


async def test_an_engine_that_ran_out_of_time_before_the_first_token_is_a_504(
    start_agent: Any,
) -> None:
    agent = await start_agent(late_after(0))
    for stream in (False, True):
        with pytest.raises(openai.InternalServerError) as caught:
            await agent.openai.chat.completions.create(model="tiny", messages=HI, stream=stream)
        assert (caught.value.status_code, caught.value.code) == (504, "deadline_exceeded")


async def test_a_stream_that_ran_out_of_time_ends_with_an_error_event(start_agent: Any) -> None:
    agent = await start_agent(late_after(2))
    stream = await agent.openai.chat.completions.create(model="tiny", messages=HI, stream=True)
    with pytest.raises(openai.APIError, match="deadline of 5 seconds"):
        async for _ in stream:
            pass
