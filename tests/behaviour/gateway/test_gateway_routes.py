"""Routes at the gateway, over scripted agents: shares, rules, fallbacks, names."""

from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.support.gateway_host import Host, gateway_host, until, until_asked
from tests.support.scripted_agent import Call, ScriptedAgent, error, load
from tests.support.scripted_source import api_key, model, route

CHAT = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 5}


@pytest.fixture
async def agent() -> ScriptedAgent:
    engines = (load(f"n-{name}", of=name) for name in ("a", "b", "c"))
    made = ScriptedAgent("n", *engines)
    made.ceilings = {"abortBytes": 10**9, "hardBytes": 10**9}
    return made


@pytest.fixture
async def host(agent: ScriptedAgent) -> AsyncIterator[Host]:
    models = tuple(model(name) for name in ("a", "b", "c"))
    async with gateway_host(agent, models=models) as running:
        yield running


@pytest.fixture
async def http(host: Host) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=host.url, trust_env=False, timeout=20) as client:
        yield client


async def declare(host: Host, http: httpx.AsyncClient, name: str, **spec: Any) -> None:
    host.source.put("routes", route(name, **spec))

    async def known() -> bool:
        return name in await listed(http)

    await until_asked(known)


async def listed(http: httpx.AsyncClient, **headers: str) -> list[str]:
    answer = await http.get("/models", headers=headers)
    return [item["id"] for item in answer.json()["data"]]


async def ask(http: httpx.AsyncClient, name: str = "chat", **more: Any) -> httpx.Response:
    headers = more.pop("headers", {})
    return await http.post(
        "/chat/completions", json={**CHAT, "model": name, **more}, headers=headers
    )


async def served_by(http: httpx.AsyncClient, name: str = "chat", **more: Any) -> str:
    answer = await ask(http, name, **more)
    assert answer.status_code == 200, answer.text
    return answer.headers["x-mlxfleet-model"]


def close(agent: ScriptedAgent, *names: str) -> None:
    agent.engines = [{**item, "accepting": item["model"] not in names} for item in agent.engines]
    agent.change()


async def test_requests_are_shared_by_weight_and_agents_are_told_the_model(
    host: Host, http: httpx.AsyncClient, agent: ScriptedAgent
) -> None:
    backends = [
        {"model": "a", "weight": 80},
        {"model": "b", "weight": 20},
        {"model": "c", "weight": 0},
    ]
    await declare(host, http, "chat", backends=backends, aliases=["org/chat"])
    assert await listed(http) == ["a", "b", "c", "chat", "org/chat"]
    sides = Counter([await served_by(http) for _ in range(200)])
    # The gateway's seed is fixed: binomial(200, 0.2) is within these bounds but once in 10^6.
    assert set(sides) == {"a", "b"}
    assert 14 <= sides["b"] <= 68
    assert await served_by(http, "org/chat") in {"a", "b"}
    calls = [item for item in agent.calls if item.path == "/v1/chat/completions"]
    assert Counter(item.headers["x-mlxfleet-model"] for item in calls[:200]) == sides
    # The body is the client's, byte for byte.
    assert {item.json["model"] for item in calls} == {"chat", "org/chat"}
    assert host.metric("mlxfleet_gateway_prompt_tokens_total", model="b") == 7 * (
        sides["b"] + calls[-1].headers["x-mlxfleet-model"].count("b")
    )


async def test_a_client_cannot_choose_the_model_behind_a_route(
    host: Host, http: httpx.AsyncClient
) -> None:
    await declare(host, http, "chat", backends=[{"model": "a"}])
    assert await served_by(http, headers={"x-mlxfleet-model": "c"}) == "a"


async def test_a_header_chooses_other_backends(host: Host, http: httpx.AsyncClient) -> None:
    rules = [
        {"match": {"headers": {"x-team": "red"}}, "backends": [{"model": "b"}]},
        {"match": {"headerPatterns": {"x-team": "re.*"}}, "backends": [{"model": "c"}]},
    ]
    await declare(host, http, "chat", backends=[{"model": "a"}], rules=rules)
    for team, name in (("red", "b"), ("reed", "c"), ("blue", "a")):
        assert await served_by(http, headers={"X-Team": team}) == name


async def test_a_conversation_stays_on_one_side(host: Host, http: httpx.AsyncClient) -> None:
    backends = [{"model": "a"}, {"model": "b"}]
    await declare(host, http, "chat", backends=backends, sticky="prefix")
    sides = Counter()
    for number in range(24):
        first = {"role": "user", "content": f"question {number}"}
        later = [first, {"role": "assistant", "content": "x"}, {"role": "user", "content": "y"}]
        one = {await served_by(http, messages=turns) for turns in ([first], later, later)}
        assert len(one) == 1
        sides.update(one)
    assert set(sides) == {"a", "b"}


