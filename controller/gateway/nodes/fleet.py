"""The gateway's picture of the fleet: informers for what is declared, load streams for what is.

Owns the picture and the tasks that keep it. When the control plane is down the last picture
stays; a node's own stream says whether the node lives. Called by the handlers and the proxy.
"""

import asyncio
import math
from collections.abc import Callable, Mapping
from typing import TypeVar

import aiohttp

from controller.gateway.nodes.catalog import FleetView, plan_names
from controller.gateway.nodes.endpoints import EndpointView, plan_endpoints
from controller.gateway.nodes.load_stream import LoadStream, StreamLimits
from controller.gateway.settings import GatewaySettings
from manifests.kinds.engine import Engine
from manifests.kinds.meta import FleetObject
from manifests.kinds.model import Model
from manifests.kinds.node import Node
from manifests.kinds.route import Route
from manifests.kinds.route_names import plan_route_names
from manifests.wire.informer import Informer
from manifests.wire.listwatch import ObjectSource

_Kind = TypeVar("_Kind", bound=FleetObject)


class Fleet:
    """Everything routing reads; all methods belong to one event loop."""

    def __init__(
        self, source: ObjectSource, settings: GatewaySettings, clock: Callable[[], float]
    ) -> None:
        """Prepare; `run` fills the picture."""
        self._clock = clock
        self._limits = StreamLimits(
            connect_seconds=min(settings.connect_timeout_seconds, settings.silence_seconds),
            silence_seconds=settings.silence_seconds,
            dead_seconds=settings.dead_seconds,
        )
        self._nodes = Informer(source, "nodes")
        self._models = Informer(source, "models")
        self._engines = Informer(source, "engines")
        self._routes = Informer(source, "routes")
        self._streams: dict[str, LoadStream] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._wake = asyncio.Event()
        self._changed = asyncio.Event()
        self._view: FleetView | None = None
        self._on_declared: list[Callable[[], None]] = []
        self._on_change: list[Callable[[], None]] = []
        self._informers = (self._nodes, self._models, self._engines, self._routes)
        for informer in self._informers:
            informer.subscribe(self._note_declared)

    @property
    def synced(self) -> bool:
        """Whether what is declared has been seen once."""
        return all(informer.synced for informer in self._informers)

    @property
    def node_names(self) -> frozenset[str]:
        """The nodes that are declared."""
        return frozenset(self._nodes.objects)

    def view(self) -> FleetView:
        """Return the picture as it is now; the same value until something changes."""
        if self._view is None or (not self._view.synced and self.synced):
            self._view = self._build()
        return self._view

    async def wait_until(self, met: Callable[[FleetView], bool], seconds: float) -> bool:
        """Wait until the picture meets a condition, for so long at most; tell whether it does."""
        try:
            async with asyncio.timeout(seconds):
                while not met(self.view()):
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True

    def subscribe(self, callback: Callable[[], None]) -> None:
        """Call back soon after declared objects have changed, once for many changes."""
        self._on_declared.append(callback)

    def listen(self, callback: Callable[[], None]) -> None:
        """Call back at once after every change of the picture, reports included."""
        self._on_change.append(callback)

    def is_dead(self, node: str, address: str) -> bool:
        """Whether a node has been down for long; one that is not declared any more is not."""
        stream = self._streams.get(node)
        return stream is not None and stream.address == address and stream.dead

    def silent_seconds(self, node: str, address: str) -> float:
        """Return for how long a node has not reported; for ever when it is not there any more."""
        stream = self._streams.get(node)
        gone = stream is None or stream.address != address
        return math.inf if gone or stream is None else stream.silent_seconds

    async def run(self, session: aiohttp.ClientSession) -> None:
        """Keep the picture current until cancelled."""
        self._streams.clear()
        self._tasks.clear()
        async with asyncio.TaskGroup() as group:
            for informer in self._informers:
                group.create_task(informer.run())
            while True:
                self._wake.clear()
                self._match_streams(group, session)
                for callback in self._on_declared:
                    callback()
                await self._wake.wait()

    def _match_streams(self, group: asyncio.TaskGroup, session: aiohttp.ClientSession) -> None:
        """Make one load stream for each declared node with an address, and no other."""
        wanted = {
            name: node.status.address.rstrip("/")
            for name, node in _typed(self._nodes, Node).items()
            if node.status.address
        }
        for name, stream in tuple(self._streams.items()):
            if wanted.get(name) != stream.address:
                self._tasks.pop(name).cancel()
                del self._streams[name]
        for name in sorted(wanted.keys() - self._streams.keys()):
            stream = LoadStream(name, wanted[name], self._limits, self._clock, self._forget_view)
            self._streams[name] = stream
            self._tasks[name] = group.create_task(stream.run(session))
        self._forget_view()

    def _note_declared(self, _name: str) -> None:
        self._forget_view()
        self._wake.set()

    def _forget_view(self) -> None:
        self._view = None
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        for callback in self._on_change:
            callback()

    def _build(self) -> FleetView:
        models, engines = _typed(self._models, Model), _typed(self._engines, Engine)
        endpoints = tuple(
            item
            for name in sorted(self._streams)
            for item in _endpoints(self._streams[name])
            if not _is_leaving(engines.get(item.key.engine))
        )
        names = plan_names(models, endpoints)
        down = frozenset(name for name, stream in self._streams.items() if stream.down)
        routes = plan_route_names(_typed(self._routes, Route).values())
        told = {name for name, stream in self._streams.items() if stream.seen is not None}
        addressed = {
            name for name, node in _typed(self._nodes, Node).items() if node.status.address
        }
        unheard = frozenset(addressed - told)
        return FleetView(self.synced, endpoints, models, engines, names, down, routes, unheard)


def _endpoints(stream: LoadStream) -> tuple[EndpointView, ...]:
    return () if stream.seen is None else plan_endpoints(stream.seen)


def _is_leaving(engine: Engine | None) -> bool:
    return engine is not None and engine.metadata.deletion_timestamp is not None


def _typed(informer: Informer, kind: type[_Kind]) -> Mapping[str, _Kind]:
    return {name: obj for name, obj in informer.objects.items() if isinstance(obj, kind)}
