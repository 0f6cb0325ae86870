"""Which nodes the gateway believes: silence, garbage, moved addresses, engines that leave."""

import asyncio
from typing import Any

import openai

from tests.support import scripted_source
from tests.support.gateway_host import gateway_host, until
from tests.support.scripted_agent import ScriptedAgent, load
from tests.support.scripted_source import model, node


async def test_a_silent_node_is_not_routed_to_until_it_speaks_again() -> None:
    agents = [ScriptedAgent(name, load(f"m-{name}")) for name in "ab"]
    async with gateway_host(*agents, silence_seconds=0.5) as host:
        agents[0].muted = True
        await host.until_open(1)
        agents[0].muted = False
        await host.until_open(2)


async def test_an_address_that_answers_for_another_node_is_not_believed() -> None:
    agent = ScriptedAgent("a", load("m-a"))
    async with gateway_host(agent) as host:
        agent.node = "ghost"
        agent.change()
        await host.until_open(0)
        agent.node = "a"
        await host.until_open(1)


async def test_a_report_that_cannot_be_read_takes_the_node_out() -> None:
    agent = ScriptedAgent("a", load("m-a"))
    async with gateway_host(agent) as host:
        agent.change(running="many")
        await host.until_open(0)
        agent.change(running=1)
        await host.until_open(1)


async def test_a_node_that_moves_is_followed_to_its_new_address() -> None:
    old, new = (ScriptedAgent("a", load(name)) for name in ("m-old", "m-new"))
    async with gateway_host(old) as host:
        await new.start()
        host.source.put("nodes", node("a", new.address))
        await until(lambda: old.hung_up)
        await host.until_open(1)
        await new.stop()


async def test_an_engine_marked_for_deletion_gets_no_new_requests() -> None:
    agent = ScriptedAgent("a", load("m-1"), load("m-2"))
    async with gateway_host(agent) as host:
        leaving: dict[str, Any] = scripted_source.engine("m-1", of="m", on="a", phase="Ready")
        leaving["metadata"] |= {"deletionTimestamp": "2026-11-02T00:00:00Z", "finalizers": ["x/y"]}
        host.source.put("engines", leaving)
        await host.until_open(1)
        host.source.remove("engines", "m-1")
        agent.engines = [load("m-2")]
        agent.change()
        await host.until_open(1)


async def test_a_garbled_load_stream_does_not_leave_a_node_open_for_ever() -> None:
    agent = ScriptedAgent("a", load("m-a"))
    async with gateway_host(agent) as host:
        agent.garbled = True
        agent.change()
        await host.until_open(0)
        agent.garbled = False
        await host.until_open(1)


async def test_a_model_declared_later_is_served_once_a_node_reports_it() -> None:
    agent = ScriptedAgent("a", load("m-a"))
    async with gateway_host(agent) as host:
        host.source.put("models", model("late"))
        agent.engines = [load("m-a"), load("late-1", of="late")]
        agent.change()
        await host.until_open(1, of="late")


async def test_a_request_that_comes_before_the_report_of_a_ready_engine_waits_for_it() -> None:
    agent = ScriptedAgent("a", load("m-1"), load("m-2"))
    async with gateway_host(agent, catch_up_seconds=30.0) as host:
        agent.engines = [load("m-1", phase="Loading", accepting=False), load("m-2")]
        agent.change()
        await host.until_open(1)
        ready, leaving = (
            scripted_source.engine(name, of="m", on="a", phase="Ready") for name in ("m-1", "m-2")
        )
        leaving["metadata"] |= {"deletionTimestamp": "2026-11-02T00:00:00Z", "finalizers": ["x/y"]}
        host.source.put("engines", ready)
        host.source.put("engines", leaving)
        await host.until_open(0)
        hi: Any = [{"role": "user", "content": "hi"}]
        async with openai.AsyncOpenAI(base_url=host.url, api_key="none", max_retries=0) as client:
            asked = asyncio.create_task(client.chat.completions.create(model="m", messages=hi))
            await until(lambda: host.metric("mlxfleet_gateway_in_flight") == 1)
            agent.change(phase="Ready", accepting=True)
            assert (await asked).choices[0].message.content == "abcde"
