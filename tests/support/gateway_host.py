"""A gateway behind a real uvicorn server, with scripted agents and a scripted API."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import uvicorn
from prometheus_client import CollectorRegistry, generate_latest
from starlette.applications import Starlette

from controller.gateway.app import Gateway, build_gateway
from controller.gateway.settings import GatewaySettings
from tests.support.scripted_agent import ScriptedAgent
from tests.support.scripted_source import ScriptedSource, model, node

QUICK = GatewaySettings(
    connect_timeout_seconds=1.0,
    stall_seconds=2.0,
    # Long, because agents and clients share the gateway's loop here and may hold it up.
    silence_seconds=10.0,
    dead_seconds=0.3,
    settle_seconds=0.1,
    seed=1,
)


@dataclass
class Host:
    """A running gateway and everything around it."""

    gateway: Gateway
    source: ScriptedSource
    registry: CollectorRegistry
    agents: dict[str, ScriptedAgent]
    port: int

    @property
    def url(self) -> str:
        """The base URL for the openai client."""
        return f"http://127.0.0.1:{self.port}/v1"

    def metric(self, name: str, **labels: str) -> float:
        """Return one sample, 0 when there is none."""
        return self.registry.get_sample_value(name, labels) or 0.0

    def scrape(self) -> str:
        """Return the metrics page."""
        return generate_latest(self.registry).decode()

    async def until_open(self, count: int, of: str = "m") -> None:
        """Return once so many endpoints of a model accept requests."""
        await until(lambda: self.gateway.accepting().get(of, 0) == count)

    async def until_idle(self) -> None:
        """Return once nothing is in flight."""
        await until(lambda: self.metric("mlxfleet_gateway_in_flight") == 0)


async def until(holds: Callable[[], Any], seconds: float = 10.0) -> None:
    """Return once a condition holds; fails after a bounded time."""
    async with asyncio.timeout(seconds):
        while not holds():  # noqa: ASYNC110 - many kinds of state, none with an event
            await asyncio.sleep(0.005)


async def until_asked(holds: Callable[[], Awaitable[bool]], seconds: float = 10.0) -> None:
    """The same for a condition that takes a request to find out."""
    async with asyncio.timeout(seconds):
        while not await holds():  # noqa: ASYNC110 - the answer itself is what is waited for
            await asyncio.sleep(0.01)


@asynccontextmanager
async def gateway_host(
    *agents: ScriptedAgent, models: tuple[dict[str, Any], ...] = (), **settings: Any
) -> AsyncIterator[Host]:
    """Run a gateway over these agents; model `m` is declared unless others are given."""
    source, registry = ScriptedSource(), CollectorRegistry()
    for item in models or (model("m"),):
        source.put("models", item)
    for agent in agents:
        await agent.start()
        source.put("nodes", node(agent.node, agent.address))
    gateway = build_gateway(source, registry, replace(QUICK, **settings))
    config = uvicorn.Config(
        Starlette(routes=gateway.routes), port=0, log_level="critical", ws="none", lifespan="off"
    )
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    running = asyncio.create_task(gateway.run())
    try:
        await until(lambda: server.started and gateway.ready)
        port = server.servers[0].sockets[0].getsockname()[1]
        host = Host(gateway, source, registry, {item.node: item for item in agents}, port)
        reporting = sum(len(item.engines) for item in agents)
        await until(lambda: sum(host.gateway.accepting().values()) == reporting)
        yield host
    finally:
        for agent in agents:
            await agent.stop()
        server.should_exit = server.force_exit = True
        running.cancel()
        await asyncio.gather(serving, running, return_exceptions=True)
