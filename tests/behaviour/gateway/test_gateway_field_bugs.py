"""What went wrong at others' routers must not here: usage, pings, lists, ties, gauges.

The entries that have files of their own are not repeated: B53 in test_gateway_disconnect.py, B55
and B61 in test_gateway_failover.py.
"""

import asyncio
import json
import socket
import struct
from collections import Counter
from typing import Any

import httpx
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.gateway_host import Host, gateway_host, until
from tests.support.scripted_agent import (
    DONE,
    USAGE,
    Call,
    ScriptedAgent,
    error,
    event,
    load,
    serve_normally,
)

HI: Any = [{"role": "user", "content": "hi"}]
ATTEMPTS = "mlxfleet_gateway_upstream_attempts_total"
REQUESTS = "mlxfleet_gateway_requests_total"


def agents(names: str) -> list[ScriptedAgent]:
    return [ScriptedAgent(name, load(f"m-{name}")) for name in names]


def client_of(host: Host) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=host.url, api_key="k", max_retries=0, timeout=10)


def http_of(host: Host) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=host.url, timeout=30, trust_env=False)


def body_of(text: str = "hi", **fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text}], **fields}


async def stream_as_asked(call: Call) -> None:
    """Tell usage as agents do: in a chunk where asked for, in a comment for the gateway else."""
    await call.head()
    asked = (call.json.get("stream_options") or {}).get("include_usage")
    each = {"usage": None} if asked else {}
    await call.chunk(event("a", **each) + event("b", **each))
    told = event("", usage=USAGE, choices=[]) if asked else b": usage 7 5\n"
    await call.chunk(told + DONE)
    await call.end()


async def test_usage_reaches_who_asked_and_is_counted_for_everybody() -> None:
    """B15: two agents; the gateway adds no chunk, drops none and doubles none."""
    both = agents("ab")
    for agent in both:
        agent.default = stream_as_asked
    async with gateway_host(*both) as host, client_of(host) as client:
        plain: list[dict[str, Any]] = [{}, {"stream_options": {"include_usage": False}}]
        for options in plain * 2:
            stream = await client.chat.completions.create(
                model="m", messages=HI, stream=True, **options
            )
            chunks = [chunk async for chunk in stream]
            assert all(chunk.choices and chunk.usage is None for chunk in chunks)
        for _ in range(4):
            asked = await client.chat.completions.create(
                model="m", messages=HI, stream=True, stream_options={"include_usage": True}
            )
            chunks = [chunk async for chunk in asked]
            assert [chunk.usage is not None for chunk in chunks] == [False, False, True]
            assert chunks[-1].choices == []
        await host.until_idle()
        assert all(agent.calls for agent in both)
        assert host.metric("mlxfleet_gateway_prompt_tokens_total", model="m") == 8 * 7
        assert host.metric("mlxfleet_gateway_completion_tokens_total", model="m") == 8 * 5


async def test_a_nodes_pings_reach_the_client_before_its_first_token() -> None:
    """B17: as they come, not at the end; the official client takes no notice."""
    (agent,) = agents("a")
    go = asyncio.Event()

    async def prefill(call: Call) -> None:
        await call.head()
        await call.chunk(b": keep-alive\n\n")
        await go.wait()
        await call.chunk(event("abc") + DONE)
        await call.end()

    agent.default = prefill
    async with gateway_host(agent) as host, http_of(host) as http:
        async with http.stream("POST", "/chat/completions", json=body_of(stream=True)) as answer:
            lines = answer.aiter_lines()
            assert await anext(lines) == ": keep-alive"
            go.set()
            assert [line async for line in lines][-2:] == ["data: [DONE]", ""]
        async with client_of(host) as client:
            stream = await client.chat.completions.create(model="m", messages=HI, stream=True)
            assert [chunk.choices[0].delta.content async for chunk in stream] == ["abc"]


async def test_what_can_be_refused_is_refused_before_the_first_ping() -> None:
    """B17: a stream that is refused has its status, not 200 and an event."""
    (agent,) = agents("a")
    agent.default = error("context_length_exceeded", retryable="no", status=400)
    async with gateway_host(agent) as host, http_of(host) as http:
        for sent, status in (
            (body_of(stream=True), 400),
            (body_of(stream=True, model="nope"), 404),
            (body_of(stream="yes"), 400),
        ):
            answer = await http.post("/chat/completions", json=sent)
            assert (answer.status_code, list(answer.json())) == (status, ["error"])


