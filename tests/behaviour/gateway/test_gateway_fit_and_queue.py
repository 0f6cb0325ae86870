"""Exact prompts go where they fit, wait when nothing has room, and are told why not."""

import asyncio
import json
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from manifests.units import MIB
from tests.support.gateway_host import Host, gateway_host, until
from tests.support.rooms import room_figures
from tests.support.scripted_agent import Call, ScriptedAgent, load, serve_normally

ROUTE = "x-mlxfleet-route"


def agent(name: str, free_mib: int, ever_mib: int, **figures: Any) -> ScriptedAgent:
    return ScriptedAgent(name, load(f"e-{name}", **room_figures(free_mib, ever_mib), **figures))


def prompt(mib: int, **fields: Any) -> dict[str, Any]:
    """A prompt of token ids, which are counted exactly; 16 of them need a MiB here."""
    return {"model": "m", "prompt": [1] * (16 * mib), "max_tokens": 16, **fields}


@asynccontextmanager
async def client(host: Host) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=host.url, timeout=60, trust_env=False) as http:
        yield http


async def ask(http: httpx.AsyncClient, body: dict[str, Any]) -> httpx.Response:
    return await http.post("/completions", json=body)


def depth(host: Host) -> float:
    return host.metric("mlxfleet_gateway_queue_depth")


async def test_a_long_prompt_goes_to_the_node_that_holds_it_and_short_ones_to_the_small() -> None:
    small, large = agent("small", 100, 100), agent("large", 4000, 4000)
    async with gateway_host(small, large) as host, client(host) as http:
        answers = [await ask(http, prompt(mib)) for mib in (10, 500, 20, 1000)]
        assert [answer.status_code for answer in answers] == [200] * 4
        assert [answer.headers["x-mlxfleet-node"] for answer in answers] == [
            "small",
            "large",
            "small",
            "large",
        ]
        assert answers[1].headers[ROUTE].startswith("large/e-large fits")
        assert "small too small" in answers[1].headers[ROUTE]


async def test_what_no_node_can_ever_hold_is_413_and_touches_no_node() -> None:
    small, large = agent("small", 100, 100), agent("large", 3000, 4000)
    async with gateway_host(small, large) as host, client(host) as http:
        answer = await ask(http, prompt(5000))
        assert not small.calls
        assert not large.calls
        assert host.metric("mlxfleet_gateway_refusals_total", reason="too_large") == 1
    error = answer.json()["error"]
    assert answer.status_code == 413
    assert (error["code"], error["node"]) == ("prefill_memory_exceeded", "large")
    assert (error["binding"], error["limit_bytes"]) == ("static", 4000 * MIB)
    assert "The nearest is large" in error["message"]
    assert "a prompt of up to" in error["message"]


async def test_a_ceiling_that_was_just_raised_counts_before_the_next_report() -> None:
    only = agent("only", 100, 100)
    async with gateway_host(only) as host, client(host) as http:
        only.muted = True
        # What was on its way before is read by now.
        assert (await ask(http, prompt(10))).status_code == 200
        asked = asyncio.create_task(ask(http, prompt(1000)))
        never = {"stage": "select", "outcome": "never"}
        await until(lambda: host.metric("mlxfleet_gateway_stage_seconds_count", **never) == 1)
        only.muted = False
        only.change(**room_figures(4000, 4000))
        assert (await asked).status_code == 200
        assert host.metric("mlxfleet_gateway_refusals_total", reason="too_large") == 0


async def test_a_node_that_does_not_report_again_in_time_holds_no_refusal_up() -> None:
    only = agent("only", 100, 100)
    async with gateway_host(only, catch_up_seconds=0.05) as host, client(host) as http:
        only.muted = True
        assert (await ask(http, prompt(10))).status_code == 200
        assert (await ask(http, prompt(1000))).status_code == 413


async def test_a_final_no_comes_within_the_deadline() -> None:
    only = agent("only", 100, 100)
    async with gateway_host(only, catch_up_seconds=math.inf) as host, client(host) as http:
        only.muted = True
        assert (await ask(http, prompt(10))).status_code == 200
        async with asyncio.timeout(10):
            answer = await ask(http, prompt(1000, deadline_seconds=0.1))
        assert answer.status_code == 413


async def test_a_request_waits_for_room_and_is_served_when_a_report_shows_it() -> None:
    only = agent("only", 10, 4000)
    async with gateway_host(only) as host, client(host) as http:
        waiting = asyncio.create_task(ask(http, prompt(1000)))
        await until(lambda: depth(host) == 1)
        assert not only.calls
        only.change(**room_figures(2000, 4000))
        answer = await waiting
        assert answer.status_code == 200
        assert "waited" in answer.headers[ROUTE]
        assert depth(host) == 0
        served = {"stage": "queue", "outcome": "served"}
        assert host.metric("mlxfleet_gateway_stage_seconds_count", **served) == 1


async def test_our_own_requests_fill_a_node_before_its_report_says_so() -> None:
    only = agent("only", 1500, 1500)
    release = asyncio.Event()

    async def hold(call: Call) -> None:
        await release.wait()
        await serve_normally(call)

    only.default = hold
    # The scripted reports never count the first request, so it counts as unseen to its end.
    async with gateway_host(only, settle_seconds=60.0) as host, client(host) as http:
        first = asyncio.create_task(ask(http, prompt(1000)))
        await until(lambda: len(only.calls) == 1)
        second = asyncio.create_task(ask(http, prompt(1000)))
        await until(lambda: depth(host) == 1)
        assert len(only.calls) == 1
        release.set()
        assert [(await task).status_code for task in (first, second)] == [200, 200]
        assert len(only.calls) == 2


