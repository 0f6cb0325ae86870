"""What clients get when things go wrong, and what the agent lets go of when they leave."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from manifests.kinds.engine import EnginePhase
from node_agent.engine.messages import Event, Failed, Generate, PrefillProgress
from tests.support.asgi_server import raw_request
from tests.support.scripted_pool import say, tokens_event

HI = [{"role": "user", "content": "SECRET-91c2"}]
CHAT = "/v1/chat/completions"
ENDLESS = say([[70]], endless=True)


def fail_after(count: int, code: str = "engine_died") -> Any:
    async def script(command: Generate) -> AsyncIterator[Event]:
        for _ in range(count):
            yield tokens_event(command, [70])
        yield Failed(request_id=command.request_id, code=code, message="It broke.")

    return script


class Held:
    """A script that reports half a prefill and then waits for `go`."""

    def __init__(self) -> None:
        self.go = asyncio.Event()

    async def __call__(self, command: Generate) -> AsyncIterator[Event]:
        yield PrefillProgress(
            request_id=command.request_id,
            done_tokens=512,
            total_tokens=2048,
            chunk_tokens=512,
            seconds=0.5,
        )
        await self.go.wait()
        async for event in fail_after(0)(command):
            yield event


def chat_body(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": HI, **fields}


@pytest.mark.parametrize(
    ("method", "path", "content", "status", "code"),
    [
        ("POST", CHAT, b"{bad", 400, "invalid_json"),
        ("POST", CHAT, b"", 400, "invalid_json"),
        ("POST", CHAT, b"[]", 400, "invalid_value"),
        ("POST", CHAT, json.dumps(chat_body(messages={"a": "SECRET-91c2"})), 400, "invalid_value"),
        ("POST", CHAT, json.dumps(chat_body(model="SECRET-91c2")), 404, "model_not_found"),
        ("POST", CHAT, b'"' + b"x" * 2000 + b'"', 413, "request_too_large"),
        ("GET", CHAT, b"", 405, "method_not_allowed"),
        ("DELETE", "/v1/models", b"", 405, "method_not_allowed"),
        ("GET", "/v1/nothing/SECRET-91c2", b"", 404, "not_found"),
        ("GET", "/v1/models/SECRET-91c2/x", b"", 404, "model_not_found"),
        ("GET", "/v1/models/", b"", 404, "model_not_found"),
        ("POST", "/v1/completions/", b"{}", 404, "not_found"),
    ],
)
async def test_every_error_has_openais_form(
    start_agent: Any, method: str, path: str, content: Any, status: int, code: str
) -> None:
    """B06: JSON, the right status, message, type, param and code, no echo of the client's text."""
    agent = await start_agent(ENDLESS, max_body_bytes=1000)
    answer = await agent.http.request(method, path, content=content)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/json"
    error = answer.json()["error"]
    assert error["code"] == code
    assert {"message", "type", "param", "code"} <= error.keys()
    assert "SECRET" not in answer.text
    assert status != 405 or answer.headers["allow"]


async def test_a_body_without_a_length_is_limited_too(start_agent: Any) -> None:
    """B06: chunked uploads cannot pass the limit."""
    agent = await start_agent(ENDLESS, max_body_bytes=1000)

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b"x" * 100

    answer = await agent.http.post(CHAT, content=chunks())
    assert answer.status_code == 413


async def test_the_official_client_reads_the_errors(start_agent: Any) -> None:
    """B06, B11: codes are set; an unknown name, also a near one, loads nothing."""
    agent = await start_agent(ENDLESS)
    for name in ("Tiny", "tiny ", "org/tiny", "/etc/passwd", "../tiny", "x" * 300):
        with pytest.raises(openai.NotFoundError) as missing:
            await agent.openai.chat.completions.create(model=name, messages=HI)
        assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as bad:
        await agent.openai.chat.completions.create(model="tiny", messages=HI, n=0)
    assert (bad.value.param, bad.value.type) == ("n", "invalid_request_error")
    assert not agent.pool.commands


async def test_models_are_listed_under_exactly_the_names_that_work(start_agent: Any) -> None:
    """B11: aliases only when declared."""
    agent = await start_agent(say([[70]]), spec={"aliases": ["org/small"]})
    listed = [model.id for model in (await agent.openai.models.list()).data]
    assert listed == ["org/small", "tiny"]
    for name in listed:
        assert (await agent.openai.models.retrieve(name)).id == name
        answer = await agent.openai.chat.completions.create(model=name, messages=HI)
        assert answer.model == name


async def test_an_engine_that_is_not_ready_is_a_503_to_retry(start_agent: Any) -> None:
    """B06: engine down."""
    agent = await start_agent(ENDLESS)
    agent.pool.update(phase=EnginePhase.LOADING)
    answer = await agent.http.post(CHAT, json=chat_body())
    assert (answer.status_code, answer.json()["error"]["retryable"]) == (503, "elsewhere")
    assert answer.headers["retry-after"]


@pytest.mark.parametrize("stream", [False, True])
async def test_an_engine_that_dies_before_the_first_token_is_a_503(
    start_agent: Any, stream: bool
) -> None:
    """B08: a status that a router can act on, also for streams."""
    agent = await start_agent(fail_after(0))
    answer = await agent.http.post(CHAT, json=chat_body(stream=stream))
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_died")
    assert not agent.admission.held
    assert not agent.pool.leases


