"""Two routers as people know them, round robin and least connections, to compare with.

They look at no body, keep no queue and try nothing twice: what a node answers, its client gets.
Called by placement.py.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import aiohttp
from aiohttp import web

from tests.bench.peer_clients import open_session


class PlainRouter:
    """Passes each request to one of several servers and streams the answer back."""

    def __init__(self, urls: Mapping[str, str], session: aiohttp.ClientSession) -> None:
        """Take each server's URL by its name, which its answers are marked with."""
        self._urls, self._session = dict(urls), session
        self._names = tuple(self._urls)
        self._turn = 0
        self.open = dict.fromkeys(self._names, 0)

    def choose(self) -> str:
        """Return whose turn it is."""
        self._turn += 1
        return self._names[(self._turn - 1) % len(self._names)]

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Pass one request on."""
        body = await request.read()
        name = self.choose()
        self.open[name] += 1
        answer = web.StreamResponse()
        try:
            url, headers = self._urls[name], {"content-type": request.content_type}
            async with self._session.post(url + request.path, data=body, headers=headers) as got:
                answer.set_status(got.status)
                answer.headers["x-mlxfleet-node"] = name
                answer.content_type = got.content_type
                await answer.prepare(request)
                async for piece in got.content.iter_any():
                    await answer.write(piece)
                await answer.write_eof()
                return answer
        except ConnectionResetError:
            # The client has left, and so does the request to its server.
            return answer
        finally:
            self.open[name] -= 1


class LeastConnections(PlainRouter):
    """Takes the server with the fewest open requests; those with as few take turns."""

    def choose(self) -> str:
        """Return the first of the least busy, counted from the one after the last."""
        least = min(self.open.values())
        while True:
            name = super().choose()
            if self.open[name] == least:
                return name


ROUTERS = {"round robin": PlainRouter, "least connections": LeastConnections}


@asynccontextmanager
async def running_router(name: str, urls: Mapping[str, str]) -> AsyncIterator[str]:
    """Run one of `ROUTERS` before the servers of these names and URLs; its own URL."""
    async with open_session() as session:
        app = web.Application(client_max_size=1 << 26)
        app.router.add_post("/{path:.*}", ROUTERS[name](urls, session).handle)
        runner = web.AppRunner(app)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            host, port = runner.addresses[0][:2]
            yield f"http://{host}:{port}"
        finally:
            await runner.cleanup()
