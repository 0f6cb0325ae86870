"""The gateway with API keys, over scripted agents: who gets in, and what they are charged."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import openai
import pytest

from tests.support.gateway_host import Host, gateway_host, until, until_asked
from tests.support.scripted_agent import DONE, Call, ScriptedAgent, event, load
from tests.support.scripted_source import api_key, model

BODY = {"model": "m", "messages": [{"role": "user", "content": "hello there"}], "max_tokens": 20}
PROMPT_TOKENS, OUTPUT_TOKENS = 7, 5


async def tell_usage_and_stall(call: Call) -> None:
    """Stream two events with what they cost, and wait until the gateway leaves."""
    await call.head()
    await call.chunk(b": usage 7 1\n" + event("a") + b": usage 7 2\n" + event("b"))
    await call.wait_left()


async def stream_usage_in_comments(call: Call) -> None:
    await call.head()
    for count, text in enumerate("abc", 1):
        await call.chunk(b": usage 7 %d\n" % count + event(text))
    await call.chunk(b": usage 7 5\n" + DONE)
    await call.end()


async def hold(call: Call) -> None:
    await call.agent.resume.wait()
    await answer(call)


async def answer(call: Call) -> None:
    usage = {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": OUTPUT_TOKENS, "total_tokens": 12}
    await call.answer(200, {"object": "chat.completion", "choices": [], "usage": usage})


@pytest.fixture
async def agent() -> ScriptedAgent:
    return ScriptedAgent("n", load("n-m", aliases=["alias"]), load("n-other", of="other"))


@pytest.fixture
async def host(agent: ScriptedAgent) -> AsyncIterator[Host]:
    both = (model("m", aliases=("alias",)), model("other"))
    async with gateway_host(agent, models=both, usage_seconds=0.05) as running:
        yield running


async def declare(host: Host, name: str, secret: str, **spec: Any) -> None:
    host.source.put("apikeys", api_key(name, secret, **spec))
    async with httpx.AsyncClient(base_url=host.url, trust_env=False) as client:

        async def known() -> bool:
            answer = await client.get("/models", headers={"x-api-key": secret})
            return (
                answer.status_code == 200
                and (await client.get("/models", headers={"x-api-key": "no"})).status_code == 401
            )

        await until_asked(known)


Connect = Callable[[Host, str], openai.AsyncOpenAI]


@pytest.fixture
async def client() -> AsyncIterator[Connect]:
    made: list[openai.AsyncOpenAI] = []

    def connect(host: Host, secret: str) -> openai.AsyncOpenAI:
        http = httpx.AsyncClient(trust_env=False)
        made.append(
            openai.AsyncOpenAI(
                base_url=host.url, api_key=secret, max_retries=0, timeout=20, http_client=http
            )
        )
        return made[-1]

    yield connect
    for item in made:
        await item.close()


def usage(host: Host, name: str = "alice") -> dict[str, Any]:
    return dict(host.source.stored("apikeys", name)["status"].get("usage") or {})


def counts(host: Host) -> tuple[int, int, int]:
    used = usage(host)
    return used.get("requests", 0), used.get("promptTokens", 0), used.get("completionTokens", 0)


async def test_the_gateway_is_open_until_the_first_key_is_declared(
    host: Host, client: Connect
) -> None:
    assert (await client(host, "anything").models.list()).data
    await declare(host, "alice", "s1")
    with pytest.raises(openai.AuthenticationError) as refused:
        await client(host, "anything").models.list()
    assert refused.value.code == "invalid_api_key"
    assert refused.value.response.headers["www-authenticate"] == "Bearer"
    host.source.remove("apikeys", "alice")

    async def open_again() -> bool:
        async with httpx.AsyncClient(base_url=host.url, trust_env=False) as http:
            return (await http.get("/models")).status_code == 200

    await until_asked(open_again)


async def test_a_key_that_this_version_cannot_read_closes_the_gateway(
    host: Host, client: Connect
) -> None:
    odd = api_key("odd", "s1", hash="sha512:later")
    host.source.put("apikeys", odd)

    async def closed() -> bool:
        async with httpx.AsyncClient(base_url=host.url, trust_env=False) as http:
            return (await http.get("/models")).status_code == 401

    await until_asked(closed)


async def test_a_key_may_be_required_from_the_start(agent: ScriptedAgent, client: Connect) -> None:
    async with gateway_host(agent, models=(model("m"), model("other")), require_key=True) as host:
        with pytest.raises(openai.AuthenticationError):
            await client(host, "anything").models.list()


@pytest.mark.parametrize("path", ["chat/completions", "models", "models/m", "", "nonsense"])
async def test_every_path_asks_for_the_key_before_anything_else(host: Host, path: str) -> None:
    await declare(host, "alice", "s1")
    async with httpx.AsyncClient(base_url=host.url, trust_env=False) as http:
        for method in ("GET", "POST", "DELETE"):
            answer = await http.request(method, f"/{path}", content=b"{nonsense")
            assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")


async def test_a_key_sees_and_uses_its_models_only(
    host: Host, agent: ScriptedAgent, client: Connect
) -> None:
    await declare(host, "alice", "s1", models=["m", "ghost"])
    alice = client(host, "s1")
    assert [item.id for item in (await alice.models.list()).data] == ["alias", "m"]
    for name in ("other", "unknown"):
        with pytest.raises(openai.PermissionDeniedError) as refused:
            await alice.chat.completions.create(**{**BODY, "model": name})
        assert refused.value.code == "model_not_allowed"
    with pytest.raises(openai.NotFoundError):
        await alice.models.retrieve("other")
    with pytest.raises(openai.NotFoundError):
        await alice.chat.completions.create(**{**BODY, "model": "ghost"})
    await alice.chat.completions.create(**{**BODY, "model": "alias"})
    [call] = [item for item in agent.calls if item.path == "/v1/chat/completions"]
    sent = call.headers
    assert (sent["x-mlxfleet-model"], len(sent["x-mlxfleet-tenant"])) == ("m", 32)
    assert sent["x-mlxfleet-usage"] == "each"
    assert "authorization" not in sent


async def test_what_a_request_cost_is_counted_streamed_or_not_asked_for_or_not(
    host: Host, agent: ScriptedAgent, client: Connect
) -> None:
    await declare(host, "alice", "s1", limits={"tokensPerMinute": 1000})
    alice = client(host, "s1")
    await alice.chat.completions.create(**BODY)
    await until(lambda: counts(host) == (1, 7, 5))
    agent.script = [stream_usage_in_comments]
    async for _ in await alice.chat.completions.create(**BODY, stream=True):
        pass
    await until(lambda: counts(host) == (2, 14, 10))
    async for _ in await alice.chat.completions.create(
        **BODY, stream=True, stream_options={"include_usage": True}
    ):
        pass
    await until(lambda: counts(host) == (3, 21, 15))
    label = {"key": "alice", "kind": "completion"}
    assert host.metric("mlxfleet_gateway_key_tokens_total", **label) == 15
    raw = await alice.chat.completions.with_raw_response.create(**BODY)
    # Three settled requests of 12, and this one by its reservation.
    remaining = int(raw.headers["x-ratelimit-remaining-tokens"])
    assert 1000 - 3 * 12 - 20 - 20 <= remaining <= 1000 - 3 * 12 - 20


async def test_a_client_that_leaves_is_charged_what_it_got(
    host: Host, agent: ScriptedAgent, client: Connect
) -> None:
    await declare(host, "alice", "s1", limits={"concurrentRequests": 1})
    agent.script = [tell_usage_and_stall]
    stream = await client(host, "s1").chat.completions.create(**BODY, stream=True)
    async for chunk in stream:
        if chunk.choices[0].delta.content == "b":
            break
    await stream.close()
    await until(lambda: counts(host) == (1, 7, 2))
    # Its place is free again.
    await client(host, "s1").chat.completions.create(**BODY)


async def test_a_request_that_no_node_took_costs_no_tokens(
    host: Host, agent: ScriptedAgent, client: Connect
) -> None:
    await declare(host, "alice", "s1")
    agent.change(accepting=False, phase="Loading")
    await host.until_open(0)
    with pytest.raises(openai.InternalServerError):
        await client(host, "s1").chat.completions.create(**BODY)
    await until(lambda: counts(host) == (1, 0, 0))


async def test_requests_at_once_never_pass_the_limits(
    host: Host, agent: ScriptedAgent, client: Connect
) -> None:
    await declare(host, "alice", "s1", limits={"requestsPerMinute": 7, "concurrentRequests": 4})
    agent.default = hold
    alice = client(host, "s1")

    async def ask() -> openai.APIStatusError | None:
        try:
            await alice.chat.completions.create(**BODY)
        except openai.RateLimitError as refused:
            return refused
        return None

    async def refusals(count: int) -> list[openai.RateLimitError]:
        asked = [asyncio.create_task(ask()) for _ in range(count)]
        await until(lambda: sum(item.done() for item in asked) >= refused_of[count])
        agent.resume.set()
        return [item for item in await asyncio.gather(*asked) if item is not None]

    refused_of = {12: 8, 6: 3}
    crowd = await refusals(12)
    assert len(crowd) == 8
    assert all("at the same time" in item.message for item in crowd)
    served = [item for item in agent.calls if item.path == "/v1/chat/completions"]
    assert len(served) == 4
    fast = await refusals(6)
    assert len(fast) == 3
    told = fast[0].response.headers
    assert fast[0].code == "rate_limit_exceeded"
    assert told["x-ratelimit-limit-requests"] == "7"
    assert told["x-ratelimit-remaining-requests"] == "0"
    assert 1 <= int(told["retry-after"]) <= 61


async def test_a_spent_budget_is_refused_as_openai_refuses_it(host: Host, client: Connect) -> None:
    await declare(host, "alice", "s1", budget={"tokens": 40, "period": "month"})
    alice = client(host, "s1")
    await alice.chat.completions.create(**BODY)
    await until(lambda: usage(host).get("budgetUsed") == 12)
    with pytest.raises(openai.RateLimitError) as refused:
        await alice.chat.completions.create(**{**BODY, "max_tokens": 28})
    assert (refused.value.code, refused.value.type) == ("insufficient_quota",) * 2
    assert refused.value.response.headers["x-should-retry"] == "false"
    assert "retry-after" not in refused.value.response.headers