async def test_who_waits_too_long_gets_503_with_the_reason_and_when_to_come_back() -> None:
    only = agent("only", 10, 4000)
    async with gateway_host(only, queue_seconds=0.3) as host, client(host) as http:
        answer = await ask(http, prompt(1000))
        assert answer.status_code == 503
        assert answer.headers["retry-after"] == "10"
        error = answer.json()["error"]
        assert error["code"] == "queue_full"
        assert "Node only has 10.0 MiB free of the 1.00 GiB needed." in error["message"]
        assert "only no room" in answer.headers[ROUTE]
        own = await ask(http, prompt(1000, deadline_seconds=0.2))
        assert (own.status_code, own.json()["error"]["code"]) == (504, "deadline_exceeded")
        assert not only.calls
        assert host.metric("mlxfleet_gateway_refusals_total", reason="queue_expired") == 2


async def test_a_full_line_is_503_at_once() -> None:
    async with gateway_host(agent("only", 10, 4000), queue_size=1) as host, client(host) as http:
        waiting = asyncio.create_task(ask(http, prompt(1000)))
        await until(lambda: depth(host) == 1)
        answer = await ask(http, prompt(1000))
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "queue_full")
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await host.until_idle()


async def test_a_client_that_leaves_leaves_the_line_at_once() -> None:
    only = agent("only", 10, 4000)
    async with gateway_host(only) as host, client(host) as http:
        waiting = asyncio.create_task(ask(http, prompt(1000)))
        await until(lambda: depth(host) == 1)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await until(lambda: depth(host) == 0)
        await host.until_idle()
        only.change(**room_figures(4000, 4000))
        assert (await ask(http, prompt(1000))).status_code == 200
        assert len(only.calls) == 1


async def test_a_higher_priority_passes_those_who_wait() -> None:
    only = agent("only", 10, 4000)
    async with gateway_host(only) as host, client(host) as http:
        low = asyncio.create_task(ask(http, prompt(1000, priority=5)))
        await until(lambda: depth(host) == 1)
        high = asyncio.create_task(ask(http, prompt(1000, priority=-5)))
        await until(lambda: depth(host) == 2)
        # Room for one: the second stays unseen in the scripted reports while it runs.
        only.change(**room_figures(4000, 4000))
        await asyncio.gather(low, high)
        assert [call.json["priority"] for call in only.calls] == [-5, 5]


async def test_a_stream_that_waits_long_has_comments_then_its_answer() -> None:
    only = agent("only", 10, 4000)
    quick = {"queue_head_seconds": 0.05, "queue_comment_seconds": 0.05}
    async with gateway_host(only, **quick) as host, client(host) as http:
        body = prompt(1000, stream=True)
        async with http.stream("POST", "/completions", json=body) as answer:
            assert (answer.status_code, answer.headers[ROUTE]) == (200, "queued")
            lines = answer.aiter_lines()
            assert await anext(lines) == ": waiting"
            only.change(**room_figures(4000, 4000))
            rest = [line async for line in lines]
        assert "data: [DONE]" in rest


async def test_a_stream_that_waits_too_long_ends_with_an_error_event_and_no_done() -> None:
    quick = {"queue_head_seconds": 0.05, "queue_comment_seconds": 0.05, "queue_seconds": 0.4}
    async with gateway_host(agent("only", 10, 4000), **quick) as host, client(host) as http:
        text = ""
        try:
            async with http.stream("POST", "/completions", json=prompt(1000, stream=True)) as got:
                async for part in got.aiter_text():
                    text += part
        except httpx.RemoteProtocolError:
            pass
    assert ": waiting" in text
    assert "[DONE]" not in text
    events = [line for line in text.splitlines() if line.startswith("data:")]
    assert json.loads(events[-1].removeprefix("data:"))["error"]["code"] == "queue_full"


async def test_explain_tells_where_a_request_would_go_and_sends_nothing() -> None:
    small, large = agent("small", 100, 100), agent("large", 500, 4000)
    async with gateway_host(small, large) as host, client(host) as http:
        url = host.url.replace("/v1", "/fleet/v1/explain")
        sent = (await http.post(url, json=prompt(200))).json()
        assert (sent["outcome"], sent["node"], sent["exact"]) == ("send", "large", True)
        by_node = {item["node"]: item for item in sent["candidates"]}
        assert by_node["small"]["excluded"] == "never"
        assert by_node["small"]["needBytes"] > by_node["small"]["everBytes"] == 100 * MIB
        assert by_node["large"]["haveBytes"] == 500 * MIB
        waits = (await http.post(url, json=prompt(1000))).json()
        assert (waits["outcome"], waits["why"]) == ("wait", "no_room")
        never = (await http.post(url, json=prompt(9000))).json()
        assert never["outcome"] == "never"
        assert "The nearest is large" in never["message"]
        bad = await http.post(url, json={"model": "nope"})
        assert (bad.status_code, bad.json()["error"]["code"]) == (404, "model_not_found")
        assert not small.calls
        assert not large.calls
