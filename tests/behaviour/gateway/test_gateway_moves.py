"""When and how the gateway moves a stream, with nodes that do what the script says (B55, B61)."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import httpx
import pytest

from manifests.wire.continuation import (
    CONTINUE_PATH,
    Continuation,
    ended_line,
    identity_line,
    tokens_line,
    unpack,
)
from manifests.wire.elapsed import ELAPSED_HEADER
from tests.support.gateway_host import Host, gateway_host
from tests.support.scripted_agent import (
    DONE,
    USAGE,
    Call,
    ScriptedAgent,
    event,
    load,
    serve_normally,
)
from tests.support.stream_client import Heard, listen

Behaviour = Callable[[Call], Awaitable[None]]
NAME = identity_line("c", 1, "fp", 1)
END = {"index": 0, "delta": {}, "finish_reason": "stop"}


def error_line(code: str, retryable: str) -> bytes:
    body = {"error": {"message": "gone", "code": code, "retryable": retryable}}
    return b"data: " + json.dumps(body).encode() + b"\n\n"


async def say(call: Call, texts: str, first: int = 0) -> None:
    for place, text in enumerate(texts, first):
        told = (NAME if place == first else b"") + tokens_line(0, [place])
        await call.chunk(told + event(text))


async def finish(call: Call, *, usage: bool = True) -> None:
    await call.chunk(tokens_line(0, []) + ended_line(0) + event("", choices=[END]))
    if usage:
        await call.chunk(event("", usage=USAGE, choices=[]) + DONE)
        await call.end()


async def serve(call: Call) -> None:
    """Say abcde, or what is left of it."""
    said = 0
    if call.path == CONTINUE_PATH:
        said = len(head_of(call).rows[0].ids)
    await call.head()
    await call.chunk(b": keep-alive prefill 1/2\n\n")
    await say(call, "abcde"[said:], said)
    await finish(call)


def head_of(call: Call) -> Continuation:
    return unpack(call.body)[0]


async def say_three(call: Call) -> None:
    await call.head()
    await say(call, "abc")


def after_three(last: Callable[[Call], Awaitable[None]]) -> Behaviour:
    async def behave(call: Call) -> None:
        await say_three(call)
        await last(call)

    return behave


async def cut(call: Call) -> None:
    """Close in the middle of the body; what was said before arrives."""
    call.writer.close()


async def half_an_event(call: Call) -> None:
    await call.chunk(tokens_line(0, [3]) + event("d")[:30])
    await cut(call)


async def malformed(call: Call) -> None:
    await call.chunk(tokens_line(0, [3]) + b"data: {broken}\n\n")
    await call.wait_left()


async def end_early(call: Call) -> None:
    await call.end()


async def engine_died(call: Call) -> None:
    await call.chunk(error_line("engine_died", "elsewhere"))
    await call.end()


async def shut_down(call: Call) -> None:
    await call.chunk(error_line("shutting_down", "elsewhere"))
    await call.end()


async def stall(call: Call) -> None:
    await call.wait_left()


async def fall_silent(call: Call) -> None:
    call.agent.muted = True
    await call.wait_left()


def two_agents(*firsts: Behaviour) -> list[ScriptedAgent]:
    """Return agents of which the first ones asked behave so, in this order, and then serve."""
    agents = [ScriptedAgent(name, load(f"m-{name}")) for name in "abcd"]
    left = list(firsts)

    async def behave(call: Call) -> None:
        await (left.pop(0) if left else serve)(call)

    for agent in agents:
        agent.default = behave
    return agents


async def hear(host: Host, **fields: Any) -> Heard:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}
    async with aiohttp.ClientSession() as session, asyncio.timeout(20):
        return await listen(session, host.url.removesuffix("/v1"), body, Heard())


def calls_of(agents: list[ScriptedAgent]) -> list[Call]:
    return [call for agent in agents for call in agent.calls]


def continuations(agents: list[ScriptedAgent]) -> list[Call]:
    return [call for call in calls_of(agents) if call.path == CONTINUE_PATH]


@pytest.mark.parametrize(
    ("last", "settings"),
    [
        (cut, {}),
        (half_an_event, {}),
        (malformed, {}),
        (end_early, {}),
        (engine_died, {}),
        (shut_down, {}),
        (stall, {"stall_seconds": 1.0}),
        (fall_silent, {"stall_seconds": 30.0, "move_after_seconds": 1.0}),
    ],
)
async def test_a_stream_that_breaks_goes_on_at_another_node(
    last: Behaviour, settings: dict[str, Any]
) -> None:
    agents = two_agents(after_three(last))
    async with gateway_host(*agents, **settings) as host:
        heard = await hear(host, temperature=0)
        assert heard.told_once() == ({0: "abcde"}, {0: ""}, {0: 0}, {0: ["stop"]}, [(7, 5)])
        [asked] = continuations(agents)
        [first] = [call for call in calls_of(agents) if call is not asked]
        assert asked.agent is not first.agent
        head, body = unpack(asked.body)
        assert body == first.body
        assert (head.path, head.id) == ("/v1/chat/completions", "c")
        assert head.rows[0] is not None
        assert head.rows[0].ids == (0, 1, 2)
        assert any("prefill 1/2" in comment for comment in heard.comments)
        assert not any(comment.startswith((":@", ":+", ":.")) for comment in heard.comments)
        await host.until_idle()
        attempts = "mlxfleet_gateway_upstream_attempts_total"
        assert host.metric(attempts, node=first.agent.node, outcome="cut") == 1
        assert host.metric("mlxfleet_gateway_requests_total", model="m", outcome="ok") == 1


async def test_a_silent_stream_of_a_node_that_lives_is_left_alone() -> None:
    """B59: a node that is only slow keeps what it has."""

    async def slow(call: Call) -> None:
        await say_three(call)
        # Far beyond the limit, which counts only where the node is silent too.
        await asyncio.sleep(1.5)
        await say(call, "de", 3)
        await finish(call)

    agents = two_agents(slow)
    async with gateway_host(*agents, move_after_seconds=0.3) as host:
        heard = await hear(host)
        assert heard.texts == {0: "abcde"}
        assert len(calls_of(agents)) == 1


async def say_nothing(call: Call) -> None:
    call.agent.muted = True
    await call.wait_left()


async def begin_and_say_nothing(call: Call) -> None:
    call.agent.muted = True
    await call.head()
    await call.chunk(b": keep-alive prefill 1/2\n\n")
    await call.wait_left()


@pytest.mark.parametrize(
    ("first", "stream"),
    [(say_nothing, True), (begin_and_say_nothing, True), (say_nothing, False)],
)
async def test_a_request_whose_answer_has_not_begun_leaves_a_silent_node(
    first: Behaviour, stream: bool
) -> None:
    """B61: as soon as a stream in mid-answer does, where another node takes it."""
    agents = two_agents(first, serve_normally)
    # Much longer than the test has: only the silence of both can be the reason.
    patient = {"stall_seconds": 60.0, "silence_seconds": 60.0, "dead_seconds": 60.0}
    async with gateway_host(*agents, **patient, move_after_seconds=0.5) as host:
        if stream:
            assert (await hear(host)).texts == {0: "abcde"}
        else:
            body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
            async with httpx.AsyncClient(trust_env=False, timeout=20) as http:
                answer = await http.post(host.url + "/chat/completions", json=body)
            assert answer.json()["choices"][0]["message"]["content"] == "abcde"
        nodes = [call.agent.node for call in calls_of(agents)]
        assert len(set(nodes)) == 2
        assert not continuations(agents)


async def test_a_long_prefill_is_left_alone_while_its_node_reports() -> None:
    """B59: with no byte and no comment for longer than the limit."""

    async def feed_long(call: Call) -> None:
        await asyncio.sleep(3.0)
        await serve(call)

    agents = two_agents(feed_long)
    async with gateway_host(*agents, move_after_seconds=1.0, stall_seconds=30.0) as host:
        assert (await hear(host)).texts == {0: "abcde"}
        assert len(calls_of(agents)) == 1


async def test_where_there_is_nobody_else_a_request_waits_for_its_node() -> None:
    async def hang_for_a_while(call: Call) -> None:
        call.agent.muted = True
        await asyncio.sleep(2.0)
        call.agent.muted = False
        await serve(call)

    alone = two_agents(hang_for_a_while)[:1]
    patient = {"silence_seconds": 60.0, "dead_seconds": 60.0, "stall_seconds": 30.0}
    async with gateway_host(*alone, **patient, move_after_seconds=0.3) as host:
        assert (await hear(host)).texts == {0: "abcde"}
        assert len(calls_of(alone)) == 1


async def test_a_lost_end_mark_is_written_by_the_gateway() -> None:
    async def forget_done(call: Call) -> None:
        await call.head()
        await say(call, "abcde")
        await finish(call, usage=False)
        await call.chunk(event("", usage=USAGE, choices=[]))
        await cut(call)

    agents = two_agents(forget_done)
    async with gateway_host(*agents) as host:
        assert (await hear(host)).told_once()[0] == {0: "abcde"}
        assert len(calls_of(agents)) == 1


async def give_no_name(call: Call) -> None:
    await call.head()
    for text in "abc":
        await call.chunk(event(text))
    await cut(call)


async def over_time(call: Call) -> None:
    await say_three(call)
    await call.chunk(error_line("deadline_exceeded", "no"))
    await call.end()


@pytest.mark.parametrize(
    ("first", "settings", "code"),
    [
        (give_no_name, {}, "upstream_lost"),
        (over_time, {}, "deadline_exceeded"),
        (after_three(cut), {"max_moves": 0}, "upstream_lost"),
    ],
)
async def test_a_stream_that_cannot_move_ends_with_an_error_in_the_stream(
    first: Behaviour, settings: dict[str, Any], code: str
) -> None:
    agents = two_agents(first)
    async with gateway_host(*agents, **settings) as host:
        heard = await hear(host)
        assert heard.texts == {0: "abc"}
        assert [item["code"] for item in heard.errors] == [code]
        assert not heard.dones
        assert len(calls_of(agents)) == 1
        await host.until_idle()
        assert host.metric("mlxfleet_gateway_requests_total", model="m", outcome="broken") == 1


async def keep_cutting(call: Call) -> None:
    said = len(head_of(call).rows[0].ids) if call.path == CONTINUE_PATH else 0
    await call.head()
    await say(call, "abcdefgh"[said : said + 1], said)
    await cut(call)


async def keep_leaving(call: Call) -> None:
    said = len(head_of(call).rows[0].ids) if call.path == CONTINUE_PATH else 0
    await call.head()
    await say(call, "abcdefgh"[said : said + 1], said)
    await shut_down(call)


@pytest.mark.parametrize(("behaviour", "asked"), [(keep_cutting, 2), (keep_leaving, 4)])
async def test_a_stream_does_not_tour_the_fleet(behaviour: Behaviour, asked: int) -> None:
    """Two faults end it, for the prompt may be what kills; nodes that leave, three moves."""
    agents = two_agents(*[behaviour] * 8)
    async with gateway_host(*agents) as host:
        heard = await hear(host)
        assert heard.texts == {0: "abcdefgh"[:asked]}
        assert len(heard.errors) == 1
        assert len(calls_of(agents)) == asked


async def test_a_move_has_the_rest_of_the_clients_time_and_none_after_it() -> None:
    agents = two_agents(after_three(cut))
    async with gateway_host(*agents) as host:
        assert (await hear(host, deadline_seconds=30)).dones == 1
        [asked] = continuations(agents)
        [first] = [call for call in calls_of(agents) if call is not asked]
        used = [float(call.headers[ELAPSED_HEADER]) for call in (first, asked)]
        assert used[0] <= used[1] < 30
    agents = two_agents(after_three(stall))
    async with gateway_host(*agents, stall_seconds=1.0) as host:
        assert len((await hear(host, deadline_seconds=0.5)).errors) == 1
        assert not continuations(agents)


async def test_a_node_that_refuses_the_rest_is_not_the_last_one_asked() -> None:
    async def refuse(call: Call) -> None:
        body = {"error": {"message": "no", "code": "engine_not_ready", "retryable": "elsewhere"}}
        await call.answer(503, body)

    agents = two_agents(after_three(cut), refuse)
    async with gateway_host(*agents) as host:
        assert (await hear(host)).told_once()[0] == {0: "abcde"}
        assert len(continuations(agents)) == 2


async def test_a_client_that_leaves_a_moved_stream_closes_it_upstream() -> None:
    async def wait(call: Call) -> None:
        await call.head()
        await say(call, "d", 3)
        await call.wait_left()

    agents = two_agents(after_three(cut), wait)
    async with gateway_host(*agents, stall_seconds=30.0) as host:
        heard, moved = Heard(), asyncio.Event()
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}

        def note() -> None:
            if heard.texts.get(0) == "abcd":
                moved.set()

        async with aiohttp.ClientSession() as session, asyncio.timeout(20):
            url = host.url.removesuffix("/v1")
            reading = asyncio.create_task(listen(session, url, body, heard, note))
            await moved.wait()
            reading.cancel()
            [asked] = continuations(agents)
            await asked.left.wait()
        await host.until_idle()


async def test_clients_cannot_ask_to_be_told_tokens() -> None:
    agents = two_agents()
    async with gateway_host(*agents) as host, aiohttp.ClientSession() as session:
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
        headers = {"x-mlxfleet-tokens": "1"}
        url = host.url + "/chat/completions"
        async with session.post(url, json=body, headers=headers) as answer:
            assert answer.status == 200
        [call] = calls_of(agents)
        assert "x-mlxfleet-tokens" not in call.headers
