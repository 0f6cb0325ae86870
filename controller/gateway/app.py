"""The gateway put together: routes to mount, a task to run, whether it is ready.

Called by `controller/app.py`, which also serves `/metrics` from the same registry.
"""

import asyncio
import time
from collections.abc import Callable, Mapping

from prometheus_client import CollectorRegistry
from starlette.routing import Route
from starlette.types import ASGIApp

from controller.gateway.counting.prompts import Prompts
from controller.gateway.explain_route import Explain
from controller.gateway.handlers import Completions, HandlerParts, ModelList, UnknownPath
from controller.gateway.keys.door import Door
from controller.gateway.keys.quotas import Quotas
from controller.gateway.keys.usage_writer import UsageWriter
from controller.gateway.nodes.fleet import Fleet
from controller.gateway.proxy import Proxy, ProxyParts
from controller.gateway.sending.upstream import Upstream
from controller.gateway.settings import GatewaySettings
from controller.key_metrics import KeyMetrics
from controller.metrics import EndpointCollector, GatewayMetrics, PromptMetrics
from controller.runtime.objects import Objects
from manifests.wire.explain import EXPLAIN_PATH
from manifests.wire.informer import Informer


class Gateway:
    """The fleet's OpenAI endpoint."""

    def __init__(
        self, parts: HandlerParts, upstream: Upstream, keys: Informer, usage: UsageWriter
    ) -> None:
        """Wire the routes; nothing runs until `run`."""
        self._fleet, self._upstream, self._metrics = parts.fleet, upstream, parts.metrics
        self._keys, self._usage, self._prompts = keys, usage, parts.prompts
        completions, models, unknown = Completions(parts), ModelList(parts), UnknownPath(parts)
        # What is asked most, for a server that can spare it the way through the routes.
        self.direct: dict[str, ASGIApp] = {
            "/v1/chat/completions": completions,
            "/v1/completions": completions,
        }
        self.routes: list[Route] = [
            *(Route(path, app) for path, app in self.direct.items()),
            Route(EXPLAIN_PATH, Explain(completions, parts.proxy, parts.clock)),
            Route("/v1/models", models),
            Route("/v1/models/{id:path}", models),
            Route("/v1", unknown),
            Route("/v1/{rest:path}", unknown),
        ]
        self._fleet.subscribe(self._bound_labels)

    @property
    def prompts(self) -> Prompts:
        """What is known of prompts and cached prefixes."""
        return self._prompts

    @property
    def ready(self) -> bool:
        """Whether the gateway has seen what is declared."""
        return self._fleet.synced and self._keys.synced

    async def hear(self, seconds: float) -> None:
        """Wait until it also knows what every node has to say, for so long at most."""
        await self._fleet.wait_until(lambda view: self.ready and not view.unheard, seconds)

    async def run(self) -> None:
        """Follow the fleet and hold connections to agents until cancelled.

        Cancel it after the HTTP server has finished its requests: they use the connections.
        """
        async with self._upstream.open() as session, asyncio.TaskGroup() as group:
            group.create_task(self._keys.run())
            group.create_task(self._usage.run())
            group.create_task(self._fleet.run(session))
            group.create_task(self._prompts.run(session))

    def accepting(self) -> Mapping[str, int]:
        """Return how many endpoints of each model accept requests now."""
        view = self._fleet.view()
        counts = dict.fromkeys(view.names.values(), 0)
        for item in view.endpoints:
            counts[item.model] += item.accepting
        return counts

    def _bound_labels(self) -> None:
        view = self._fleet.view()
        self._metrics.keep_labels(frozenset(view.names.values()), self._fleet.node_names)


def build_gateway(
    objects: Objects,
    registry: CollectorRegistry,
    settings: GatewaySettings | None = None,
    *,
    clock: Callable[[], float] = time.monotonic,
    epoch: Callable[[], float] = time.time,
) -> Gateway:
    """Return a gateway over the declared objects. `clock` is monotonic."""
    settings = settings or GatewaySettings()
    metrics = GatewayMetrics(registry)
    fleet, upstream = Fleet(objects, settings, clock), Upstream(settings)
    proxy = Proxy(ProxyParts(settings, fleet, upstream, metrics, clock))
    keys, quotas = Informer(objects, "apikeys"), Quotas(clock, epoch)
    door = Door(keys, quotas, KeyMetrics(registry), epoch, require_key=settings.require_key)
    prompts = Prompts(fleet, settings, PromptMetrics(registry, metrics.stages), clock)
    parts = HandlerParts(settings, fleet, proxy, door, prompts, metrics, clock, int(epoch()))
    usage = UsageWriter(objects, quotas, settings.usage_seconds)
    gateway = Gateway(parts, upstream, keys, usage)
    registry.register(EndpointCollector(gateway.accepting))
    return gateway
