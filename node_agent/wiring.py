"""Builds every part of an agent and ties them together; runs nothing.

Holds no policy: what to run, admit or answer is decided in the packages it wires. Called by
`app.py` only.
"""

import socket
import time
import uuid
from dataclasses import dataclass
from importlib import metadata

import aiohttp
from prometheus_client import CollectorRegistry

from manifests.kinds.node import NodeInfo, PressureLevel
from node_agent.api.build import ApiParts, NodeApi, build_api
from node_agent.cache_metrics import CacheCollector
from node_agent.data_dir import DataDir
from node_agent.draft_metrics import DraftCollector
from node_agent.engine.messages import Ask, ChunkMeasured
from node_agent.guard import Guard, GuardListeners, GuardSettings
from node_agent.host.base import Host, HostInfo, HostMemory
from node_agent.host.blas import find_openblas
from node_agent.host.detect import detect_host
from node_agent.host.simulated import SimulatedHost
from node_agent.memory.arbiter import Arbiter
from node_agent.memory.base import Admission
from node_agent.memory.cache_book import CacheBook
from node_agent.memory.cache_budgets import CachePlaces
from node_agent.memory.cache_keeper import CacheKeeper, FreeMemory
from node_agent.memory.enforcer_plan import Action
from node_agent.memory.line import LineRules
from node_agent.memory.stranded_gate import StrandedGate
from node_agent.memory.stranded_plan import Stranded
from node_agent.metrics import (
    CountedAdmission,
    GuardMetrics,
    MemoryCollector,
    MemorySources,
)
from node_agent.pool.cache_side import CacheSide
from node_agent.pool.memory_side import MemorySide
from node_agent.pool.pool import EnginePool
from node_agent.pool.process import Launcher
from node_agent.pool.settings import PoolSettings
from node_agent.server import HttpServer, build_server, find_route_host, plan_address
from node_agent.settings import AgentSettings
from node_agent.sources.content import ContentDigests
from node_agent.sources.resolver import Sources
from node_agent.sync.cache_follower import CacheFollower
from node_agent.sync.client import ApiClient
from node_agent.sync.identity import load_identity
from node_agent.sync.load import LoadSource
from node_agent.sync.register import NodeFacts
from node_agent.sync.sync import Sync, SyncHooks, SyncSettings
from node_agent.text.models import TokenizerPool


@dataclass(frozen=True, slots=True)
class Agent:
    """All parts of one running agent."""

    settings: AgentSettings
    facts: NodeFacts
    pool: EnginePool
    texts: TokenizerPool
    api: NodeApi
    load: LoadSource
    guard: Guard
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
            fused=info.os == "darwin",
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
    arbiter = Arbiter(
        settings.guard,
        fused=facts.info.fused,
        enforced=settings.enforced,
        rules=LineRules(most_waiting=settings.memory_line),
    )
    sources = Sources(digests=ContentDigests(data.digests_file))
    registry, texts = CollectorRegistry(), TokenizerPool()
    metrics = GuardMetrics(registry)
    admission = CountedAdmission(arbiter, metrics)
    keeper = build_keeper(settings, data, arbiter)
    engines = _EngineParts(arbiter, admission, sources, keeper)
    pool, guard = _build_pool(data, host, engines)
    load = LoadSource(facts.name, facts.instance, pool, arbiter, lambda: guard.enforcer.level)
    load.follow_texts(texts.fingerprint)
    api = build_api(
        ApiParts(
            pool=pool,
            admission=admission,
            texts=texts,
            inspector=sources,
            load=load,
            registry=registry,
            monotonic=time.monotonic,
            epoch=time.time,
            memory_wait_seconds=settings.memory_wait_seconds,
        )
    )
    sync = Sync(
        ApiClient(settings.controller_url, session),
        facts,
        pool,
        arbiter,
        SyncSettings(wants_file=data.wants_file, default_guard=settings.guard),
        SyncHooks(
            health=guard.health,
            cleared=guard.panics.follow_annotation,
            guard_changed=lambda: _look_anew(guard, pool),
            caches=CacheFollower(keeper, settings.cache, data.budgets_file),
        ),
    )
    _listen(metrics, pool, guard, sync)
    registry.register(_memory_collector(metrics, pool, arbiter, guard, sync))
    registry.register(CacheCollector(pool))
    registry.register(DraftCollector(pool))
    guard.tell(GuardListeners(sampled=keeper.publish))
    guard.tell(GuardListeners(sampled=api.changes.ring))
    server = build_server(api.asgi)
    return Agent(settings, facts, pool, texts, api, load, guard, sync, server, sock)


