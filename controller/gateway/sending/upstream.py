"""Requests to the agents: one attempt at a time as an `Answer`, or as the loss that it was.

Owns the connections. Translates what the network does into values; decides nothing. What the
gateway reads from agents all the time (loads, prefixes, tokenizers) goes by its session.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp

from controller.gateway.http.asgi import find_header
from controller.gateway.sending.attempts import Lost, lost
from controller.gateway.sending.link import Fault, Link, LinkError, Patience
from controller.gateway.sending.pool import Origin, Pool, parse_origin
from controller.gateway.settings import GatewaySettings


def _never() -> bool:
    return False


def _never_gone(_silent_seconds: float) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Call:
    """One request to an agent; `wakes` means that its engine must come back first.

    `is_gone` says when to leave a silent node, `is_dead` one whose answer has not begun.
    """

    address: str
    path: str
    headers: Mapping[str, str]
    body: bytes = field(repr=False)
    stream: bool = False
    wakes: bool = False
    is_dead: Callable[[], bool] = _never
    is_gone: Callable[[float], bool] = _never_gone


class UpstreamError(Exception):
    """An attempt got no answer; `ending` says how."""

    def __init__(self, ending: Lost) -> None:
        super().__init__(ending.refusal.message)
        self.ending = ending


class Answer:
    """One agent's answer from its head on; whoever has it must release it."""

    def __init__(self, pool: Pool, origin: Origin, link: Link) -> None:
        self._pool, self._origin, self._link = pool, origin, link
        reader = link.reader
        self.status, self.headers = reader.status, reader.headers

    @property
    def content_type(self) -> str:
        """The media type without its parameters, in lower case; empty without one."""
        value = find_header(self.headers, b"content-type") or b""
        return value.partition(b";")[0].strip().lower().decode("latin-1")

    @property
    def ended(self) -> bool:
        """Whether the whole body has come."""
        return self._link.reader.ended

    async def read(self) -> bytes:
        """Return what has come of the body, as soon as any has; empty at its end.

        Raises: LinkError.
        """
        return await self._link.read()

    def release(self) -> None:
        """Give the connection back; at any other place than the answer's end it is closed."""
        self._pool.give(self._origin, self._link)


class Upstream:
    """The connections to all agents; entered once by the gateway's `run`."""

    def __init__(self, settings: GatewaySettings) -> None:
        """Prepare; connections are made inside `open`, on its event loop."""
        self._settings = settings
        self._pool: Pool | None = None

    @asynccontextmanager
    async def open(self) -> AsyncIterator[aiohttp.ClientSession]:
        """Hold connections open while the block runs; yields a session for all but requests."""
        connector = aiohttp.TCPConnector(
            limit=0, keepalive_timeout=self._settings.idle_connection_seconds
        )
        settings = self._settings
        pool = Pool(settings.connect_timeout_seconds, settings.idle_connection_seconds)
        async with aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            skip_auto_headers=("User-Agent", "Accept", "Content-Type"),
        ) as session:
            self._pool = pool
            try:
                yield session
            finally:
                self._pool = None
                await pool.close()

    async def send(self, call: Call) -> Answer:
        """Return an answer once its head is there. Raises: UpstreamError when there is none."""
        pool = self._pool
        if pool is None:
            raise UpstreamError(lost("The gateway is starting or stopping.", unreachable=True))
        try:
            origin = parse_origin(call.address)
            link = await pool.take(origin)
        except (OSError, TimeoutError, ValueError) as fault:
            raise UpstreamError(lost("The node could not be reached.", unreachable=True)) from fault
        reused = link.reused
        try:
            await link.exchange(write_head(call, origin), call.body, self._patience(call))
        except LinkError as fault:
            pool.give(origin, link)
            raise UpstreamError(_explain(fault, reused=reused)) from fault
        except BaseException:
            pool.give(origin, link)
            raise
        return Answer(pool, origin, link)

    def _patience(self, call: Call) -> Patience:
        settings = self._settings
        silence_seconds = settings.answer_seconds
        if call.stream:
            silence_seconds = settings.stall_seconds
            if call.wakes:
                silence_seconds = max(silence_seconds, settings.wake_seconds)
        return Patience(silence_seconds, call.is_dead, call.is_gone)


def write_head(call: Call, origin: Origin) -> bytes:
    """Return the head of a request. Raises: ValueError for a header that would end its line."""
    lines = "".join([f"{name}: {value}\r\n" for name, value in call.headers.items()])
    if lines.count("\n") != len(call.headers) or lines.count("\r") != len(call.headers):
        raise ValueError("a header has a line break")
    head = (
        f"POST {origin.prefix}{call.path} HTTP/1.1\r\nhost: {origin.host_header}\r\n{lines}"
        f"content-length: {len(call.body)}\r\n\r\n"
    )
    return head.encode("latin-1")


def _explain(fault: LinkError, *, reused: bool) -> Lost:
    """Return the loss that a fault before the head means; no address leaves the gateway."""
    match fault.fault:
        case Fault.SILENT:
            return lost("The node stopped answering.")
        case Fault.GONE:
            return lost("The node is gone.")
        case Fault.CLOSED if reused and not fault.heard:
            return lost("The node closed an idle connection.", stale=True)
        case _:
            return lost("The connection to the node was lost.")
