"""What clients get from the gateway: models, completions, and errors that SDKs read (B06, B11)."""

import json
from typing import Any

import aiohttp
import openai
import pytest

from controller.gateway.http.asgi import Inbound
from tests.support.gateway_host import Host, gateway_host, until
from tests.support.scripted_agent import ScriptedAgent, error, load
from tests.support.scripted_source import engine, model

HI: Any = [{"role": "user", "content": "hi"}]


def client_of(host: Host) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=host.url, api_key="KEY-7f3a", max_retries=0, timeout=10)


async def post(host: Host, body: bytes, path: str = "/chat/completions") -> tuple[int, Any, Any]:
    headers = {"content-type": "application/json"}
    async with (
        aiohttp.ClientSession() as session,
        session.post(host.url + path, data=body, headers=headers) as answer,
    ):
        return answer.status, await answer.json(), answer.headers


def is_openai_error(body: Any) -> bool:
    return set(body["error"]) >= {"message", "type", "param", "code"}


async def test_the_official_client_gets_answers_whole_and_streamed() -> None:
    async with gateway_host(ScriptedAgent("mini", load("m-1"))) as host, client_of(host) as client:
        whole = await client.chat.completions.create(model="m", messages=HI)
        assert whole.choices[0].message.content == "abcde"
        stream = await client.chat.completions.create(model="m", messages=HI, stream=True)
        chunks = [chunk async for chunk in stream]
        text = "".join(item.choices[0].delta.content or "" for item in chunks if item.choices)
        assert text == "abcde"
        await host.until_idle()
        assert host.metric("mlxfleet_gateway_requests_total", model="m", outcome="ok") == 2
        assert host.metric("mlxfleet_gateway_prompt_tokens_total", model="m") == 14
        assert host.metric("mlxfleet_gateway_completion_tokens_total", model="m") == 10
        assert host.metric("mlxfleet_gateway_ttft_seconds_count", model="m") == 1


async def test_the_body_and_the_stream_pass_byte_for_byte() -> None:
    agent = ScriptedAgent("mini", load("m-1"))
    hello = b'[{"role":"user","content":"\\u00e4 \xc3\xa4"}]'
    body = b'{ "model" : "m","stream":true , "messages":' + hello + b"}"
    async with gateway_host(agent) as host, aiohttp.ClientSession() as session:
        sent = {"x-request-id": "abc-1", "authorization": "Bearer KEY-7f3a", "connection": "x-hop"}
        async with session.post(
            host.url + "/chat/completions", data=body, headers={**sent, "x-hop": "1"}
        ) as answer:
            received = await answer.read()
        assert agent.calls[0].body == body
        assert received.endswith(b"data: [DONE]\n\n")
        assert received.count(b"data: ") == 7
        assert answer.headers["x-mlxfleet-node"] == "mini"
        assert answer.headers["x-mlxfleet-engine"] == "m-1"
        assert answer.headers["x-request-id"] == agent.calls[0].headers["x-request-id"] == "abc-1"
        assert "authorization" not in agent.calls[0].headers
        assert "x-hop" not in agent.calls[0].headers


async def test_models_are_listed_from_local_state_with_aliases_and_slashes() -> None:
    models = (model("m", aliases=("org/name",)), model("asleep"))
    agents = (
        ScriptedAgent("a", load("m-1", aliases=["org/name"])),
        ScriptedAgent("b", load("m-2", aliases=["org/name"])),
    )
    async with gateway_host(*agents, models=models) as host, client_of(host) as client:
        agents[0].muted = True
        listed = [item async for item in client.models.list()]
        assert [item.id for item in listed] == ["m", "org/name"]
        assert all(item.created == 1793491200 for item in listed)
        assert (await client.models.retrieve("org/name")).id == "org/name"
        async with (
            aiohttp.ClientSession() as session,
            session.get(host.url + "/models/org/name") as answer,
        ):
            assert (await answer.json())["id"] == "org/name"
        with pytest.raises(openai.NotFoundError) as caught:
            await client.models.retrieve("asleep")
        assert caught.value.code == "model_not_found"
        agents[0].muted = False
        for agent in agents:
            agent.change(phase="Loading", accepting=False)
        await host.until_open(0)
        assert [item async for item in client.models.list()] == []


@pytest.mark.parametrize(
    ("name", "raised"),
    [
        ("org/unused", openai.NotFoundError),
        ("M", openai.NotFoundError),
        ("m ", openai.NotFoundError),
        ("/models/m", openai.NotFoundError),
        ("x" * 300, openai.NotFoundError),
        ("", openai.BadRequestError),
        (None, openai.BadRequestError),
        ({"a": 1}, openai.BadRequestError),
    ],
)
async def test_a_name_that_does_not_exist_is_refused_at_once(
    name: Any, raised: type[openai.APIStatusError]
) -> None:
    agent = ScriptedAgent("mini", load("m-1"))
    async with gateway_host(agent) as host, client_of(host) as client:
        with pytest.raises(raised) as caught:
            await client.chat.completions.create(model=name, messages=HI)
        assert caught.value.param == "model"
        assert len(caught.value.message) < 600
        if raised is openai.NotFoundError:
            assert caught.value.code == "model_not_found"
            assert "Existing models: m" in caught.value.message
        assert not agent.calls