async def test_a_failure_after_the_first_token_is_an_event_in_the_stream(start_agent: Any) -> None:
    """B08, B17: no [DONE] and no finish_reason; the official client raises."""
    agent = await start_agent(fail_after(2))
    answer = await agent.http.post(CHAT, json=chat_body(stream=True))
    assert answer.status_code == 200
    events = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
    assert json.loads(events[-1])["error"]["code"] == "engine_died"
    assert all(json.loads(e)["choices"][0]["finish_reason"] is None for e in events[:-1])
    stream = await agent.openai.chat.completions.create(model="tiny", messages=HI, stream=True)
    with pytest.raises(openai.APIError):
        [chunk async for chunk in stream]


async def test_a_long_prefill_sends_comments_that_clients_skip(start_agent: Any) -> None:
    """B17: a failure after a comment is in-band, not a clean end."""
    held = Held()
    agent = await start_agent(held, keep_alive_seconds=0.05)
    body = json.dumps(chat_body(stream=True)).encode()
    reader, writer = await raw_request(agent.port, "POST", CHAT, body)
    async with asyncio.timeout(5):
        await reader.readuntil(b": keep-alive prefill 512/2048\n\n")
        held.go.set()
        rest = await reader.readuntil(b"0\r\n\r\n")
    assert b"engine_died" in rest
    assert b"[DONE]" not in rest
    writer.close()


async def test_the_official_client_ignores_keep_alives(start_agent: Any) -> None:
    """B17."""
    go = asyncio.Event()

    async def script(command: Generate) -> AsyncIterator[Event]:
        await go.wait()
        async for event in say([[70]])(command):
            yield event

    agent = await start_agent(script, keep_alive_seconds=0.02)
    stream = await agent.openai.chat.completions.create(model="tiny", messages=HI, stream=True)
    go.set()
    chunks = [chunk async for chunk in stream]
    assert chunks[-1].choices[0].finish_reason == "stop"


@pytest.mark.parametrize("leave", ["close", "abort", "half-close"])
@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_frees_its_slot_at_once(
    start_agent: Any, stream: bool, leave: str
) -> None:
    """B53: during prefill, streamed or not, by FIN, RST or half-close; counted as cancelled."""
    held = Held()
    agent = await start_agent(held)
    body = json.dumps(chat_body(stream=stream)).encode()
    _, writer = await raw_request(agent.port, "POST", CHAT, body)
    async with asyncio.timeout(2):
        await agent.pool.started.wait()
        if leave == "close":
            writer.close()
        elif leave == "abort":
            writer.transport.abort()
        else:
            writer.write_eof()
        await agent.pool.idle.wait()
        assert await agent.api.traffic.wait_idle(1)
    writer.close()
    assert agent.pool.streams[0].cancelled.is_set()
    assert not agent.admission.held
    samples = agent.samples()
    assert samples["mlxfleet_node_requests_total", ("tiny", "cancelled")] == 1
    assert samples["mlxfleet_node_requests_in_flight", ()] == 0


async def test_a_client_that_leaves_in_the_middle_does_not_disturb_its_neighbour(
    start_agent: Any,
) -> None:
    """B53: during decode."""
    agent = await start_agent(ENDLESS)
    body = json.dumps(chat_body(stream=True, max_tokens=10**6)).encode()
    reader, writer = await raw_request(agent.port, "POST", CHAT, body)
    neighbour = asyncio.create_task(
        agent.openai.chat.completions.create(model="tiny", messages=HI, max_tokens=200)
    )
    async with asyncio.timeout(10):
        await reader.readuntil(b"data: ")
        writer.transport.abort()
        answer = await neighbour
        await agent.pool.idle.wait()
    assert answer.usage.completion_tokens == 200


async def test_metrics_add_up_and_stay_bounded(start_agent: Any) -> None:
    """B89, B90: every request has one outcome, and clients cannot add series."""
    agent = await start_agent(say([[70]]))
    agent.api.changes.ring()
    await agent.http.post(CHAT, json=chat_body())
    for number in range(20):
        await agent.http.post(CHAT, json=chat_body(model=f'junk"\\\n{number}'))
        await agent.http.post(CHAT, content=b"{")
    samples = agent.samples()
    name = "mlxfleet_node_requests_total"
    counted = {labels: value for (key, labels), value in samples.items() if key == name}
    assert counted == {
        ("tiny", "ok"): 1,
        ("other", "model_not_found"): 20,
        ("other", "invalid_json"): 20,
    }
    assert samples["mlxfleet_node_requests_in_flight", ()] == 0
    assert samples["mlxfleet_node_engines", ("Ready",)] == 1
    assert samples["mlxfleet_node_generated_tokens_total", ("tiny",)] == 1
    assert samples["mlxfleet_node_time_to_first_token_seconds_count", ("tiny",)] == 1
    agent.pool.set_wanted({})
    assert not [key for key in agent.samples() if "tiny" in key[1]]


async def test_a_draining_agent_refuses_new_requests_and_finishes_old_ones(
    start_agent: Any,
) -> None:
    held = Held()
    agent = await start_agent(held)
    running = asyncio.create_task(agent.http.post(CHAT, json=chat_body()))
    async with asyncio.timeout(2):
        await agent.pool.started.wait()
    agent.api.traffic.drain()
    refused = await agent.http.post(CHAT, json=chat_body())
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")
    assert (await agent.http.get("/readyz")).status_code == 503
    assert not await agent.api.traffic.wait_idle(0)
    held.go.set()
    assert (await running).status_code == 503
    assert await agent.api.traffic.wait_idle(2)