def _look_anew(guard: Guard, pool: EnginePool) -> None:
    """Measure under another guard, and let loads that were refused for memory ask again."""
    guard.monitor.wake()
    pool.retry_refused()


def build_keeper(settings: AgentSettings, data: DataDir, arbiter: Arbiter) -> CacheKeeper:
    """Return the keeper of the prefix caches, in sight of the node's memory."""

    def free_memory() -> FreeMemory | None:
        marks = arbiter.watermarks()
        if not arbiter.enforced:
            return None
        state = arbiter.state()
        soft_bytes = 0 if marks is None else marks.soft_bytes
        return FreeMemory(state.headroom_bytes, soft_bytes, state.used_bytes)

    places = CachePlaces(data.cache, data.caches_file)
    return CacheKeeper(CacheBook(places, settings.cache), free_memory)


@dataclass(frozen=True, slots=True)
class _EngineParts:
    """What the pool is built on."""

    arbiter: Arbiter
    admission: Admission
    sources: Sources
    keeper: CacheKeeper


def _build_pool(data: DataDir, host: Host, parts: _EngineParts) -> tuple[EnginePool, Guard]:
    """Return the engines and the guard over them, each knowing the other."""
    built: list[Guard] = []
    arbiter, keeper = parts.arbiter, parts.keeper

    def stranded() -> tuple[Stranded, ...]:
        return built[0].monitor.stranded if built else ()

    def memory() -> HostMemory | None:
        return built[0].monitor.memory if built else None

    def wired_bytes() -> int | None:
        found = memory()
        return None if found is None else found.wired_bytes

    pool = EnginePool(
        PoolSettings(
            log_directory=data.logs,
            launcher=Launcher(preload=find_openblas()),
            fused=arbiter.fused,
        ),
        parts.sources,
        cache=CacheSide(terms=keeper.terms, standing=keeper.book.standing, fault=keeper.book.fault),
        memory=MemorySide(
            admission=StrandedGate(parts.admission, stranded),
            footprint_bytes=arbiter.engine_footprint_bytes,
            wired_bytes=wired_bytes,
            wired_limit_bytes=arbiter.wired_limit_bytes,
        ),
    )
    settings = GuardSettings(panics_file=data.panics_file, hot_cache=keeper)
    guard = Guard(host, pool, arbiter, settings)
    keeper.attach(pool)
    built.append(guard)
    return pool, guard


def _listen(metrics: GuardMetrics, pool: EnginePool, guard: Guard, sync: Sync) -> None:
    """Let metrics and events hear of what the guard and the engines do."""

    def acted(action: Action) -> None:
        metrics.note_action(action)
        sync.news.note_action(action)

    def level_changed(before: PressureLevel, after: PressureLevel) -> None:
        sync.news.note_level(before, after)
        sync.lease.hurry()

    def measured(engine: str, event: ChunkMeasured | Ask) -> None:
        if isinstance(event, ChunkMeasured):
            metrics.note_chunk(engine, event)
        else:
            guard.monitor.wake()

    def sampled() -> None:
        metrics.retain(view.want.name for view in pool.views())

    guard.tell(
        GuardListeners(
            acted=acted,
            level_changed=level_changed,
            sampled=sampled,
            panics_changed=sync.lease.hurry,
        )
    )
    pool.on_memory_event(measured)


def _memory_collector(
    metrics: GuardMetrics, pool: EnginePool, arbiter: Arbiter, guard: Guard, sync: Sync
) -> MemoryCollector:
    """Return the gauges of the guard."""
    sources = MemorySources(
        guard=sync.guard_in_force,
        health=guard.health,
        host=lambda: guard.monitor.memory,
        greatest_ratios=lambda: metrics.greatest_ratios,
    )
    return MemoryCollector(arbiter, pool, sources)