async def test_every_error_has_the_openai_shape() -> None:
    async with gateway_host(ScriptedAgent("mini", load("m-1"))) as host:
        cases = [
            (b'{"model": "m", PROMPT-91c2', 400, "invalid_json"),
            (b"[]", 400, "invalid_json"),
            (b'"PROMPT-91c2"', 400, "invalid_json"),
            (b"[" * 100_000, 400, "invalid_json"),
            (b'{"model": "m", "stream": "PROMPT-91c2"}', 400, "invalid_value"),
        ]
        for body, status, code in cases:
            got, answer, headers = await post(host, body)
            assert (got, answer["error"]["code"]) == (status, code)
            assert is_openai_error(answer)
            assert headers["content-type"] == "application/json"
            assert "PROMPT-91c2" not in json.dumps(answer)
        status, answer, _ = await post(host, b"{}", "/nothing")
        assert (status, answer["error"]["code"]) == (404, "not_found")
        async with aiohttp.ClientSession() as session:
            async with session.get(host.url + "/chat/completions") as wrong:
                assert wrong.status == 405
                assert wrong.headers["allow"] == "POST"
                assert is_openai_error(await wrong.json())
            async with session.post(host.url + "/models") as wrong:
                assert wrong.status == 405
                assert wrong.headers["allow"] == "GET, HEAD"


@pytest.mark.parametrize("chunked", [False, True])
async def test_an_oversized_body_is_refused_before_it_is_parsed(chunked: bool) -> None:
    async with gateway_host(ScriptedAgent("mini", load("m-1")), max_body_bytes=100_000) as host:
        size = 3_000_000

        async def pieces() -> Any:
            for _ in range(30):
                yield b"x" * (size // 30)

        async with aiohttp.ClientSession() as session:
            data = pieces() if chunked else b"x" * 900_000
            async with session.post(host.url + "/completions", data=data) as answer:
                assert answer.status == 413
                assert (await answer.json())["error"]["code"] == "request_too_large"


async def test_a_model_without_a_ready_engine_says_why_and_when_to_come_back() -> None:
    condition = {"type": "Placed", "status": "False", "reason": "TooBig", "message": "no node fits"}
    models = (model("m"), model("huge", conditions=[condition]))
    async with gateway_host(ScriptedAgent("a"), models=models) as host, client_of(host) as client:
        host.source.put("engines", engine("m-1", of="m", on="a", phase="Loading"))
        await until(lambda: host.gateway.ready)
        with pytest.raises(openai.InternalServerError) as caught:
            await client.chat.completions.create(model="huge", messages=HI)
        assert caught.value.status_code == 503
        assert caught.value.code == "no_ready_engine"
        assert "no node fits" in caught.value.message
        assert int(caught.value.response.headers["retry-after"]) >= 1
        with pytest.raises(openai.InternalServerError) as caught:
            await client.chat.completions.create(model="m", messages=HI)
        assert "m-1 on a is Loading" in caught.value.message


async def test_an_agents_refusal_reaches_the_client_as_the_agent_wrote_it() -> None:
    agent = ScriptedAgent("mini", load("m-1"))
    async with gateway_host(agent) as host, client_of(host) as client:
        agent.script = [
            error("context_length_exceeded", retryable="no", status=400),
            error("queue_full", retryable="later", wait=7),
        ]
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.create(model="m", messages=HI)
        assert caught.value.code == "context_length_exceeded"
        with pytest.raises(openai.InternalServerError) as busy:
            await client.chat.completions.create(model="m", messages=HI)
        assert busy.value.code == "queue_full"
        assert busy.value.response.headers["retry-after"] == "7"
        assert len(agent.calls) == 2


async def test_a_fault_of_the_gateway_itself_still_answers_and_tells_no_prompt(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def explode(self: Inbound, limit_bytes: int) -> bytes:
        raise RuntimeError("PROMPT-91c2")

    monkeypatch.setattr(Inbound, "read_body", explode)
    async with gateway_host(ScriptedAgent("mini", load("m-1"))) as host:
        status, answer, _ = await post(host, b"{}")
        assert (status, answer["error"]["code"]) == (500, "internal_error")
        await host.until_idle()
        assert host.metric("mlxfleet_gateway_requests_total", model="other", outcome="fault") == 1
    output = capsys.readouterr()
    assert "gateway_fault" in output.out + output.err
    assert "PROMPT-91c2" not in output.out + output.err


async def test_junk_model_names_do_not_become_series() -> None:
    async with gateway_host(ScriptedAgent("mini", load("m-1"))) as host:
        before = host.scrape().count("\n")
        for number in range(100):
            name = f'junk"{number}\n\\🙂' + "x" * number * 10
            await post(host, json.dumps({"model": name, "messages": []}).encode())
        await host.until_idle()
        assert host.scrape().count("\n") - before <= 50
        outcome = {"model": "other", "outcome": "client_error"}
        assert host.metric("mlxfleet_gateway_requests_total", **outcome) == 100


async def test_series_of_a_deleted_model_and_node_go() -> None:
    agent = ScriptedAgent("mini", load("m-1"))
    async with gateway_host(agent) as host, client_of(host) as client:
        await client.chat.completions.create(model="m", messages=HI)
        await host.until_idle()
        assert 'node="mini"' in host.scrape()
        agent.engines = []
        agent.change()
        await host.until_open(0)
        host.source.remove("models", "m")
        host.source.remove("nodes", "mini")
        await until(lambda: 'model="m"' not in host.scrape() and "mini" not in host.scrape())
