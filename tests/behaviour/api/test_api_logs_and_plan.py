"""Engine logs through the controller, and plans, with all roles in one process."""

import asyncio
from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web

from controller.settings import Role
from tests.support.controllers import API, MERGE, call, serving
from tests.support.objects import engine, model, node


class LogAgent:
    """An agent that knows one engine's log and can be told to go on."""

    def __init__(self) -> None:
        self.more: asyncio.Queue[str] = asyncio.Queue()
        self.asked: dict[str, str] = {}
        self.left = asyncio.Event()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.asked = dict(request.query)
        if request.match_info["name"] != "m-1":
            error = {"error": {"message": "no such engine", "code": "not_found"}}
            return web.json_response(error, status=404)
        answer = web.StreamResponse()
        await answer.prepare(request)
        await answer.write(b"first line\n")
        try:
            while request.query.get("follow") == "true":
                await answer.write((await self.more.get()).encode())
        finally:
            self.left.set()
        return answer


@pytest.fixture
async def agent() -> AsyncIterator[tuple[LogAgent, str]]:
    held = LogAgent()
    app = web.Application()
    app.router.add_get("/fleet/v1/engines/{name}/log", held.handle)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    yield held, f"http://{host}:{port}"
    await runner.cleanup()


async def declare(session: aiohttp.ClientSession, url: str, address: str) -> None:
    await call(session, "POST", f"{url}{API}/nodes", node())
    for name in ("m-1", "m-2"):
        await call(session, "POST", f"{url}{API}/engines", engine(name))
    if address:
        body = {"status": {"address": address}}
        await call(session, "PATCH", f"{url}{API}/nodes/mini/status", body, headers=MERGE)


async def test_a_log_comes_from_the_engines_own_agent(agent):
    held, address = agent
    async with serving() as url, aiohttp.ClientSession() as session:
        await declare(session, url, address)
        async with session.get(f"{url}{API}/engines/m-1/log?tailLines=5") as answer:
            assert answer.content_type == "text/plain"
            assert await answer.text() == "first line\n"
        assert held.asked == {"follow": "false", "tailLines": "5"}


async def test_a_followed_log_flows_and_leaving_reaches_the_agent(agent):
    held, address = agent
    async with serving() as url, aiohttp.ClientSession() as session:
        await declare(session, url, address)
        async with session.get(f"{url}{API}/engines/m-1/log?follow=true") as answer:
            assert await asyncio.wait_for(answer.content.readline(), 10) == b"first line\n"
            held.more.put_nowait("second line\n")
            assert await asyncio.wait_for(answer.content.readline(), 10) == b"second line\n"
        await asyncio.wait_for(held.left.wait(), 10)


async def test_a_log_that_cannot_be_had_says_why(agent):
    _, address = agent
    async with serving() as url, aiohttp.ClientSession() as session:
        await declare(session, url, "")
        code, status = await call(session, "GET", f"{url}{API}/engines/m-1/log")
        assert (code, "has not told its address" in status["message"]) == (503, True)
        body = {"status": {"address": address}}
        await call(session, "PATCH", f"{url}{API}/nodes/mini/status", body, headers=MERGE)
        code, status = await call(session, "GET", f"{url}{API}/engines/m-2/log")
        assert (code, "no such engine" in status["message"]) == (404, True)
        assert (await call(session, "GET", f"{url}{API}/engines/ghost/log"))[0] == 404
        body = {"status": {"address": "http://127.0.0.1:1"}}
        await call(session, "PATCH", f"{url}{API}/nodes/mini/status", body, headers=MERGE)
        code, status = await call(session, "GET", f"{url}{API}/engines/m-1/log")
        assert (code, "does not answer" in status["message"]) == (503, True)


async def until_ready(session: aiohttp.ClientSession, url: str) -> None:
    async with asyncio.timeout(30):
        while True:
            async with session.get(url + "/readyz") as answer:
                if answer.status == 200:
                    return
            await asyncio.sleep(0.05)


async def test_all_roles_in_one_process_plan_and_serve():
    async with serving(frozenset(Role)) as url, aiohttp.ClientSession() as session:
        await until_ready(session, url)
        plan = f"{url}/fleet/v1/plan"
        code, report = await call(session, "POST", plan, {"items": [model()]})
        assert (code, report["models"][0]["model"]) == (200, "m")
        assert report["models"][0]["placed"] == 0
        assert (await call(session, "GET", f"{url}{API}/models/m"))[0] == 404
        for bad in ({"items": [1]}, {"items": "x"}, {}, {"items": [model(replicaz=1)]}):
            assert (await call(session, "POST", plan, bad))[0] == 400
        code, error = await call(session, "GET", f"{url}/v1/nothing")
        assert (code, "error" in error) == (404, True)
