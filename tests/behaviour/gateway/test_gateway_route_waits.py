"""Who waits behind a Route waits for all of its Models, in the Route's order."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from tests.support.gateway_host import Host, gateway_host, until, until_asked
from tests.support.rooms import room_figures
from tests.support.scripted_agent import ScriptedAgent, load
from tests.support.scripted_source import model, route

FULL = room_figures(10, 4000)
FREE = room_figures(2000, 4000)
MODELS = ("a", "b", "c")


def agent_of(name: str) -> ScriptedAgent:
    return ScriptedAgent(f"n-{name}", load(f"e-{name}", of=name, **FULL))


@asynccontextmanager
async def routed(
    *agents: ScriptedAgent, **settings: Any
) -> AsyncIterator[tuple[Host, httpx.AsyncClient]]:
    """Run Models a, b and c, each full, behind one Route in this order."""
    nodes = agents or tuple(agent_of(name) for name in MODELS)
    async with gateway_host(*nodes, models=tuple(map(model, MODELS)), **settings) as host:
        backends = [{"model": "a", "weight": 10**6}, {"model": "b"}]
        host.source.put("routes", route("chat", backends=backends, fallbacks=["c"]))
        async with httpx.AsyncClient(base_url=host.url, timeout=60, trust_env=False) as http:

            async def known() -> bool:
                listed = (await http.get("/models")).json()["data"]
                return "chat" in [item["id"] for item in listed]

            await until_asked(known)
            yield host, http


def ask(http: httpx.AsyncClient, name: str, mib: int = 1000) -> asyncio.Task[httpx.Response]:
    body = {"model": name, "prompt": [1] * (16 * mib), "max_tokens": 16}
    return asyncio.create_task(http.post("/completions", json=body))


async def until_waiting(host: Host, count: int) -> None:
    await until(lambda: host.metric("mlxfleet_gateway_queue_depth") == count)


@pytest.mark.parametrize("freed", MODELS)
async def test_it_goes_where_room_comes_first(freed: str) -> None:
    async with routed() as (host, http):
        waiting = ask(http, "chat")
        await until_waiting(host, 1)
        host.agents[f"n-{freed}"].change(**FREE)
        answer = await waiting
        assert answer.headers["x-mlxfleet-model"] == freed
        assert "waited" in answer.headers["x-mlxfleet-route"]


@pytest.mark.parametrize(("freed", "first"), [("abc", "a"), ("bc", "b"), ("ca", "a")])
async def test_of_several_with_room_at_once_it_takes_the_routes_first(
    freed: str, first: str
) -> None:
    """One report tells of all of them."""
    node = ScriptedAgent("n", *(load(f"e-{name}", of=name, **FULL) for name in MODELS))
    async with routed(node) as (host, http):
        waiting = ask(http, "chat")
        await until_waiting(host, 1)
        node.engines = [
            {**item, **FREE} if item["model"] in freed else item for item in node.engines
        ]
        node.change()
        assert (await waiting).headers["x-mlxfleet-model"] == first


async def test_whoever_waits_longer_for_one_of_the_models_goes_before_it() -> None:
    """And who comes later for that one Model alone does not pass it."""
    async with routed() as (host, http):
        earlier = ask(http, "b")
        await until_waiting(host, 1)
        routed_ = ask(http, "chat")
        await until_waiting(host, 2)
        later = ask(http, "b")
        await until_waiting(host, 3)
        order: list[str] = []
        for name, task in (("earlier", earlier), ("routed", routed_), ("later", later)):
            task.add_done_callback(lambda _task, name=name: order.append(name))
        only = room_figures(1100, 4000)
        host.agents["n-b"].change(**only)
        await asyncio.gather(earlier, routed_, later)
        assert order == ["earlier", "routed", "later"]
        assert [task.result().headers["x-mlxfleet-model"] for task in (routed_, later)] == ["b"] * 2


async def test_the_answer_after_a_wait_in_vain_tells_of_every_model() -> None:
    async with routed(queue_seconds=0.3) as (_, http):
        answer = await ask(http, "chat")
        assert answer.status_code == 503
        message = answer.json()["error"]["message"]
        assert all(f"n-{name}" in message.lower() for name in MODELS), message
