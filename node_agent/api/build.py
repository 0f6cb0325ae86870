"""Puts the agent's HTTP side together; called once by the agent's app.

The app runs `NodeApi.asgi` under a server, calls `traffic.drain()` and `traffic.wait_idle()`
before it stops, and `close()` to end the open streams.
"""

from collections.abc import Callable
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Gauge
from starlette.applications import Starlette
from starlette.routing import BaseRoute

from node_agent.api.answers import KEEP_ALIVE_SECONDS
from node_agent.api.body import MAX_BODY_BYTES
from node_agent.api.changes import Changes
from node_agent.api.errors import ERROR_HANDLERS
from node_agent.api.fleet_routes import FleetRoutes, Inspector, LoadSource
from node_agent.api.health import HealthRoutes
from node_agent.api.metrics import EngineCollector, ServingMetrics
from node_agent.api.openai_routes import OpenAIRoutes, OpenAISettings
from node_agent.api.prefix_routes import PrefixRoutes
from node_agent.api.tokenizer_routes import TokenizerRoutes
from node_agent.api.traffic import Traffic
from node_agent.memory.base import Admission
from node_agent.pool.base import Pool
from node_agent.serving.completion import MEMORY_WAIT_SECONDS, Completions
from node_agent.text.models import TextModels


@dataclass(frozen=True, slots=True)
class ApiParts:
    """What the HTTP side stands on. Units: bytes, seconds."""

    pool: Pool
    admission: Admission
    texts: TextModels
    inspector: Inspector
    load: LoadSource
    registry: CollectorRegistry
    monotonic: Callable[[], float]
    epoch: Callable[[], float]
    max_body_bytes: int = MAX_BODY_BYTES
    keep_alive_seconds: float = KEEP_ALIVE_SECONDS
    memory_wait_seconds: float = MEMORY_WAIT_SECONDS


@dataclass(frozen=True, slots=True)
class NodeApi:
    """The agent's HTTP side. Ring `changes` when load changed outside the pool."""

    asgi: Starlette
    traffic: Traffic
    changes: Changes

    def close(self) -> None:
        """End the load and log streams."""
        self.changes.close()


def build_api(parts: ApiParts) -> NodeApi:
    """Return the HTTP side. Mutates: subscribes to the pool, registers metrics."""
    metrics = ServingMetrics(parts.registry)
    parts.registry.register(EngineCollector(parts.pool))
    traffic = Traffic(metrics.record)
    changes = Changes()
    gauge = Gauge(
        "mlxfleet_node_requests_in_flight", "Requests under way.", registry=parts.registry
    )
    gauge.set_function(lambda: traffic.in_flight)

    def changed() -> None:
        views = parts.pool.views()
        metrics.retain(view.want.spec.model for view in views)
        parts.texts.retain(view.files for view in views if view.files is not None)
        changes.ring()

    changed()
    parts.pool.on_change(changed)
    app = Starlette(routes=build_routes(parts, traffic, changes), exception_handlers=ERROR_HANDLERS)
    app.router.redirect_slashes = False
    return NodeApi(app, traffic, changes)


def build_routes(parts: ApiParts, traffic: Traffic, changes: Changes) -> list[BaseRoute]:
    """Return every route of the agent."""
    completions = Completions(
        parts.pool,
        parts.admission,
        parts.texts,
        parts.monotonic,
        parts.epoch,
        parts.memory_wait_seconds,
    )
    settings = OpenAISettings(parts.max_body_bytes, parts.keep_alive_seconds)
    openai = OpenAIRoutes(parts.pool, completions, traffic, settings)
    fleet = FleetRoutes(parts.pool, parts.load, parts.inspector, changes)
    health = HealthRoutes(parts.pool, traffic, parts.registry)
    prefixes = PrefixRoutes(parts.pool, changes)
    tokenizers = TokenizerRoutes(parts.texts)
    return [
        *openai.routes(),
        *fleet.routes(),
        *prefixes.routes(),
        *tokenizers.routes(),
        *health.routes(),
    ]
