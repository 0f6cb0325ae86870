"""The composition root of the agent: builds every part, runs them, stops them in order.

Owns nothing that lives longer than a run. It holds no policy: what to run, admit or answer is
decided in the packages it wires together.
"""

import asyncio
import contextlib
import socket
import time
import uuid
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import aiohttp
import structlog
from prometheus_client import CollectorRegistry

from manifests.node import NodeInfo, PressureLevel
from node_agent.api.build import ApiParts, NodeApi, build_api
from node_agent.data_dir import DataDir
from node_agent.host.base import Host, HostInfo
from node_agent.host.blas import find_openblas
from node_agent.host.detect import detect_host
from node_agent.host.simulated import SimulatedHost
from node_agent.memory.arbiter import Arbiter
from node_agent.metrics import MemoryCollector
from node_agent.monitor import Monitor
from node_agent.pool.pool import EnginePool
from node_agent.pool.process import Launcher
from node_agent.pool.settings import PoolSettings
from node_agent.server import (
    HttpServer,
    build_server,
    find_route_host,
    open_socket,
    plan_address,
)
from node_agent.settings import AgentSettings
from node_agent.sources.resolver import Sources
from node_agent.stopping import StopSignals
from node_agent.sync.client import ApiClient
from node_agent.sync.identity import load_identity
from node_agent.sync.lease import NodeTakenError
from node_agent.sync.load import LoadSource
from node_agent.sync.register import NodeFacts
from node_agent.sync.sync import Sync, SyncSettings
from node_agent.text.models import TokenizerPool

_LOG = structlog.get_logger(__name__)
# After the grace: time for the in-band errors of cut requests to reach their clients.
_LAST_WORDS_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Agent:
    """All parts of one running agent."""

    settings: AgentSettings
    facts: NodeFacts
    pool: EnginePool
    texts: TokenizerPool
    api: NodeApi
    load: LoadSource
    monitor: Monitor
    sync: Sync
    server: HttpServer
    sock: socket.socket


def _version_of(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def describe_node(settings: AgentSettings, info: HostInfo, identity: str, port: int) -> NodeFacts:
    """Return what the agent says of itself; a new instance at every call."""
    address = settings.advertise or plan_address(
        settings.listen.host, port, find_route_host(settings.controller_url)
    )
    return NodeFacts(
        name=settings.name,
        identity=identity,
        instance=uuid.uuid4().hex,
        address=address,
        info=NodeInfo(
            os=info.os,
            arch=info.arch,
            chip=info.chip,
            host=socket.gethostname(),
            agent_version=_version_of("mlxfleet"),
            mlx_version=_version_of("mlx"),
            boot_id=info.boot_id,
            simulated=info.simulated,
        ),
        labels=settings.labels,
    )


def build_host(settings: AgentSettings) -> Host:
    """Return the machine, or the one it stands for. Raises OSError."""
    real = detect_host()
    return real if settings.simulated is None else SimulatedHost(real, settings.simulated)


def build_agent(
    settings: AgentSettings, data: DataDir, sock: socket.socket, session: aiohttp.ClientSession
) -> Agent:
    """Return the parts, wired and not yet running. Raises OSError."""
    host = build_host(settings)
    info = host.info()
    port = int(sock.getsockname()[1])
    facts = describe_node(settings, info, load_identity(data.path, info.machine_id), port)
    sources = Sources()
    pool = EnginePool(
        PoolSettings(log_directory=data.logs, launcher=Launcher(preload=find_openblas())), sources
    )
    arbiter = Arbiter(settings.guard, fused=info.os == "darwin")
    load = LoadSource(facts.name, facts.instance, pool, arbiter)
    registry = CollectorRegistry()
    registry.register(MemoryCollector(arbiter, pool))
    texts = TokenizerPool()
    api = build_api(
        ApiParts(
            pool=pool,
            admission=arbiter,
            texts=texts,
            inspector=sources,
            load=load,
            registry=registry,
            monotonic=time.monotonic,
            epoch=time.time,
        )
    )
    client = ApiClient(settings.controller_url, session)
    sync_settings = SyncSettings(wants_file=data.wants_file, default_guard=settings.guard)
    sync = Sync(client, facts, pool, arbiter, sync_settings)
    pressure = [PressureLevel.OK]

    def after_sample() -> None:
        api.changes.ring()
        level = arbiter.state().pressure
        if level is not pressure[0]:
            _LOG.info("memory pressure changed", level=level.value)
            pressure[0] = level
            sync.lease.hurry()

    monitor = Monitor(host, pool, arbiter, after_sample)
    server = build_server(api.asgi)
    return Agent(settings, facts, pool, texts, api, load, monitor, sync, server, sock)


async def run_agent(settings: AgentSettings, data: DataDir, signals: StopSignals) -> int:
    """Run until asked to stop; return the exit code.

    Raises: ListenError, OSError when the agent cannot start.
    """
    sock = open_socket(settings.listen)
    async with aiohttp.ClientSession() as session:
        agent = build_agent(settings, data, sock, session)
        async with _running(agent) as tasks:
            _LOG.info(
                "agent ready",
                node=agent.facts.name,
                address=agent.facts.address,
                port=sock.getsockname()[1],
                controller=settings.controller_url,
            )
            code = await _watch(tasks, signals)
            await _stop(agent, signals)
    _LOG.info("agent stopped", exit_code=code)
    return code


@contextlib.asynccontextmanager
async def _running(agent: Agent) -> AsyncIterator[dict[str, asyncio.Task[None]]]:
    """Start every loop; on the way out end those that still run."""
    await agent.monitor.sample()
    tasks = {
        "http server": asyncio.create_task(agent.server.serve(sockets=[agent.sock])),
        "memory monitor": asyncio.create_task(agent.monitor.run()),
        "controller sync": asyncio.create_task(agent.sync.run()),
    }
    try:
        yield tasks
    finally:
        for name in ("controller sync", "memory monitor"):
            tasks[name].cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)


async def _watch(tasks: dict[str, asyncio.Task[None]], signals: StopSignals) -> int:
    """Wait for a signal or for the first part that ends by itself; return the exit code."""
    asked = asyncio.create_task(signals.wait_asked())
    done, _ = await asyncio.wait([asked, *tasks.values()], return_when=asyncio.FIRST_COMPLETED)
    asked.cancel()
    for name, task in tasks.items():
        if task not in done:
            continue
        fault = task.exception()
        if isinstance(fault, NodeTakenError):
            _LOG.error(str(fault))
        else:
            _LOG.error(f"{name} ended", exc_info=fault)
        return 1
    return 0


async def _stop(agent: Agent, signals: StopSignals) -> None:
    """Stop in order: no new work, running work out, engines, last words, server."""
    grace = agent.settings.grace_seconds
    agent.api.traffic.drain()
    agent.load.stop_accepting()
    agent.sync.begin_stop()
    agent.api.changes.ring()
    _LOG.info("stopping", in_flight=agent.api.traffic.in_flight, grace_seconds=grace)
    await _first_of(agent.api.traffic.wait_idle(grace), signals.wait_insisted())
    await agent.pool.close(0)
    await agent.api.traffic.wait_idle(_LAST_WORDS_SECONDS)
    await agent.sync.say_stopped()
    agent.api.close()
    await agent.texts.close()
    agent.server.should_exit = True


async def _first_of(*waits: Coroutine[Any, Any, object]) -> None:
    """Wait for one of several things and drop the others."""
    tasks = [asyncio.create_task(wait) for wait in waits]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
