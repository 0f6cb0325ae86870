import json
from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.bench.peer_clients import (
    Ask,
    Endpoint,
    RequestFailed,
    open_session,
    read_event,
    read_piece,
    send,
    user,
    write_text,
)
from tests.bench.peer_loads import QUICK, Load, load_agents, load_prefix, load_serve, load_stall
from tests.bench.peer_loads import percentile as percentile_of


async def answer(request: web.Request) -> web.StreamResponse:
    """Stream as many pieces as were asked for, among what servers also send."""
    body = await request.json()
    if body["model"] != "bench":
        return web.json_response({"error": "no such model"}, status=404)
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    usage = {"prompt_tokens": 40, "completion_tokens": body["max_tokens"]}
    deltas = [{"role": "assistant"}, {"content": ""}, *[{"content": "x"}] * body["max_tokens"]]
    events = [{"choices": [{"delta": delta}]} for delta in deltas]
    for event in [*events, {"choices": [], "usage": usage}]:
        await response.write(b": keep-alive\n\ndata: " + json.dumps(event).encode() + b"\n\n")
    await response.write(b"data: [DONE]\n\n")
    return response


@pytest.fixture
async def url() -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    async with TestServer(app) as server:
        yield str(server.make_url("")).rstrip("/")


def test_a_text_has_its_words_and_differs_by_seed() -> None:
    text = write_text(50, 1)
    assert len(text.split()) == 50
    assert write_text(50, 1) == text
    assert write_text(50, 2).split()[:5] != text.split()[:5]


def test_only_events_with_objects_are_read() -> None:
    assert read_event(b'data: {"a": 1}\n') == {"a": 1}
    assert read_event(b"data: [DONE]\n") is None
    assert read_event(b": keep-alive\n") is None


def test_thinking_counts_as_text_and_a_role_does_not() -> None:
    assert read_piece({"choices": [{"delta": {"reasoning_content": "hm"}}]}) == "hm"
    assert read_piece({"choices": [{"delta": {"role": "assistant", "content": None}}]}) == ""
    assert read_piece({"usage": {}}) == ""


def test_the_percentile_of_few_values_is_one_of_them() -> None:
    values = [float(number) for number in range(20, 0, -1)]
    assert percentile_of(values, 0.5) == 11
    assert percentile_of(values, 0.95) == 20
    assert percentile_of([3.0], 0.95) == 3


async def test_an_answer_has_a_time_for_each_piece_and_the_servers_usage(url: str) -> None:
    async with open_session() as session:
        found = await send(session, Endpoint(url, "bench"), Ask((user("hi"),), 5))
    assert found.text == "xxxxx"
    assert len(found.piece_seconds) == 5
    assert len(found.gaps) == 4
    assert (found.prompt_tokens, found.output_tokens, found.cached_tokens) == (40, 5, 0)


async def test_a_refusal_is_a_failure_with_the_servers_words(url: str) -> None:
    async with open_session() as session:
        with pytest.raises(RequestFailed, match=r"404: .*no such model"):
            await send(session, Endpoint(url, "other"), Ask((user("hi"),), 5))


async def test_every_load_brings_its_figures(url: str) -> None:
    load = Load(Endpoint(url, "bench"), QUICK, 1)
    restarts: list[int] = []

    async def restart() -> None:
        restarts.append(1)

    serve = await load_serve(load)
    assert {"tok_s_1", "tok_s_2", "ttft_p50_1", "ttft_p50_2"} <= serve.keys()
    assert {"wall", "ttft_p50", "ttft_p95"} <= (await load_agents(load)).keys()
    assert {"worst_gap", "long_ttft"} <= (await load_stall(load)).keys()
    prefix = await load_prefix(load, restart, write_seconds=0)
    assert {"restart_cold", "restart_back", "repeat_cold", "repeat_second"} <= prefix.keys()
    assert restarts == [1]


async def test_a_stream_that_fails_does_not_leave_the_stall_waiting(url: str) -> None:
    with pytest.raises(RequestFailed):
        await load_stall(Load(Endpoint(url, "other"), QUICK, 1))
