"""The API client against servers that answer badly, slowly or never."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from manifests.wire.status import ApiError
from node_agent.sync.client import ApiClient, ClientTimeouts

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def client_of(handler: Handler) -> AsyncIterator[ApiClient]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port = runner.addresses[0][1]
    async with aiohttp.ClientSession() as session:
        limits = ClientTimeouts(1, 0.3, 1, 0.2)
        yield ApiClient(f"http://127.0.0.1:{port}/", session, limits)
    await runner.cleanup()


def watching(*chunks: bytes, hang: bool = False) -> Handler:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for chunk in chunks:
            await response.write(chunk)
        if hang:
            await asyncio.Event().wait()
        return response

    return answer


async def read(client: ApiClient) -> list[Any]:
    watch = client.watch_objects("engines", resource_version="5")
    return [event.object async for event in watch]


async def test_a_list_is_read_page_by_page_and_each_item_knows_its_kind() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        second = request.query.get("continue") == "t"
        assert request.query["fieldSelector"] == "spec.node=n"
        meta = {"resourceVersion": "7"} | ({} if second else {"continue": "t"})
        items = [{"metadata": {"name": "b" if second else "a"}}]
        return web.json_response({"kind": "EngineList", "metadata": meta, "items": items})

    async with client_of(answer) as client:
        listed = await client.list_objects("engines", field_selector="spec.node=n")
    assert [(o["kind"], o["metadata"]["name"]) for o in listed.items] == [
        ("Engine", "a"),
        ("Engine", "b"),
    ]
    assert listed.resource_version == "7"


async def test_a_status_is_raised_as_what_it_says_and_foreign_bodies_as_their_code() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path.endswith("/a"):
            return web.json_response(ApiError(409, "changed").to_status(), status=409)
        return web.Response(status=502, text="<html>bad gateway</html>")

    async with client_of(answer) as client:
        with pytest.raises(ApiError, match="changed") as caught:
            await client.get("engines", "a")
        assert caught.value.reason == "Conflict"
        with pytest.raises(ApiError) as caught:
            await client.get("engines", "b")
        assert caught.value.code == 502


async def test_a_patch_is_a_merge_patch_on_the_right_path() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        assert request.content_type == "application/merge-patch+json"
        return web.json_response({"path": request.path, "body": await request.json()})

    async with client_of(answer) as client:
        answered = await client.patch_status("nodes", "n", {"status": {}})
    assert answered["path"] == "/apis/mlxfleet.dev/v1alpha1/nodes/n/status"
    assert answered["body"] == {"status": {}}


async def test_watch_lines_are_put_together_whatever_their_pieces() -> None:
    big = {"metadata": {"name": "x" * 300_000}}
    line = json.dumps({"type": "ADDED", "object": big}).encode() + b"\n"
    async with client_of(watching(line[:7], line[7:] + b"\n", line)) as client:
        assert await read(client) == [big, big]


async def test_an_error_line_is_raised_with_its_code() -> None:
    status = ApiError(410, "too old").to_status()
    line = json.dumps({"type": "ERROR", "object": status}).encode() + b"\n"
    async with client_of(watching(line)) as client:
        with pytest.raises(ApiError) as caught:
            await read(client)
    assert caught.value.code == 410


@pytest.mark.parametrize("line", [b"not json\n", b"[]\n", b'{"type":"NEW","object":{}}\n'])
async def test_a_garbled_watch_is_a_lost_link(line: bytes) -> None:
    async with client_of(watching(line)) as client:
        with pytest.raises(ConnectionError):
            await read(client)


async def test_a_server_that_never_answers_is_given_up_in_time() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    async with client_of(answer) as client:
        started = time.monotonic()
        with pytest.raises(TimeoutError):
            await client.get("engines", "a")
        assert time.monotonic() - started < 5


async def test_a_watch_that_went_silent_is_given_up_after_its_own_time() -> None:
    """B66: after a sleep the link may be half open; silence must not last for ever."""
    async with client_of(watching(hang=True)) as client:
        with pytest.raises(OSError, match="GET /engines"):
            await read(client)


async def test_a_refused_connection_is_a_lost_link() -> None:
    async with aiohttp.ClientSession() as session:
        client = ApiClient("http://127.0.0.1:1", session)
        with pytest.raises(ConnectionError):
            await client.get("engines", "a")
