"""Connections to agents: makes them, keeps the idle ones for a while, closes them all at the end.

Called by `upstream`, one instance a gateway.
"""

import asyncio
import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import urlsplit

import aiohappyeyeballs

from controller.gateway.sending.link import Link

# As long as a name's addresses are taken to hold.
_RESOLVED_SECONDS = 10.0
_SECOND_FAMILY_SECONDS = 0.25


@dataclass(frozen=True)
class Origin:
    """Where an address leads. `prefix` is what of its path comes before every request's."""

    host: str
    port: int
    tls: bool
    prefix: str
    host_header: str


@lru_cache(maxsize=4096)
def parse_origin(address: str) -> Origin:
    """Return where a node's address leads. Raises: ValueError when it is none."""
    parts = urlsplit(address)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError("an address of a node begins with http:// or https://")
    tls = parts.scheme == "https"
    port = parts.port or (443 if tls else 80)
    host_header = parts.netloc.rpartition("@")[2]
    return Origin(parts.hostname, port, tls, parts.path.rstrip("/"), host_header)


@dataclass(slots=True)
class _Idle:
    link: Link
    since_seconds: float


class Pool:
    """All links of one gateway; all methods belong to one event loop."""

    def __init__(self, connect_seconds: float, idle_seconds: float) -> None:
        """`idle_seconds` is how long a link is kept without a request."""
        self._connect_seconds, self._idle_seconds = connect_seconds, idle_seconds
        self._loop = asyncio.get_running_loop()
        self._idle: dict[Origin, list[_Idle]] = {}
        self._busy: set[Link] = set()
        self._resolved: dict[Origin, tuple[float, Sequence[aiohappyeyeballs.AddrInfoType]]] = {}
        self._sweep: asyncio.TimerHandle | None = None
        self._tls: ssl.SSLContext | None = None

    async def take(self, origin: Origin) -> Link:
        """Return a link without a request, the last one used or a new one.

        Raises: OSError, TimeoutError when there is no connecting.
        """
        kept, oldest = self._idle.get(origin), self._loop.time() - self._idle_seconds
        while kept:
            idle = kept.pop()
            if not idle.link.closed and idle.since_seconds > oldest:
                self._busy.add(idle.link)
                return idle.link
            idle.link.close()
        async with asyncio.timeout(self._connect_seconds):
            link = await self._connect(origin)
        self._busy.add(link)
        return link

    def give(self, origin: Origin, link: Link) -> None:
        """Take a link back whose request has ended, or close it where that is not its end."""
        self._busy.discard(link)
        if not link.finish():
            return
        self._idle.setdefault(origin, []).append(_Idle(link, self._loop.time()))
        if self._sweep is None:
            self._sweep = self._loop.call_later(self._idle_seconds, self._close_old)

    async def close(self) -> None:
        """Close every link."""
        if self._sweep is not None:
            self._sweep.cancel()
        for link in (*self._busy, *(item.link for kept in self._idle.values() for item in kept)):
            link.close()
        self._busy.clear()
        self._idle.clear()
        # Transports end in the loop's next turn.
        await asyncio.sleep(0)

    async def _connect(self, origin: Origin) -> Link:
        try:
            found = await aiohappyeyeballs.start_connection(
                await self._resolve(origin), happy_eyeballs_delay=_SECOND_FAMILY_SECONDS
            )
        except OSError:
            self._resolved.pop(origin, None)
            raise
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if origin.tls and self._tls is None:
            self._tls = await asyncio.to_thread(ssl.create_default_context)
        _, link = await self._loop.create_connection(
            Link,
            sock=found,
            ssl=self._tls if origin.tls else None,
            server_hostname=origin.host if origin.tls else None,
        )
        return link

    async def _resolve(self, origin: Origin) -> Sequence[aiohappyeyeballs.AddrInfoType]:
        until, found = self._resolved.get(origin, (0.0, ()))
        if self._loop.time() >= until:
            found = await self._loop.getaddrinfo(origin.host, origin.port, type=socket.SOCK_STREAM)
            self._resolved[origin] = (self._loop.time() + _RESOLVED_SECONDS, found)
        return found

    def _close_old(self) -> None:
        self._sweep, oldest = None, self._loop.time() - self._idle_seconds
        for origin, kept in tuple(self._idle.items()):
            for item in kept:
                if item.since_seconds <= oldest:
                    item.link.close()
            left = [item for item in kept if not item.link.closed]
            if left:
                self._idle[origin] = left
            else:
                del self._idle[origin]
        if self._idle:
            self._sweep = self._loop.call_later(self._idle_seconds, self._close_old)
