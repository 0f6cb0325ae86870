"""The composition root: one place that builds the store, registry, API, reconcilers, gateway.

Owns the order of start and stop. Stop: not ready, watches end, requests finish, background
tasks end, store closes. Called by `__main__`.
"""

import asyncio
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import aiohttp
import structlog
from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from controller.api.health import Check, Health
from controller.api.planning import Planner
from controller.api.routes import ApiParts, api_routes, build_http_app
from controller.front import Front
from controller.gateway.app import Gateway, build_gateway
from controller.http_server import HttpServer, base_url
from controller.metrics import MetricsPage, ReconcileMetrics
from controller.reconcile.app import Reconcilers, build_controllers
from controller.registry.registry import Registry
from controller.runtime.objects import Objects
from controller.runtime.remote import RemoteObjects
from controller.settings import DATABASE_NAME, Role, Settings, StoreSettings
from controller.store.base import Store
from controller.store.memory import MemoryStore
from controller.store.sqlite import SqliteStore
from manifests.kinds.model import Model
from manifests.wire.plan import PlanReport
from manifests.wire.status import ApiError

_LOG = structlog.get_logger(__name__)
_RESTART_SECONDS = (1.0, 30.0)
_HEAR_SECONDS = 5.0
_LOOPBACK = ("127.", "::1", "localhost")


async def open_store(settings: StoreSettings) -> Store:
    """Open the store. Raises: StoreUnreadableError, OSError."""
    if settings.data_dir is None:
        return MemoryStore(history_changes=settings.history_changes)
    settings.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = settings.data_dir / DATABASE_NAME
    return await SqliteStore.open(path, history_changes=settings.history_changes)


@dataclass(frozen=True, slots=True)
class Background:
    """A task of the app, run again with backoff if it fails."""

    name: str
    run: Callable[[], Awaitable[None]]

    async def supervise(self) -> None:
        """Run until cancelled."""
        least, most = _RESTART_SECONDS
        delay = least
        while True:
            started = asyncio.get_running_loop().time()
            try:
                await self.run()
                _LOG.error("background task ended", task=self.name)
            except Exception:  # noqa: BLE001 - task root: the rest of the process goes on
                _LOG.exception("background task failed", task=self.name)
            if asyncio.get_running_loop().time() - started > most:
                delay = least
            await asyncio.sleep(delay)
            delay = min(most, delay * 2)


