"""Which node holds which prefix: one stream for each node, read for as long as it is declared.

Owns the connections and the map. A node that does not answer keeps what it had told, because what
is on its disk stays there; whether it may be routed to is the load stream's matter. A new
connection starts anew. Called by the gateway's app; read by `prompts`.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Mapping

import aiohttp
import structlog
from pydantic import ValidationError

from controller.gateway.nodes.endpoints import EndpointKey
from controller.gateway.nodes.held import Held, NodePrefixes
from controller.gateway.nodes.link_watch import watch_link
from manifests.wire.prefixes import ALIVE_SECONDS, PREFIXES_PATH, PrefixChanges

_LOG = structlog.get_logger(__name__)

_LINE_BYTES_MAX = 4 * 1024 * 1024
_CONNECT_SECONDS = 5.0
_BACKOFF_SECONDS, _BACKOFF_SECONDS_MAX = 0.2, 10.0


class PrefixFaultError(Exception):
    """The stream said something that cannot be trusted."""


class PrefixStream:
    """Follows one node until cancelled."""

    def __init__(
        self, node: str, address: str, most_names: int, on_drop: Callable[[int], None]
    ) -> None:
        """Prepare; `run` connects. `on_drop` is told of names there was no room for."""
        self.node, self.address = node, address
        self._most_names, self._on_drop = most_names, on_drop
        self._prefixes = NodePrefixes(most_names)

    def find(self, engine: str) -> Held | None:
        """Return what an engine of the node holds."""
        return self._prefixes.find(engine)

    @property
    def names(self) -> int:
        """How many names are kept."""
        return self._prefixes.names

    async def run(self, session: aiohttp.ClientSession) -> None:
        """Follow the node until cancelled."""
        losses = 0
        while True:
            if await self._follow(session):
                losses = 0
            losses += 1
            most = min(_BACKOFF_SECONDS * 2.0 ** min(losses - 1, 10), _BACKOFF_SECONDS_MAX)
            await asyncio.sleep(most * (0.5 + 0.5 * random.random()))

    async def _follow(self, session: aiohttp.ClientSession) -> bool:
        """Read one connection to its end; tell whether it said anything."""
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=_CONNECT_SECONDS, sock_read=3 * ALIVE_SECONDS
        )
        spoke = False
        try:
            async with session.get(self.address + PREFIXES_PATH, timeout=timeout) as response:
                with watch_link(response):
                    async for line in _lines(response):
                        if not spoke:
                            # Full sets follow; what an earlier connection told is void.
                            self._prefixes, spoke = NodePrefixes(self._most_names), True
                        self._take(line)
                        # A full set is many lines: requests come between them.
                        await asyncio.sleep(0)
        except (aiohttp.ClientError, OSError, ValueError, PrefixFaultError) as fault:
            _LOG.debug("prefix_stream_lost", node=self.node, error=type(fault).__name__)
        return spoke

    def _take(self, line: bytes) -> None:
        try:
            changes = PrefixChanges.model_validate_json(line)
        except ValidationError as fault:
            raise PrefixFaultError("a line that cannot be read") from fault
        dropped = self._prefixes.take(changes)
        if dropped:
            self._on_drop(dropped)


class PrefixMap:
    """The streams of all nodes."""

    def __init__(self, most_names: int, on_drop: Callable[[int], None]) -> None:
        """`most_names` bounds what is kept of each node."""
        self._most_names, self._on_drop = most_names, on_drop
        self._streams: dict[str, PrefixStream] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._wanted: Mapping[str, str] = {}
        self._wake = asyncio.Event()

    def follow(self, addresses: Mapping[str, str]) -> None:
        """Follow these nodes from now on, and no others."""
        if addresses != self._wanted:
            self._wanted = dict(addresses)
            self._wake.set()

    def find(self, key: EndpointKey) -> Held | None:
        """Return what an engine holds, None when that is not known."""
        stream = self._streams.get(key.node)
        return None if stream is None else stream.find(key.engine)

    @property
    def names(self) -> int:
        """How many names are kept of all nodes."""
        return sum(stream.names for stream in self._streams.values())

    async def run(self, session: aiohttp.ClientSession) -> None:
        """Keep the map current until cancelled."""
        self._streams.clear()
        self._tasks.clear()
        async with asyncio.TaskGroup() as group:
            while True:
                self._wake.clear()
                self._match(group, session)
                await self._wake.wait()

    def _match(self, group: asyncio.TaskGroup, session: aiohttp.ClientSession) -> None:
        for name, stream in tuple(self._streams.items()):
            if self._wanted.get(name) != stream.address:
                self._tasks.pop(name).cancel()
                del self._streams[name]
        for name in sorted(self._wanted.keys() - self._streams.keys()):
            stream = PrefixStream(name, self._wanted[name], self._most_names, self._on_drop)
            self._streams[name] = stream
            self._tasks[name] = group.create_task(stream.run(session))


async def _lines(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    if response.status != 200:
        raise PrefixFaultError(f"status {response.status}")
    pending = b""
    async for data in response.content.iter_any():
        *lines, pending = (pending + data).split(b"\n")
        if len(pending) > _LINE_BYTES_MAX:
            raise PrefixFaultError("a line without an end")
        for line in lines:
            if line.strip():
                yield line
