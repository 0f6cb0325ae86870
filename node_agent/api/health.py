"""Whether the process lives, and whether its engines make progress."""

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from manifests.kinds.engine import EnginePhase
from node_agent.api.traffic import Traffic
from node_agent.pool.base import EngineView, Pool


def stuck_engines(views: tuple[EngineView, ...]) -> list[str]:
    """Return the engines that should answer and do not. Pure."""
    return [
        view.want.name
        for view in views
        if view.phase is EnginePhase.READY and not view.making_progress
    ]


class HealthRoutes:
    """Liveness, readiness and metrics."""

    def __init__(self, pool: Pool, traffic: Traffic, registry: CollectorRegistry) -> None:
        self._pool, self._traffic, self._registry = pool, traffic, registry

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("/healthz", self._live, methods=["GET"]),
            Route("/readyz", self._ready, methods=["GET"]),
            Route("/metrics", self._metrics, methods=["GET"]),
        ]

    async def _live(self, _: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def _ready(self, _: Request) -> Response:
        stuck = stuck_engines(self._pool.views())
        draining = self._traffic.draining
        ready = not stuck and not draining
        body = {
            "status": "ok" if ready else "not ready",
            "draining": draining,
            "stuckEngines": stuck,
        }
        return JSONResponse(body, status_code=200 if ready else 503)

    async def _metrics(self, _: Request) -> Response:
        return Response(generate_latest(self._registry), media_type=CONTENT_TYPE_LATEST)