class ControllerApp:
    """One controller process, between its bound socket and its exit."""

    def __init__(self, settings: Settings, bound: socket.socket) -> None:
        self._settings, self._bound = settings, bound
        self._stopping = asyncio.Event()
        self._checks: dict[str, Check] = {}
        self._health = Health(self._checks)
        self._routes: list[BaseRoute] = []
        self._direct: dict[str, ASGIApp] = {}
        self._hear: Callable[[float], Coroutine[Any, Any, None]] = _hear_nobody
        self._background: list[Background] = []
        self._server: HttpServer | None = None

    def stop(self) -> None:
        """Begin to stop; a second call does not wait for running requests."""
        if self._stopping.is_set() and self._server is not None:
            self._server.force_exit = True
        self._health.draining = True
        self._stopping.set()

    async def run(self) -> None:
        """Serve until stopped. Raises: StoreUnreadableError, OSError before it serves."""
        async with AsyncExitStack() as stack:
            session = await stack.enter_async_context(aiohttp.ClientSession())
            metrics = CollectorRegistry()
            ProcessCollector(registry=metrics)
            PlatformCollector(registry=metrics)
            registry, objects = await self._open_objects(stack, session)
            planner = self._add_reconcilers(objects, session, metrics)
            if registry is not None:
                self._add_api(registry, session, planner)
            if Role.GATEWAY in self._settings.roles:
                self._add_gateway(build_gateway(objects, metrics, self._settings.gateway))
            self._routes.append(Route("/metrics", MetricsPage(metrics), methods=["GET"]))
            await self._serve()

    async def _open_objects(
        self, stack: AsyncExitStack, session: aiohttp.ClientSession
    ) -> tuple[Registry | None, Objects]:
        """Return the registry when the api role runs here, and what the other roles use."""
        if self._settings.api_url is not None:
            return None, RemoteObjects(session, self._settings.api_url)
        store = await open_store(self._settings.store)
        stack.push_async_callback(store.close)
        registry = Registry(store)

        async def answers() -> str:
            await store.revision()
            return ""

        self._checks["store"] = answers
        return registry, registry

    def _add_api(
        self, registry: Registry, session: aiohttp.ClientSession, planner: Planner | None
    ) -> None:
        parts = ApiParts(registry, session, self._stopping, planner)
        self._routes += api_routes(parts)

    def _add_reconcilers(
        self, objects: Objects, session: aiohttp.ClientSession, metrics: CollectorRegistry
    ) -> Planner | None:
        if Role.RECONCILE not in self._settings.roles:
            return None
        reconcilers = build_controllers(objects, session, self._settings.reconcile)
        passes = ReconcileMetrics(metrics)
        for controller in reconcilers.controllers:
            controller.on_pass(passes.observe_pass)
        self._background.append(Background("reconcile", reconcilers.run))
        self._checks["reconcile"] = _synced(lambda: reconcilers.synced)
        return _planner(reconcilers)

    def _add_gateway(self, gateway: Gateway) -> None:
        self._routes += gateway.routes
        self._direct.update(gateway.direct)
        self._background.append(Background("gateway", gateway.run))
        self._checks["gateway"] = _synced(lambda: gateway.ready)
        self._hear = gateway.hear

    async def _serve(self) -> None:
        """Run the server and the background tasks; the tasks outlive the last request."""
        app = Front(self._direct, build_http_app(self._health, self._routes))
        self._server = HttpServer(app, self._settings.shutdown.grace_seconds)
        tasks = [asyncio.create_task(item.supervise()) for item in self._background]
        if self._settings.shared_port:
            # Until it knows the fleet, the other workers have the port's connections.
            hearing = asyncio.create_task(self._hear(_HEAR_SECONDS))
            stopped = asyncio.create_task(self._stopping.wait())
            await asyncio.wait({hearing, stopped}, return_when=asyncio.FIRST_COMPLETED)
            hearing.cancel()
            stopped.cancel()
        serving = asyncio.create_task(self._server.serve(sockets=[self._bound]))
        stopping = asyncio.create_task(self._stopping.wait())
        _announce(self._settings, self._bound)
        try:
            await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not serving.done():
                _LOG.info("stopping")
                await asyncio.sleep(self._settings.shutdown.drain_seconds)
            self._server.should_exit = True
            await serving
        finally:
            for task in (stopping, *tasks):
                task.cancel()
            await asyncio.gather(stopping, *tasks, return_exceptions=True)
            _LOG.info("stopped")


async def _hear_nobody(_seconds: float) -> None:
    """Return at once: without the gateway role there is no fleet to know."""


def _synced(read: Callable[[], bool]) -> Check:
    async def check() -> str:
        return "" if read() else "still reading what is declared"

    return check


def _planner(reconcilers: Reconcilers) -> Planner:
    async def plan(models: Sequence[Model]) -> PlanReport:
        if not reconcilers.synced:
            raise ApiError(503, "the controller is still reading what is declared; try again")
        return await reconcilers.plan_models(models)

    return plan


def _announce(settings: Settings, bound: socket.socket) -> None:
    url = base_url(bound)
    _LOG.info("listening", url=url, roles=sorted(role.value for role in settings.roles))
    if not settings.listen.host.startswith(_LOOPBACK):
        _LOG.warning("the API asks for no credentials: whoever reaches it can change the fleet")


async def run_controller(settings: Settings, bound: socket.socket) -> None:
    """Run one controller until SIGTERM or SIGINT."""
    app = ControllerApp(settings, bound)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, app.stop)
    if settings.shared_port:
        _stop_with_parent(app, loop)
    await app.run()


def _stop_with_parent(app: ControllerApp, loop: asyncio.AbstractEventLoop) -> None:
    """Stop once standard input ends: it is a pipe from the parent, which writes nothing."""
    source = sys.stdin.fileno()

    def ended() -> None:
        loop.remove_reader(source)
        app.stop()

    loop.add_reader(source, ended)
