"""HTTP to the agents: one client session, one attempt at a time as an `Ending` or a response.

Owns the connection pool. Translates what the network does into values; decides nothing.
"""

import asyncio
import io
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from weakref import WeakSet

import aiohttp
from aiohttp.connector import Connection

from controller.gateway.nodes.link_watch import IsGone, watch_link
from controller.gateway.sending.attempts import Lost, lost
from controller.gateway.settings import GatewaySettings

_WARNED_BODY_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Call:
    """One request to an agent; `wakes` means that its engine must come back first.

    `is_gone` says when to leave a node whose answer has begun.
    """

    url: str
    headers: Mapping[str, str]
    body: bytes = field(repr=False)
    stream: bool = False
    wakes: bool = False
    is_gone: IsGone | None = None


@dataclass(slots=True)
class _Trail:
    """What a request did to the pool."""

    reused: bool = False


_TRAIL: ContextVar[_Trail] = ContextVar("trail")


class UpstreamError(Exception):
    """An attempt got no answer; `ending` says how."""

    def __init__(self, ending: Lost) -> None:
        super().__init__(ending.refusal.message)
        self.ending = ending


class Upstream:
    """The session to all agents; entered once by the gateway's `run`."""

    def __init__(self, settings: GatewaySettings) -> None:
        """Prepare; the session opens inside `open`, on its event loop."""
        self._settings = settings
        self._session: aiohttp.ClientSession | None = None

    @asynccontextmanager
    async def open(self) -> AsyncIterator[aiohttp.ClientSession]:
        """Hold the session open while the block runs."""
        connector = _NotingConnector(
            limit=0, keepalive_timeout=self._settings.idle_connection_seconds
        )
        async with aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            skip_auto_headers=("User-Agent", "Accept", "Content-Type"),
        ) as session:
            self._session = session
            try:
                yield session
            finally:
                self._session = None

    @asynccontextmanager
    async def send(self, call: Call) -> AsyncIterator[aiohttp.ClientResponse]:
        """Yield the response's head; leaving the block early closes the connection at once.

        Raises: UpstreamError when there is no head, or the body breaks inside the block.
        """
        if self._session is None:
            raise UpstreamError(lost("The gateway is starting or stopping.", unreachable=True))
        trail = _Trail()
        _TRAIL.set(trail)
        response: aiohttp.ClientResponse | None = None
        try:
            response = await self._session.post(
                call.url,
                data=_payload(call.body),
                headers=call.headers,
                timeout=self._timeout(call),
                allow_redirects=False,
            )
            with watch_link(response, call.is_gone):
                yield response
        except (aiohttp.ClientError, TimeoutError, OSError) as fault:
            headless = response is None
            raise UpstreamError(_explain(fault, reused=trail.reused and headless)) from fault
        finally:
            if response is not None and not response.content.at_eof():
                response.close()

    def _timeout(self, call: Call) -> aiohttp.ClientTimeout:
        settings = self._settings
        silence_seconds = settings.stall_seconds
        if call.wakes:
            silence_seconds = max(silence_seconds, settings.wake_seconds)
        return aiohttp.ClientTimeout(
            total=None,
            sock_connect=settings.connect_timeout_seconds,
            sock_read=silence_seconds if call.stream else settings.answer_seconds,
        )


class _NotingConnector(aiohttp.TCPConnector):
    """Notes on the request's trail whether its connection was used before.

    aiohttp's own tracing tells it too, at a cost for every request several times that.
    """

    async def connect(
        self,
        req: aiohttp.ClientRequest,
        traces: list[Any],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - aiohttp names it so
    ) -> Connection:
        connection = await super().connect(req, traces, timeout)
        protocol = connection.protocol
        trail = _TRAIL.get(None)
        if trail is not None and protocol is not None:
            trail.reused = protocol in self._used
            self._used.add(protocol)
        return connection

    @cached_property
    def _used(self) -> WeakSet[Any]:
        return WeakSet()


def _payload(body: bytes) -> bytes | io.BytesIO:
    # Large bytes would be copied to the socket in one step; a file is sent in pieces.
    return body if len(body) <= _WARNED_BODY_BYTES else io.BytesIO(body)


def _explain(fault: Exception, *, reused: bool) -> Lost:
    """Return the loss that a network fault means; no address leaves the gateway."""
    match fault:
        case aiohttp.ConnectionTimeoutError() | aiohttp.ClientConnectorError():
            return lost("The node could not be reached.", unreachable=True)
        case aiohttp.ServerTimeoutError() | asyncio.TimeoutError():
            return lost("The node stopped answering.")
        case aiohttp.ServerDisconnectedError() | aiohttp.ClientOSError() if reused:
            return lost("The node closed an idle connection.", stale=True)
        case _:
            return lost("The connection to the node was lost.")
