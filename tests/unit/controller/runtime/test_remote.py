import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from controller.runtime.remote import RemoteObjects
from manifests.wire.listwatch import WatchEvent
from manifests.wire.status import ApiError

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def api(handler: Handler) -> AsyncIterator[RemoteObjects]:
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    async with aiohttp.ClientSession() as session:
        yield RemoteObjects(session, f"http://{host}:{port}/")
    await runner.cleanup()


def stream(*chunks: bytes) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for chunk in chunks:
            await response.write(chunk)
            await asyncio.sleep(0)
        return response

    return handle


async def watched(objects: RemoteObjects) -> list[WatchEvent]:
    return [event async for event in objects.watch_objects("models", resource_version="5")]


def line(name: str, padding: int = 0) -> bytes:
    meta = {"name": name, "resourceVersion": "6", "annotations": {"pad": "x" * padding}}
    return json.dumps({"type": "ADDED", "object": {"metadata": meta}}).encode() + b"\n"


async def test_a_refusal_becomes_the_api_error_it_stands_for() -> None:
    async def handle(request: web.Request) -> web.Response:
        return web.json_response(ApiError(409, "stale", "Conflict").to_status(), status=409)

    async with api(handle) as objects:
        with pytest.raises(ApiError) as caught:
            await objects.get("models", "a")
    assert (caught.value.code, caught.value.reason, caught.value.message) == (
        409,
        "Conflict",
        "stale",
    )


async def test_a_foreign_error_page_is_an_api_error_too() -> None:
    async def handle(request: web.Request) -> web.Response:
        return web.Response(status=502, text="<html>bad gateway</html>")

    async with api(handle) as objects:
        with pytest.raises(ApiError, match="502"):
            await objects.list_objects("models")


async def test_no_answer_is_an_os_error() -> None:
    async with aiohttp.ClientSession() as session:
        objects = RemoteObjects(session, "http://127.0.0.1:9")
        with pytest.raises(OSError, match=r"127\.0\.0\.1:9"):
            await objects.get("models", "a")
        with pytest.raises(OSError, match="watch of models"):
            await watched(objects)


async def test_requests_have_the_paths_and_bodies_of_kubernetes() -> None:
    seen: list[tuple[str, str, str, str]] = []

    async def handle(request: web.Request) -> web.Response:
        body = (await request.read()).decode()
        seen.append((request.method, request.path_qs, request.content_type, body))
        return web.json_response({"kind": "Model"})

    async with api(handle) as objects:
        await objects.create("models", {"a": 1})
        await objects.replace("models", "x", {"b": 2}, subresource="status")
        await objects.patch("models", "x", {"c": None})
        await objects.delete("models", "x", uid="u")
        await objects.list_objects("engines", field_selector="spec.node=n1")
    base = "/apis/mlxfleet.dev/v1alpha1"
    assert [(method, path) for method, path, _, _ in seen] == [
        ("POST", f"{base}/models"),
        ("PUT", f"{base}/models/x/status"),
        ("PATCH", f"{base}/models/x"),
        ("DELETE", f"{base}/models/x"),
        ("GET", f"{base}/engines?fieldSelector=spec.node%3Dn1"),
    ]
    assert seen[2][2:] == ("application/merge-patch+json", '{"c": null}')
    assert json.loads(seen[3][3])["preconditions"] == {"uid": "u"}


async def test_a_paged_list_is_read_to_its_end() -> None:
    async def handle(request: web.Request) -> web.Response:
        last = request.query.get("continue") == "more"
        meta = {"resourceVersion": "7"} if last else {"resourceVersion": "7", "continue": "more"}
        return web.json_response({"metadata": meta, "items": [{"last": last}]})

    async with api(handle) as objects:
        listed = await objects.list_objects("models")
    assert listed.items == ({"last": False}, {"last": True})
    assert listed.resource_version == "7"


async def test_lines_of_any_length_arrive_whole_however_they_are_cut() -> None:
    text = line("a") + line("b", 300_000) + line("c")
    async with api(stream(text[:30], text[30:200_000], text[200_000:])) as objects:
        events = await watched(objects)
    assert [event.object["metadata"]["name"] for event in events] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("tail", "what"),
    [
        (b'{"type": "ADDED", "obj', "cut inside a line"),
        (b"<html>\n", "no event"),
        (b'{"type": "RENAMED", "object": {}}\n', "RENAMED"),
    ],
)
async def test_a_broken_stream_is_a_lost_link(tail: bytes, what: str) -> None:
    """B81: a stream cut inside a line never yields half an object."""
    async with api(stream(line("a"), tail)) as objects:
        with pytest.raises(OSError, match=what):
            await watched(objects)


async def test_a_watch_that_is_refused_raises_at_its_first_step() -> None:
    async def handle(request: web.Request) -> web.Response:
        return web.json_response(ApiError(410, "too old").to_status(), status=410)

    async with api(handle) as objects:
        with pytest.raises(ApiError, match="too old"):
            await watched(objects)
