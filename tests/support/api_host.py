"""The real controller API in the test's own loop, that can go away and come back.

Objects stay while it is away, as they do when a controller restarts; nothing reconciles, so a
test plays the controller by writing objects itself.
"""

import asyncio
import socket
from typing import Any

import aiohttp

from controller.api.health import Health
from controller.api.routes import ApiParts, api_routes, build_http_app
from controller.http_server import HttpServer
from controller.registry.registry import Registry
from controller.store.memory import MemoryStore
from manifests.kinds.engine import ENGINE_FINALIZER
from manifests.wire.listwatch import RawObject, WatchType


class ApiHost:
    """One API on one port."""

    def __init__(self) -> None:
        self.registry = Registry(MemoryStore())
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = int(probe.getsockname()[1])
        self._session: aiohttp.ClientSession | None = None
        self._stopping = asyncio.Event()
        self._server: HttpServer | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    async def start(self) -> None:
        """Listen again on the same port."""
        self._session = aiohttp.ClientSession()
        self._stopping = asyncio.Event()
        parts = ApiParts(self.registry, self._session, self._stopping)
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self._port))
        listener.listen(64)
        self._server = HttpServer(build_http_app(Health({}), api_routes(parts)), 1)
        self._task = asyncio.create_task(self._server.serve(sockets=[listener]))

    async def stop(self) -> None:
        """Close the port and end the watches."""
        if self._server is None or self._task is None or self._session is None:
            return
        self._stopping.set()
        self._server.should_exit = True
        await self._task
        await self._session.close()
        self._server = None

    async def add_engine(self, name: str, node: str, path: str = "/nowhere") -> RawObject:
        """Bind a new engine to a node, as the controller does."""
        spec = {"model": "tiny", "node": node, "revision": "1", "source": {"path": path}}
        return await self.registry.create(
            "engines",
            {
                "apiVersion": "mlxfleet.dev/v1alpha1",
                "kind": "Engine",
                "metadata": {"name": name, "finalizers": [ENGINE_FINALIZER]},
                "spec": spec,
            },
        )

    async def wait(self, plural: str, name: str, met: Any, seconds: float = 20.0) -> RawObject:
        """Return an object once `met(it, or None when it is gone)`; never sleeps."""
        async with asyncio.timeout(seconds):
            listed = await self.registry.list_objects(plural)
            found = next((o for o in listed.items if o["metadata"]["name"] == name), None)
            if met(found):
                return found or {}
            version = listed.resource_version
            async for event in self.registry.watch_objects(plural, resource_version=version):
                if event.object["metadata"].get("name") == name:
                    state = None if event.type is WatchType.DELETED else event.object
                    if met(state):
                        return state or {}
        raise AssertionError("the watch ended")

    async def wait_any(self, plural: str, met: Any, seconds: float = 20.0) -> RawObject:
        """Return the first object of a kind that is as wanted."""
        async with asyncio.timeout(seconds):
            listed = await self.registry.list_objects(plural)
            for item in listed.items:
                if met(item):
                    return item
            version = listed.resource_version
            async for event in self.registry.watch_objects(plural, resource_version=version):
                if event.type in {WatchType.ADDED, WatchType.MODIFIED} and met(event.object):
                    return event.object
        raise AssertionError("the watch ended")


def condition(obj: RawObject | None, type_: str) -> tuple[str, str]:
    """Return a condition's status and reason."""
    for item in ((obj or {}).get("status") or {}).get("conditions") or []:
        if item["type"] == type_:
            return item["status"], item["reason"]
    return "", ""
