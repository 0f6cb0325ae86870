"""One node's load stream: connect, read reports, notice silence, come back.

Owns the connection and the node's health. Called by `fleet`, one instance a node address.
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass

import aiohttp
import structlog
from pydantic import ValidationError

from controller.gateway.nodes.endpoints import NodeReport
from controller.gateway.nodes.health import Health, Phase, StreamEvent, transition
from controller.gateway.nodes.link_watch import watch_link
from manifests.sizing.shape import ModelShape
from manifests.wire.report import LOAD_PATH, LoadReport, fill_in_shapes, shapes_of

_LOG = structlog.get_logger(__name__)

_LINE_BYTES_MAX = 4 * 1024 * 1024
_BACKOFF_SECONDS = 0.1
_BACKOFF_SECONDS_MAX = 2.0


class StreamFaultError(Exception):
    """The load stream said something that cannot be trusted."""


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """Units: seconds."""

    connect_seconds: float
    silence_seconds: float
    dead_seconds: float


class LoadStream:
    """Follows one node until cancelled; all methods belong to one event loop."""

    def __init__(
        self,
        node: str,
        address: str,
        limits: StreamLimits,
        clock: Callable[[], float],
        on_change: Callable[[], None],
    ) -> None:
        """Prepare; `run` connects. `on_change` is called after every report and loss."""
        self.node, self.address = node, address
        self._limits, self._clock, self._on_change = limits, clock, on_change
        self._health = Health()
        self._report: LoadReport | None = None
        self._shapes: dict[str, ModelShape] = {}
        self._received_seconds = 0.0

    @property
    def seen(self) -> NodeReport | None:
        """The last report and whether the node may be routed to, or None before the first."""
        if self._report is None:
            return None
        return NodeReport(
            self.node, self.address, self._report, self._received_seconds, self._health.routable
        )

    @property
    def down(self) -> bool:
        """Whether the node was seen and does not answer now."""
        return self._health.phase is Phase.DOWN

    @property
    def dead(self) -> bool:
        """Whether the node has been down for long."""
        return self.down and self._health.down_for(self._clock()) >= self._limits.dead_seconds

    @property
    def silent_seconds(self) -> float:
        """How long ago the last report came; 0 before the first."""
        return 0.0 if self._report is None else self._clock() - self._received_seconds

    async def run(self, session: aiohttp.ClientSession) -> None:
        """Follow the node until cancelled."""
        while True:
            event = await self._follow(session)
            first = self._health.phase is Phase.LIVE and event is StreamEvent.LOST
            self._note(event)
            if not first:
                await asyncio.sleep(self._backoff_seconds())

    async def _follow(self, session: aiohttp.ClientSession) -> StreamEvent:
        """Read one connection to its end and tell how it ended."""
        timeout = aiohttp.ClientTimeout(
            total=None,
            sock_connect=self._limits.connect_seconds,
            sock_read=self._limits.silence_seconds,
        )
        try:
            async with session.get(self.address + LOAD_PATH, timeout=timeout) as response:
                with watch_link(response):
                    await self._read_lines(response)
        except TimeoutError:
            return StreamEvent.SILENT
        except (aiohttp.ClientError, OSError, ValueError, StreamFaultError) as fault:
            _LOG.debug("load_stream_lost", node=self.node, error=type(fault).__name__)
        return StreamEvent.LOST

    async def _read_lines(self, response: aiohttp.ClientResponse) -> None:
        if response.status != 200:
            raise StreamFaultError(f"status {response.status}")
        pending = b""
        self._shapes = {}
        async for data in response.content.iter_any():
            *lines, pending = (pending + data).split(b"\n")
            if len(pending) > _LINE_BYTES_MAX:
                raise StreamFaultError("a report without an end")
            for line in lines:
                if line.strip():
                    self._take(line)

    def _take(self, line: bytes) -> None:
        try:
            report = LoadReport.model_validate_json(line)
        except ValidationError as fault:
            raise StreamFaultError("a report that cannot be read") from fault
        if report.node != self.node:
            # Another machine got this address; its engines are not this node's.
            raise StreamFaultError(f"the address answers for node {report.node}")
        report = fill_in_shapes(report, self._shapes)
        self._shapes = shapes_of(report)
        self._report, self._received_seconds = report, self._clock()
        self._note(StreamEvent.REPORT)

    def _note(self, event: StreamEvent) -> None:
        before = self._health.phase
        self._health = transition(self._health, event, self._clock())
        after = self._health.phase
        if after is not before:
            _LOG.info("node_" + after.value, node=self.node, cause=event.value)
        self._on_change()

    def _backoff_seconds(self) -> float:
        most = min(_BACKOFF_SECONDS * 2.0 ** min(self._health.losses, 8), _BACKOFF_SECONDS_MAX)
        return most * (0.5 + 0.5 * random.random())
