"""`GET /apis/.../engines/NAME/log`: an engine's log, fetched from the agent of its node.

Passes text through piece by piece and keeps none. Mounted by `routes.py`.
"""

import asyncio
from collections.abc import AsyncGenerator
from urllib.parse import quote

import aiohttp
import structlog
from starlette.requests import Request
from starlette.routing import BaseRoute, Route

from controller.api.endpoints import Answer, Endpoint
from controller.api.requests import parse_count, parse_flag
from controller.api.streams import PieceStream
from controller.runtime.objects import Objects
from manifests.kinds.meta import API_VERSION
from manifests.wire.error_body import parse_openai_error
from manifests.wire.report import LOG_PATH
from manifests.wire.status import ApiError

_LOG = structlog.get_logger(__name__)
_CONNECT_SECONDS = 5.0
_ANSWER_SECONDS = 30.0


class EngineLogs:
    """Proxies logs. The session belongs to the app."""

    def __init__(
        self, objects: Objects, session: aiohttp.ClientSession, stopping: asyncio.Event
    ) -> None:
        self._objects, self._session, self._stopping = objects, session, stopping

    def routes(self) -> list[BaseRoute]:
        """Return the routes; they go before those of `{name}`."""
        path = f"/apis/{API_VERSION}/engines/{{name}}/log"
        return [Route(path, Endpoint(self._log), methods=["GET"])]

    async def _log(self, request: Request) -> Answer:
        name = request.path_params["name"]
        engine = await self._objects.get("engines", name)
        node = engine["spec"]["node"]
        url = await self._address(node) + LOG_PATH.format(name=quote(name, safe=""))
        follow = bool(parse_flag(request, "follow"))
        params = {"follow": "true" if follow else "false"}
        tail = parse_count(request, "tailLines")
        if tail is not None:
            params["tailLines"] = str(tail)
        # A followed log may be silent for hours; one that is not must end.
        timeout = aiohttp.ClientTimeout(
            total=None,
            sock_connect=_CONNECT_SECONDS,
            sock_read=None if follow else _ANSWER_SECONDS,
        )
        try:
            upstream = await self._session.get(url, params=params, timeout=timeout)
        except (aiohttp.ClientError, TimeoutError) as fault:
            raise ApiError(503, f"the agent of node {node} does not answer: {fault}") from fault
        if upstream.status != 200:
            raise await _refusal(upstream, node)
        return PieceStream(_pieces(upstream), "text/plain; charset=utf-8", self._stopping)

    async def _address(self, node: str) -> str:
        found = await self._objects.get("nodes", node)
        address = (found.get("status") or {}).get("address")
        if not address:
            raise ApiError(503, f"node {node} has not told its address yet")
        return str(address).rstrip("/")


async def _pieces(upstream: aiohttp.ClientResponse) -> AsyncGenerator[bytes, None]:
    try:
        while piece := await upstream.content.readany():
            yield piece
    except (aiohttp.ClientError, TimeoutError) as fault:
        _LOG.warning("log stream lost", url=str(upstream.url), error=str(fault))
        yield b"\n[the connection to the agent was lost]\n"
    finally:
        upstream.close()


async def _refusal(upstream: aiohttp.ClientResponse, node: str) -> ApiError:
    try:
        body = await upstream.json(content_type=None)
    except (aiohttp.ClientError, TimeoutError, ValueError):
        body = None
    upstream.release()
    refusal = parse_openai_error(upstream.status, body)
    code = 404 if upstream.status == 404 else 503
    return ApiError(code, f"node {node}: {refusal.message}")