@pytest.mark.parametrize("status", [400, 401, 404, 413, 422, 429])
async def test_no_answer_below_500_is_held_against_a_node(status: int) -> None:
    """B57: twenty of them and twenty clients that left; then the same node serves."""
    (agent,) = agents("a")

    async def plain(call: Call) -> None:
        await call.answer(status, b"no")

    async with gateway_host(agent) as host, http_of(host) as http:
        # What is not written as agents write is not believed word by word, and still no fault.
        ours = error("queue_full", retryable="no", status=status)
        for behaviour, seen in ((ours, status), (plain, 502)):
            agent.default = behaviour
            for _ in range(10):
                answer = await http.post("/chat/completions", json=body_of())
                assert answer.status_code == seen
        agent.default = serve_normally
        # With an open breaker the last endpoint would still serve; the counter tells.
        assert (await http.post("/chat/completions", json=body_of())).status_code == 200
        assert host.metric(ATTEMPTS, node="a", outcome="fault") == 0


async def test_clients_that_leave_are_not_held_against_a_node() -> None:
    """B57: twenty leave two nodes; both still share what comes after."""
    both = agents("ab")

    async def hang(call: Call) -> None:
        await call.wait_left()

    def seen() -> int:
        return sum(len(agent.calls) for agent in both)

    async with gateway_host(*both) as host, http_of(host) as http:
        for agent in both:
            agent.default = hang
        for number in range(20):
            asked = asyncio.create_task(http.post("/chat/completions", json=body_of()))
            await until(lambda number=number: seen() > number)
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)
        await host.until_idle()
        for agent in both:
            agent.default = serve_normally
            agent.calls.clear()
        for _ in range(6):
            assert (await http.post("/chat/completions", json=body_of())).status_code == 200
        assert all(agent.calls for agent in both)


async def test_the_list_of_models_stands_when_the_first_node_is_dead_and_is_empty_without_any() -> (
    None
):
    """B58."""
    fleet = agents("abc")
    async with gateway_host(*fleet) as host, http_of(host) as http:
        await fleet[0].stop()
        fleet[1].muted = True
        listed = await http.get("/models")
        assert (listed.status_code, [item["id"] for item in listed.json()["data"]]) == (200, ["m"])
        assert (await http.get("/models/m")).status_code == 200
        for agent in fleet[1:]:
            await agent.stop()
        await host.until_open(0)
        listed = await http.get("/models")
        assert (listed.status_code, listed.json()["data"]) == (200, [])


async def test_connections_that_clients_reset_leave_nothing_behind() -> None:
    """B60: a hundred short ones; no place and no upstream connection stays taken."""
    (agent,) = agents("a")
    async with gateway_host(agent) as host, http_of(host) as http:
        sent = json.dumps(body_of()).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(sent)}"
        for _ in range(100):
            _, writer = await asyncio.open_connection("127.0.0.1", host.port)
            link = writer.get_extra_info("socket")
            link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.write(head.encode() + b"\r\n\r\n" + sent)
            await writer.drain()
            writer.transport.abort()
        await host.until_idle()
        assert (await http.post("/chat/completions", json=body_of())).status_code == 200
        assert host.metric(ATTEMPTS, node="a", outcome="fault") == 0


async def test_four_equal_idle_nodes_share_a_hundred_short_prompts() -> None:
    """B62: all loads read 0, and still none gets more than twice the mean."""
    fleet = agents("abcd")
    async with gateway_host(*fleet) as host, http_of(host) as http:
        for number in range(100):
            answer = await http.post("/chat/completions", json=body_of(f"prompt {number}"))
            assert answer.status_code == 200
        shares = Counter({agent.node: len(agent.calls) for agent in fleet})
        assert sum(shares.values()) == 100
        assert max(shares.values()) <= 50, shares


