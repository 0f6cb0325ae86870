"""The agent's stream of stored prefixes, for gateways that send prompts where they are known."""

import asyncio
from collections.abc import AsyncGenerator

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from manifests.wire.prefixes import ALIVE_SECONDS, PREFIXES_PATH, PrefixChanges
from node_agent.api.changes import Changes, rung
from node_agent.api.disconnect import GeneratorResponse
from node_agent.api.prefix_lines import Told, look, plan_lines
from node_agent.pool.base import Pool

_LEAST_SECONDS = 0.25


class PrefixRoutes:
    """One handler; each stream remembers what its own reader was told."""

    def __init__(self, pool: Pool, changes: Changes) -> None:
        self._pool, self._changes = pool, changes

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [Route(PREFIXES_PATH, self._stream, methods=["GET"])]

    async def _stream(self, _: Request) -> Response:
        return GeneratorResponse(self._lines(), "application/x-ndjson")

    async def _lines(self) -> AsyncGenerator[bytes]:
        """Tell what is held, then what changes, at most a few times a second."""
        told: dict[str, Told] = {}
        loop = asyncio.get_running_loop()
        quiet_since = loop.time()
        yield _encode(PrefixChanges())
        while not self._changes.closed:
            change = self._changes.next()
            before, told = told, look(self._pool.views())
            for line in plan_lines(before, told):
                quiet_since = loop.time()
                yield _encode(line)
            if loop.time() - quiet_since >= ALIVE_SECONDS:
                quiet_since = loop.time()
                yield _encode(PrefixChanges())
            await asyncio.sleep(_LEAST_SECONDS)
            await rung(change, max(0.0, quiet_since + ALIVE_SECONDS - loop.time()))


def _encode(line: PrefixChanges) -> bytes:
    return line.model_dump_json(by_alias=True).encode() + b"\n"
