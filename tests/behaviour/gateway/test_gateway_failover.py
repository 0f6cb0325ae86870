"""Broken upstreams: retried before data, never a normal end after it (B55, B57, B60, B61)."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import openai
import pytest

from tests.support.gateway_host import Host, gateway_host, until
from tests.support.scripted_agent import DONE, Call, ScriptedAgent, error, event, load

HI: Any = [{"role": "user", "content": "hi"}]
Behaviour = Callable[[Call], Awaitable[None]]


async def five_then(call: Call, last: Callable[[], Awaitable[None]]) -> None:
    await call.head()
    for text in "abcde":
        await call.chunk(event(text))
    await call.agent.resume.wait()
    await last()


async def cut_after_five(call: Call) -> None:
    async def last() -> None:
        call.cut()

    await five_then(call, last)


async def end_without_done(call: Call) -> None:
    await five_then(call, call.end)


async def half_line(call: Call) -> None:
    async def last() -> None:
        await call.chunk(b'data: {"id": "c", "cho')
        await call.end()

    await five_then(call, last)


async def invalid_json_line(call: Call) -> None:
    async def last() -> None:
        await call.chunk(b"data: {broken}\n\n")
        await call.chunk(event("z") + DONE)
        await call.end()

    await five_then(call, last)


async def stall(call: Call) -> None:
    await five_then(call, call.wait_left)


async def bad_chunk(call: Call) -> None:
    async def last() -> None:
        await call.send(b"ZZZ\r\nnonsense\r\n")
        await call.wait_left()

    await five_then(call, last)


async def error_event(call: Call) -> None:
    async def last() -> None:
        body = {"error": {"message": "gone", "type": "server_error", "code": "engine_died"}}
        await call.chunk(b"data: " + json.dumps(body).encode() + b"\n\n")
        await call.end()

    await five_then(call, last)


async def cut_before_head(call: Call) -> None:
    call.cut()


async def cut_after_comment(call: Call) -> None:
    await call.head()
    await call.chunk(b": keep-alive\n\n")
    call.cut()


async def refuse_after_comment(call: Call) -> None:
    await call.head()
    body = {"error": {"message": "full", "code": "queue_full", "retryable": "elsewhere"}}
    await call.chunk(b": keep-alive\n\n" + b"data: " + json.dumps(body).encode() + b"\n\n")
    await call.end()


async def half_answer(call: Call) -> None:
    await call.send(
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{"
    )
    call.cut()


async def plain_500(call: Call) -> None:
    await call.answer(500, b"Internal Server Error")


async def hang(call: Call) -> None:
    await call.wait_left()


async def raw_stream(host: Host) -> bytes:
    """Return every byte of a streamed answer until the server closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", host.port)
    body = json.dumps({"model": "m", "messages": HI, "stream": True}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    try:
        async with asyncio.timeout(10):
            seen = await reader.readuntil(b'"e"}')
            for agent in host.agents.values():
                agent.resume.set()
            return seen + await reader.read()
    finally:
        writer.close()


@pytest.mark.parametrize(
    "broken",
    [
        cut_after_five,
        end_without_done,
        half_line,
        invalid_json_line,
        stall,
        bad_chunk,
        error_event,
    ],
)
async def test_a_stream_that_breaks_after_data_ends_with_an_error_and_no_done(
    broken: Behaviour,
) -> None:
    agent = ScriptedAgent("mini", load("m-1"))
    agent.default = broken
    async with gateway_host(agent) as host:
        received = await raw_stream(host)
        lines = [line for line in received.split(b"\n") if line.startswith(b"data: ")]
        assert [json.loads(line[6:])["choices"][0]["delta"]["content"] for line in lines[:5]] == [
            *"abcde"
        ]
        assert len(lines) == 6
        assert json.loads(lines[5][6:])["error"]["code"] in {"upstream_lost", "engine_died"}
        assert b"[DONE]" not in received
        assert not received.endswith(b"0\r\n\r\n")
        await host.until_idle()
        assert host.metric("mlxfleet_gateway_requests_total", model="m", outcome="broken") == 1
        assert len(agent.calls) == 1
        async with openai.AsyncOpenAI(base_url=host.url, api_key="k", max_retries=0) as client:
            with pytest.raises(openai.APIError):
                stream = await client.chat.completions.create(model="m", messages=HI, stream=True)
                [chunk async for chunk in stream]


ANY_KIND: list[Behaviour] = [
    cut_before_head,
    half_answer,
    plain_500,
    error("engine_not_ready", retryable="elsewhere"),
    error("prefill_memory_exceeded", retryable="elsewhere", status=413),
    error("model_not_found", retryable="no", status=404),
    error("engine_died", retryable="later"),
]
STREAMS_ONLY: list[Behaviour] = [cut_after_comment, refuse_after_comment]


@pytest.mark.parametrize(
    ("broken", "stream"),
    [(item, False) for item in ANY_KIND] + [(item, True) for item in ANY_KIND + STREAMS_ONLY],
)
async def test_a_failure_before_data_is_retried_elsewhere_unseen(
    broken: Behaviour, stream: bool
) -> None:
    agents = [ScriptedAgent(name, load(f"m-{name}")) for name in "ab"]
    failed: list[str] = []

    async def fail_once(call: Call) -> None:
        if failed:
            await ok(call)
            return
        failed.append(call.agent.node)
        await broken(call)

    ok = agents[0].default
    for agent in agents:
        agent.default = fail_once
    async with (
        gateway_host(*agents) as host,
        openai.AsyncOpenAI(base_url=host.url, api_key="k", max_retries=0) as client,
    ):
        if stream:
            chunks = await client.chat.completions.create(model="m", messages=HI, stream=True)
            pieces = [item.choices[0].delta.content or "" async for item in chunks if item.choices]
            assert "".join(pieces) == "abcde"
        else:
            answer = await client.chat.completions.create(model="m", messages=HI)
            assert answer.choices[0].message.content == "abcde"
        served = [call.agent.node for agent in agents for call in agent.calls]
        assert sorted(served) == ["a", "b"]
        assert len(failed) == 1


async def test_a_prompt_that_kills_engines_does_not_tour_the_fleet() -> None:
    agents = [ScriptedAgent(name, load(f"m-{name}")) for name in "abcd"]
    for agent in agents:
        agent.default = error("engine_died", retryable="later")
    async with (
        gateway_host(*agents) as host,
        openai.AsyncOpenAI(base_url=host.url, api_key="k", max_retries=0) as client,
    ):
        with pytest.raises(openai.InternalServerError) as caught:
            await client.chat.completions.create(model="m", messages=HI)
        assert caught.value.code == "engine_died"
        assert sum(len(agent.calls) for agent in agents) == 2


async def test_client_mistakes_never_open_the_breaker_but_faults_do() -> None:
    agents = [ScriptedAgent(name, load(f"m-{name}")) for name in "ab"]
    async with (
        gateway_host(*agents) as host,
        openai.AsyncOpenAI(base_url=host.url, api_key="k", max_retries=0) as client,
    ):
        for agent in agents:
            agent.default = error("context_length_exceeded", retryable="no", status=400)
        for _ in range(20):
            with pytest.raises(openai.BadRequestError):
                await client.chat.completions.create(model="m", messages=HI)
        assert all(len(agent.calls) >= 5 for agent in agents)
        healthy, sick = agents
        healthy.default, sick.default = ScriptedAgent("x").default, plain_500
        for _ in range(20):
            await client.chat.completions.create(model="m", messages=HI)
        faults = host.metric("mlxfleet_gateway_upstream_attempts_total", node="b", outcome="fault")
        # Without a breaker about ten; a slow machine allows a trial or two after the third.
        assert 3 <= faults <= 6


async def test_the_breaker_never_takes_the_last_endpoint_away() -> None:
    agent = ScriptedAgent("mini", load("m-1"))
    ok = agent.default
    agent.default = plain_500
    async with (
        gateway_host(agent) as host,
        openai.AsyncOpenAI(base_url=host.url, api_key="k", max_retries=0) as client,
    ):
        for _ in range(5):
            with pytest.raises(openai.APIStatusError) as caught:
                await client.chat.completions.create(model="m", messages=HI)
            assert caught.value.code == "upstream_lost"
        agent.default = ok
        assert await client.chat.completions.create(model="m", messages=HI)


async def test_a_kept_connection_that_the_agent_closed_is_retried_on_the_same_node() -> None:
    agent = ScriptedAgent("mini", load("m-1"))
    ok = agent.default

    async def answer_then_close_on_the_next(call: Call) -> None:
        if len(agent.calls) % 2:
            await ok(call)
            return
        call.cut()

    agent.default = answer_then_close_on_the_next
    async with (
        gateway_host(agent) as host,
        openai.AsyncOpenAI(base_url=host.url, api_key="k", max_retries=0) as client,
    ):
        for _ in range(4):
            await client.chat.completions.create(model="m", messages=HI)
        assert len(agent.calls) == 7


@pytest.mark.parametrize("stream", [False, True])
async def test_a_node_that_goes_silent_loses_the_requests_it_has_not_begun(stream: bool) -> None:
    agents = [ScriptedAgent(name, load(f"m-{name}")) for name in "ab"]
    first: list[ScriptedAgent] = []
    ok = agents[0].default

    async def freeze_first(call: Call) -> None:
        if first:
            await ok(call)
            return
        first.append(call.agent)
        call.agent.muted = True
        await hang(call)

    for agent in agents:
        agent.default = freeze_first
    async with (
        gateway_host(*agents, stall_seconds=30.0, silence_seconds=1.5) as host,
        openai.AsyncOpenAI(base_url=host.url, api_key="k", max_retries=0, timeout=10) as client,
    ):
        answer: Any = await client.chat.completions.create(model="m", messages=HI, stream=stream)
        if stream:
            assert [chunk async for chunk in answer]
        else:
            assert answer.choices[0].message.content == "abcde"
        assert first[0].calls[0].left.is_set()
        await host.until_idle()


async def test_the_second_node_is_told_what_the_first_used_up_of_the_time() -> None:
    agents = [ScriptedAgent(name, load(f"m-{name}")) for name in "ab"]
    told: list[float] = []
    ok = agents[0].default

    async def fail_late_once(call: Call) -> None:
        told.append(float(call.headers["x-mlxfleet-elapsed-seconds"]))
        if len(told) > 1:
            await ok(call)
            return
        with suppress(TimeoutError):  # nobody lets it go on: it takes so long
            await asyncio.wait_for(call.agent.resume.wait(), 0.3)
        await plain_500(call)

    for agent in agents:
        agent.default = fail_late_once
    async with (
        gateway_host(*agents) as host,
        openai.AsyncOpenAI(base_url=host.url, api_key="k", max_retries=0) as client,
    ):
        forged = {"x-mlxfleet-elapsed-seconds": "9999"}
        body = {"deadline_seconds": 60}
        await client.chat.completions.create(
            model="m", messages=HI, extra_body=body, extra_headers=forged
        )
    first, second = told
    assert first < 9999
    assert second >= first + 0.2


async def test_a_dead_node_leaves_and_comes_back() -> None:
    agents = [ScriptedAgent(name, load(f"m-{name}")) for name in "ab"]
    async with (
        gateway_host(*agents) as host,
        openai.AsyncOpenAI(base_url=host.url, api_key="k", max_retries=0) as client,
    ):
        await agents[0].stop()
        for _ in range(10):
            await client.chat.completions.create(model="m", messages=HI)
        await host.until_open(1)
        await agents[0].start()
        await host.until_open(2)


async def test_routing_goes_on_while_the_control_plane_is_down() -> None:
    agent = ScriptedAgent("mini", load("m-1"))
    async with (
        gateway_host(agent) as host,
        openai.AsyncOpenAI(base_url=host.url, api_key="k", max_retries=0) as client,
    ):
        host.source.fail()
        assert await client.chat.completions.create(model="m", messages=HI)
        agent.change(accepting=False)
        await host.until_open(0)
        agent.change(accepting=True)
        await host.until_open(1)
        assert await client.chat.completions.create(model="m", messages=HI)
        await until(lambda: host.gateway.ready)