async def test_a_burst_spreads_and_the_gauge_counts_what_is_really_in_flight() -> None:
    """B62: fifty at once with one beginning, a slow node among four; reports come all along."""
    fleet = agents("abcd")
    fleet[0].change(prefillTokensPerSecond=50.0, decodeTokensPerSecond=5.0)
    for agent in fleet[1:]:
        agent.change(prefillTokensPerSecond=500.0, decodeTokensPerSecond=50.0)
    go = asyncio.Event()

    async def hold(call: Call) -> None:
        await go.wait()
        await serve_normally(call)

    for agent in fleet:
        agent.default = hold
    async with gateway_host(*fleet, settle_seconds=60.0) as host, http_of(host) as http:
        start = "once upon a time " * 300
        tasks = [
            asyncio.create_task(http.post("/chat/completions", json=body_of(f"{start} {number}")))
            for number in range(50)
        ]
        in_flight = "mlxfleet_gateway_in_flight"
        await until(lambda: host.metric(in_flight) == 50)

        def placed() -> int:
            return sum(len(agent.calls) for agent in fleet)

        await until(lambda: placed() + host.metric("mlxfleet_gateway_queue_depth") == 50)
        slow, *others = [len(agent.calls) for agent in fleet]
        assert max(others) <= 2 * placed() / 4
        assert slow < min(others)
        go.set()
        assert {task.status_code for task in await asyncio.gather(*tasks)} == {200}
        await host.until_idle()
        assert host.metric(in_flight) == 0


async def test_hostile_names_neither_break_the_page_nor_reach_it() -> None:
    """B89: quotes, line ends, 10 kB, emoji; the reference parser reads what is left."""
    async with gateway_host(*agents("a")) as host, http_of(host) as http:
        await http.post("/chat/completions", json=body_of())
        await host.until_idle()
        before = host.scrape().count("\n")
        names = ['q"uote-zz', "line\nzz", "back\\zz", "zz" * 5000, "\N{ROCKET}zz", {"zz": 1}]
        for name in names * 5:
            answer = await http.post(
                "/chat/completions", json=body_of("secret-zz", model=name, user="zz-user")
            )
            assert answer.status_code in {400, 404}
            await http.get("/zz" + "y" * 50)
        await host.until_idle()
        page = host.scrape()
        assert list(text_string_to_metric_families(page))
        assert "zz" not in page
        assert page.count("\n") - before <= 50


async def test_every_request_has_one_outcome_and_the_gauges_come_back_to_zero() -> None:
    """B90: ended in every way that a client can see."""
    (agent,) = agents("a")

    async def cut(call: Call) -> None:
        await call.head()
        await call.chunk(event("a"))
        call.cut()

    async with gateway_host(agent, queue_seconds=0.2, max_faults=1) as host, http_of(host) as http:
        wrong = error("context_length_exceeded", retryable="no", status=400)
        agent.script = [serve_normally, wrong, cut]
        await http.post("/chat/completions", json=body_of())
        await http.post("/chat/completions", json=body_of())
        with pytest.raises(httpx.RemoteProtocolError):
            await http.post("/chat/completions", json=body_of(stream=True))
        await http.post("/chat/completions", content=b"{")
        await http.post("/chat/completions", json=body_of(model="nope"))
        agent.change(running=64, waiting=64, maxRunning=1, maxWaiting=1)
        assert (await http.post("/chat/completions", json=body_of())).status_code == 503
        await host.until_idle()
        assert host.metric("mlxfleet_gateway_queue_depth") == 0
        totals = [
            sample
            for family in text_string_to_metric_families(host.scrape())
            for sample in family.samples
            if sample.name == REQUESTS
        ]
        assert sum(sample.value for sample in totals) == 6
        assert {sample.labels["outcome"] for sample in totals} >= {"ok", "client_error"}


async def test_zeros_are_told_from_the_start_and_a_node_that_is_gone_is_not() -> None:
    """B91."""
    fleet = agents("ab")
    async with gateway_host(*fleet) as host, http_of(host) as http:
        page = host.scrape()
        for name in ("in_flight", "queue_depth"):
            assert f"mlxfleet_gateway_{name} 0.0" in page
        for _ in range(4):
            await http.post("/chat/completions", json=body_of())
        await host.until_idle()
        assert 'node="a"' in host.scrape()
        await fleet[0].stop()
        host.source.remove("nodes", "a")
        await until(lambda: 'node="a"' not in host.scrape())
        assert 'node="b"' in host.scrape()