async def test_when_a_backend_is_closed_the_other_serves_and_then_the_fallback(
    host: Host, http: httpx.AsyncClient, agent: ScriptedAgent
) -> None:
    backends = [{"model": "a", "weight": 999_999}, {"model": "b"}]
    await declare(host, http, "chat", backends=backends, fallbacks=["c"])
    assert await served_by(http) == "a"
    close(agent, "a")
    await host.until_open(0, of="a")
    assert await served_by(http) == "b"
    close(agent, "a", "b")
    await until(lambda: host.gateway.accepting()["b"] == 0)
    assert await served_by(http) == "c"
    close(agent, "a", "b", "c")
    await host.until_open(0, of="c")
    answer = await ask(http)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_ready_engine")


@pytest.mark.parametrize(
    "refusal",
    [
        error("prefill_memory_exceeded", retryable="no", status=413),
        error("context_length_exceeded", retryable="no", status=400),
        error("engine_died", retryable="elsewhere"),
    ],
)
async def test_a_no_of_one_model_is_not_the_no_of_the_fallback(
    host: Host, http: httpx.AsyncClient, agent: ScriptedAgent, refusal: Any
) -> None:
    await declare(host, http, "chat", backends=[{"model": "a"}], fallbacks=["b"])
    agent.script = [refusal]
    assert await served_by(http) == "b"
    agent.script = [refusal, refusal]
    answer = await ask(http)
    assert answer.status_code in {400, 413, 503}
    agent.script = [refusal]
    assert (await ask(http, "a")).status_code >= 400


async def refuse_for_its_size(call: Call) -> None:
    """Say that the model needs more than the whole node has."""
    body = {
        "message": "too large",
        "type": "invalid_request_error",
        "code": "prefill_memory_exceeded",
        "retryable": "no",
        "estimated_bytes": 10**12,
        "limit_bytes": 10**9,
    }
    await call.answer(413, {"error": body})


async def test_what_one_model_needs_says_nothing_of_another_on_the_same_node(
    host: Host, http: httpx.AsyncClient, agent: ScriptedAgent
) -> None:
    await declare(host, http, "chat", backends=[{"model": "a"}], fallbacks=["b"])
    agent.script = [refuse_for_its_size]
    assert await served_by(http) == "b"


async def test_a_request_too_long_for_the_backend_goes_to_the_fallback_that_holds_it(
    host: Host, http: httpx.AsyncClient, agent: ScriptedAgent
) -> None:
    await declare(host, http, "chat", backends=[{"model": "a"}], fallbacks=["b"])
    agent.engines = [
        {**item, "contextTokens": 100 if item["model"] == "a" else 32768} for item in agent.engines
    ]
    agent.change()
    long = [{"role": "user", "content": "word " * 500}]

    async def moved() -> bool:
        return await served_by(http, messages=long) == "b"

    await until_asked(moved)
    assert await served_by(http) == "a"


async def test_a_route_beats_a_model_of_its_name_until_it_is_deleted(
    host: Host, http: httpx.AsyncClient
) -> None:
    host.source.put("routes", route("a", backends=[{"model": "b"}]))

    async def served_by_b() -> bool:
        return await served_by(http, "a") == "b"

    async def served_by_a() -> bool:
        return await served_by(http, "a") == "a"

    await until_asked(served_by_b)
    host.source.remove("routes", "a")
    await until_asked(served_by_a)


async def test_a_key_may_use_a_route_by_its_name_only(host: Host, http: httpx.AsyncClient) -> None:
    await declare(host, http, "chat", backends=[{"model": "a"}])
    host.source.put("apikeys", api_key("one", "s1", models=["chat"]))
    host.source.put("apikeys", api_key("two", "s2", models=["a"]))

    async def known() -> bool:
        keyed = await http.get("/models", headers={"x-api-key": "s2"})
        return keyed.status_code == 200 and (await http.get("/models")).status_code == 401

    await until_asked(known)
    assert await listed(http, **{"x-api-key": "s1"}) == ["chat"]
    assert await listed(http, **{"x-api-key": "s2"}) == ["a"]
    assert (await ask(http, headers={"x-api-key": "s1"})).status_code == 200
    assert (await ask(http, "a", headers={"x-api-key": "s1"})).status_code == 403
    assert (await ask(http, headers={"x-api-key": "s2"})).status_code == 403
