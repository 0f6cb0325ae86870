"""The API as one ASGI application: discovery, resources, logs, plans, health.

Owns the order of routes and the form of every refusal. Called by `controller/app.py`.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from controller.api import discovery
from controller.api.health import Health
from controller.api.logs import EngineLogs
from controller.api.middleware import AuditLog, SameWithoutSlash
from controller.api.planning import Planner, Planning
from controller.api.reading import Reader
from controller.api.resources import Resources
from controller.api.responses import answer, on_api_error, on_fault, on_http_exception
from controller.registry.registry import Registry
from manifests.kinds.meta import API_VERSION, GROUP
from manifests.wire.status import ApiError


@dataclass(frozen=True, slots=True)
class ApiParts:
    """What the API is made of. `clock` tells seconds since the epoch."""

    registry: Registry
    session: aiohttp.ClientSession
    stopping: asyncio.Event
    planner: Planner | None = None
    clock: Callable[[], float] = field(default=time.time)


def api_routes(parts: ApiParts) -> list[BaseRoute]:
    """Return the routes of the api role."""
    reader = Reader(parts.registry, parts.stopping, parts.clock)
    return [
        _constant("/version", discovery.describe_version()),
        _constant("/api", discovery.describe_core()),
        _constant("/apis", discovery.describe_groups()),
        _constant(f"/apis/{GROUP}", discovery.describe_group()),
        _constant(f"/apis/{API_VERSION}", discovery.describe_resources()),
        *EngineLogs(parts.registry, parts.session, parts.stopping).routes(),
        *Resources(parts.registry, reader).routes(),
        *Planning(parts.planner).routes(),
    ]


def build_http_app(health: Health, routes: Sequence[BaseRoute]) -> Starlette:
    """Return the application that one server runs."""
    app = Starlette(
        routes=[*health.routes(), *routes],
        middleware=[Middleware(SameWithoutSlash), Middleware(AuditLog)],
        exception_handlers={
            ApiError: on_api_error,
            HTTPException: on_http_exception,
            Exception: on_fault,
        },
    )
    app.router.redirect_slashes = False
    return app


def _constant(path: str, body: dict[str, Any]) -> Route:
    async def respond(_request: Request) -> Response:
        return answer(body)

    return Route(path, respond, methods=["GET"])
