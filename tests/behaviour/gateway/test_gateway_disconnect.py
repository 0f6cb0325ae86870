"""A client that leaves frees its place upstream at once, whatever was going on (B53, B90)."""

import asyncio
import json
import socket
import struct
from typing import Any

import pytest

from tests.support.gateway_host import Host, gateway_host, until
from tests.support.scripted_agent import DONE, USAGE, Call, ScriptedAgent, event, load

HI: Any = [{"role": "user", "content": "hi"}]


async def wait_before_head(call: Call) -> None:
    await call.wait_left()


async def wait_after_three(call: Call) -> None:
    await call.head()
    for text in "abc":
        await call.chunk(event(text))
    await call.wait_left()


async def wait_after_comment(call: Call) -> None:
    await call.head()
    await call.chunk(b": keep-alive\n\n")
    await call.wait_left()


async def send_request(host: Host, *, stream: bool) -> tuple[asyncio.StreamReader, Any]:
    reader, writer = await asyncio.open_connection("127.0.0.1", host.port)
    body = json.dumps({"model": "m", "messages": HI, "stream": stream}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    return reader, writer


def leave(writer: asyncio.StreamWriter, how: str) -> None:
    if how == "half":
        writer.write_eof()
        return
    if how == "rst":
        link = writer.get_extra_info("socket")
        link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.close()


@pytest.mark.parametrize("how", ["fin", "rst", "half"])
@pytest.mark.parametrize(
    ("behaviour", "stream", "awaited"),
    [
        (wait_before_head, False, b""),
        (wait_before_head, True, b""),
        (wait_after_comment, True, b"keep-alive"),
        (wait_after_three, True, b'"c"}'),
    ],
)
async def test_leaving_closes_the_upstream_connection(
    behaviour: Any, stream: bool, awaited: bytes, how: str
) -> None:
    agent = ScriptedAgent("mini", load("m-1"))
    agent.default = behaviour
    async with gateway_host(agent, stall_seconds=30.0, answer_seconds=30.0) as host:
        reader, writer = await send_request(host, stream=stream)
        async with asyncio.timeout(10):
            if awaited:
                await reader.readuntil(awaited)
            await agent.called.wait()
            leave(writer, how)
            await agent.calls[0].left.wait()
        await host.until_idle()
        writer.close()
        outcome = {"model": "m", "outcome": "cancelled"}
        assert host.metric("mlxfleet_gateway_requests_total", **outcome) == 1
        attempts = "mlxfleet_gateway_upstream_attempts_total"
        assert host.metric(attempts, node="mini", outcome="cancelled") == 1
        assert len(agent.calls) == 1


async def test_a_client_that_has_its_whole_answer_has_not_left_early() -> None:
    async def end_late(call: Call) -> None:
        await call.head()
        await call.chunk(event("a") + event("", usage=USAGE) + DONE)
        # The stream's last chunk does not come: the server is told of the client meanwhile.
        await call.wait_left()

    agent = ScriptedAgent("mini", load("m-1"))
    agent.default = end_late
    async with gateway_host(agent) as host:
        reader, writer = await send_request(host, stream=True)
        async with asyncio.timeout(10):
            await reader.readuntil(b"\r\n0\r\n\r\n")
            writer.close()
            await agent.calls[0].left.wait()
        await host.until_idle()
        ok = {"model": "m", "outcome": "ok"}
        assert host.metric("mlxfleet_gateway_requests_total", **ok) == 1
        attempts = "mlxfleet_gateway_upstream_attempts_total"
        assert host.metric(attempts, node="mini", outcome="ok") == 1


async def test_leaving_while_the_body_is_sent_counts_as_cancelled() -> None:
    agent = ScriptedAgent("mini", load("m-1"))
    async with gateway_host(agent) as host:
        _, writer = await asyncio.open_connection("127.0.0.1", host.port)
        writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 99\r\n\r\n{")
        await until(lambda: host.metric("mlxfleet_gateway_in_flight") == 1)
        writer.close()
        await host.until_idle()
        outcome = {"model": "other", "outcome": "cancelled"}
        assert host.metric("mlxfleet_gateway_requests_total", **outcome) == 1
        assert not agent.calls


async def test_many_that_leave_do_not_touch_the_health_or_the_neighbours() -> None:
    agent = ScriptedAgent("mini", load("m-1"))
    ok = agent.default
    gate = asyncio.Event()

    async def neighbour(call: Call) -> None:
        await call.head()
        for text in "abc":
            await call.chunk(event(text))
        await gate.wait()
        await call.chunk(event("d") + b"data: [DONE]\n\n")
        await call.end()

    agent.script = [neighbour]
    agent.default = wait_after_three
    async with gateway_host(agent, stall_seconds=30.0) as host:
        reader, neighbour_writer = await send_request(host, stream=True)
        await reader.readuntil(b'"c"}')
        for _ in range(20):
            other, writer = await send_request(host, stream=True)
            await other.readuntil(b'"c"}')
            leave(writer, "rst")
        await until(lambda: host.metric("mlxfleet_gateway_in_flight") == 1)
        gate.set()
        rest = await reader.readuntil(b"0\r\n\r\n")
        assert b"[DONE]" in rest
        neighbour_writer.close()
        agent.default = ok
        _, writer = await send_request(host, stream=True)
        await until(lambda: len(agent.calls) == 22)
        await host.until_idle()
        writer.close()
        assert host.metric("mlxfleet_gateway_requests_total", model="m", outcome="ok") == 2
