"""Agents' noes about memory: other nodes first, then one answer for the fleet (B43)."""

from typing import Any

import openai
import pytest

from manifests.errors import Code, Refusal, Retryable
from manifests.units import GIB
from manifests.wire.error_body import openai_error, openai_headers
from tests.support.gateway_host import Host, gateway_host
from tests.support.scripted_agent import Behaviour, Call, ScriptedAgent, load

HI: Any = [{"role": "user", "content": "hi"}]


def node(name: str, *, gib: int, **figures: Any) -> ScriptedAgent:
    agent = ScriptedAgent(name, load(f"e-{name}", tokensFitEver=1000 * gib, **figures))
    agent.ceilings = {"abortBytes": gib * GIB, "hardBytes": gib * GIB, "staticBytes": gib * GIB}
    return agent


def refuse(
    retryable: Retryable, *, need_gib: int = 100, limit_gib: int = 1, **fields: Any
) -> Behaviour:
    refusal = Refusal(
        Code.PREFILL_MEMORY_EXCEEDED,
        f"The request needs {need_gib}.0 GiB of memory.",
        retryable,
        hint="Shorten it.",
        estimated_bytes=need_gib * GIB,
        limit_bytes=limit_gib * GIB,
        **fields,
    )

    async def answer(call: Call) -> None:
        await call.answer(refusal.http_status, openai_error(refusal), openai_headers(refusal))

    return answer


async def ask(host: Host, *, stream: bool = False) -> str:
    async with openai.AsyncOpenAI(base_url=host.url, api_key="k", max_retries=0) as client:
        answer = await client.chat.completions.create(model="m", messages=HI, stream=stream)
        if isinstance(answer, openai.AsyncStream):
            chunks = [chunk async for chunk in answer]
            return "".join(
                choice.delta.content or "" for chunk in chunks for choice in chunk.choices
            )
        return answer.choices[0].message.content or ""


@pytest.mark.parametrize("stream", [False, True])
async def test_never_on_a_small_node_is_served_by_a_large_one(stream: bool) -> None:
    # The small node is fastest, so it is asked first; its twins are too small for the need.
    small = [node(f"s{i}", gib=8, decodeTokensPerSecond=9000.0) for i in range(4)]
    large = node("large", gib=128)
    for agent in small:
        agent.default = refuse(Retryable.NO)
    async with gateway_host(*small, large) as host:
        assert await ask(host, stream=stream) == "abcde"
        assert sum(len(agent.calls) for agent in small) == 1
        assert len(large.calls) == 1


async def test_noes_about_memory_do_not_use_up_the_attempts_that_faults_get() -> None:
    sizes = (8, 16, 24, 32, 48)
    small = [
        node(f"n{gib}", gib=gib, decodeTokensPerSecond=10.0 ** (5 - index))
        for index, gib in enumerate(sizes)
    ]
    for agent in small:
        agent.default = refuse(Retryable.NO, need_gib=7)
    large = node("large", gib=64, decodeTokensPerSecond=0.01)
    async with gateway_host(*small, large, max_attempts=1) as host:
        assert await ask(host) == "abcde"


@pytest.mark.parametrize("stream", [False, True])
async def test_when_every_node_says_never_the_nearest_is_named_with_its_ceiling(
    stream: bool,
) -> None:
    small, large = node("small", gib=8), node("large", gib=64)
    small.default = refuse(Retryable.NO, need_gib=70, limit_gib=4, binding="static")
    large.default = refuse(
        Retryable.NO, need_gib=70, limit_gib=60, binding="metal", fitting_tokens=321
    )
    async with gateway_host(small, large) as host:
        with pytest.raises(openai.APIStatusError) as caught:
            await ask(host, stream=stream)
    error = caught.value
    assert (error.status_code, error.code) == (413, "prefill_memory_exceeded")
    assert isinstance(error.body, dict)
    assert error.body["node"] == "large"
    assert (error.body["binding"], error.body["fitting_tokens"]) == ("metal", 321)
    assert error.body["limit_bytes"] == 60 * GIB
    assert "No node can take this request. The nearest is large:" in error.message
    assert "Shorten it." in error.message
    assert "retry-after" not in error.response.headers


async def test_later_everywhere_is_503_with_the_shortest_wait() -> None:
    agents = [node(f"n{i}", gib=8) for i in range(3)]
    for wait, agent in zip((9, 4, 7), agents, strict=True):
        agent.default = refuse(Retryable.LATER, retry_after_seconds=wait)
    async with gateway_host(*agents) as host:
        with pytest.raises(openai.InternalServerError) as caught:
            await ask(host)
        assert [len(agent.calls) for agent in agents] == [1, 1, 1]
    assert caught.value.status_code == 503
    assert caught.value.code == "prefill_memory_exceeded"
    assert caught.value.response.headers["retry-after"] == "4"


async def test_later_here_is_served_elsewhere_at_once() -> None:
    busy, free = node("busy", gib=8, decodeTokensPerSecond=9000.0), node("free", gib=8)
    busy.default = refuse(Retryable.LATER, retry_after_seconds=9)
    async with gateway_host(busy, free) as host:
        assert await ask(host) == "abcde"


async def test_noes_about_memory_never_count_against_a_node() -> None:
    agent = node("only", gib=8)
    agent.script = [refuse(Retryable.NO) for _ in range(12)]
    async with gateway_host(agent) as host:
        for _ in range(12):
            with pytest.raises(openai.APIStatusError):
                await ask(host)
        assert await ask(host) == "abcde"


async def test_a_prompt_that_is_too_long_for_the_context_is_400_and_asked_once() -> None:
    too_long = Refusal(Code.CONTEXT_LENGTH_EXCEEDED, "Too long.", Retryable.NO, param="messages")
    agents = [node(f"n{i}", gib=8) for i in range(3)]

    async def answer(call: Call) -> None:
        await call.answer(400, openai_error(too_long))

    for agent in agents:
        agent.default = answer
    async with gateway_host(*agents) as host:
        with pytest.raises(openai.BadRequestError) as caught:
            await ask(host)
        assert sum(len(agent.calls) for agent in agents) == 1
    assert caught.value.code == "context_length_exceeded"
