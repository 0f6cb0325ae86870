"""The OpenAI routes of one node: models, chat completions, completions."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

import structlog
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from manifests.errors import Code, FleetError, Refusal, RequestError
from manifests.kinds.engine import EnginePhase
from manifests.wire.continuation import (
    CONTINUE_PATH,
    HEAD_BYTES_MAX,
    TELL,
    TELL_HEADER,
    unpack,
)
from manifests.wire.elapsed import ELAPSED_HEADER, parse_elapsed
from manifests.wire.gateway import MODEL_HEADER, USAGE_HEADER
from node_agent.api.answers import Manner, RunResponse
from node_agent.api.body import parse_body, read_bytes
from node_agent.api.disconnect import until_gone
from node_agent.api.traffic import Outcome, Ticket, Traffic
from node_agent.pool.base import EngineView, Pool
from node_agent.serving.cache_keys import find_tenant, wants_isolation
from node_agent.serving.completion import Completions
from node_agent.serving.continuing import continue_request, greeted_rows
from node_agent.serving.dialect import parse_chat, parse_completions
from node_agent.serving.request import GenerationRequest
from node_agent.serving.sse import encode_json

_LOG = structlog.get_logger(__name__)
_LOGGED_NAMES = 64
_CLIENT_CLOSED = 499

Read = Callable[[Request], Awaitable[GenerationRequest]]
_PARSE: dict[str, Callable[[dict[str, Any]], GenerationRequest]] = {
    "/v1/chat/completions": parse_chat,
    "/v1/completions": parse_completions,
}


@dataclass(frozen=True, slots=True)
class OpenAISettings:
    """Units: bytes, seconds."""

    max_body_bytes: int
    keep_alive_seconds: float


class OpenAIRoutes:
    """Handlers over a pool; no state but which unknown fields were logged."""

    def __init__(
        self, pool: Pool, completions: Completions, traffic: Traffic, settings: OpenAISettings
    ) -> None:
        self._pool = pool
        self._completions = completions
        self._traffic = traffic
        self._settings = settings
        self._logged: set[str] = set()

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("/v1/models", self._list_models, methods=["GET"]),
            Route("/v1/models/{name:path}", self._get_model, methods=["GET"]),
            Route("/v1/chat/completions", self._chat, methods=["POST"]),
            Route("/v1/completions", self._complete, methods=["POST"]),
            Route(CONTINUE_PATH, self._continue, methods=["POST"]),
        ]

    async def _list_models(self, _: Request) -> Response:
        models = public_models(self._pool.views())
        data = [_model_body(name, view) for name, view in sorted(models.items())]
        return _json({"object": "list", "data": data})

    async def _get_model(self, request: Request) -> Response:
        name = request.path_params["name"]
        view = public_models(self._pool.views()).get(name)
        if view is None:
            message = "This node serves no model of that name."
            raise RequestError(
                Refusal(Code.MODEL_NOT_FOUND, message, hint="See GET /v1/models.", param="model")
            )
        return _json(_model_body(name, view))

    async def _chat(self, request: Request) -> Response:
        return await self._generate(request, self._read_request)

    async def _complete(self, request: Request) -> Response:
        return await self._generate(request, self._read_request)

    async def _continue(self, request: Request) -> Response:
        return await self._generate(request, self._read_continuation)

    async def _read_request(self, request: Request) -> GenerationRequest:
        body = await read_bytes(request, self._settings.max_body_bytes)
        return await parse_body(body, _PARSE[request.url.path])

    async def _read_continuation(self, request: Request) -> GenerationRequest:
        most_bytes = self._settings.max_body_bytes + HEAD_BYTES_MAX
        try:
            head, body = unpack(await read_bytes(request, most_bytes))
            parse = _PARSE[head.path]
        except (ValueError, KeyError) as fault:
            message = str(fault) if isinstance(fault, ValueError) else "There is no such path."
            raise RequestError(Refusal(Code.INVALID_VALUE, message, param="path")) from None
        return continue_request(await parse_body(body, parse), head)

    async def _generate(self, request: Request, read: Read) -> Response:
        ticket = self._traffic.begin()
        try:
            return await self._answer(request, read, ticket)
        except FleetError as error:
            ticket.end(Outcome(error.refusal.code.value))
            raise
        except BaseException:
            ticket.end(Outcome(Code.INTERNAL.value))
            raise

    async def _answer(self, request: Request, read: Read, ticket: Ticket) -> Response:
        generation = replace(
            await read(request),
            tenant=find_tenant(request.headers),
            isolated=wants_isolation(request.headers),
            served_model=request.headers.get(MODEL_HEADER, ""),
            elapsed_seconds=parse_elapsed(request.headers.get(ELAPSED_HEADER)),
        )
        self._log_unknown(generation.unknown_fields)
        view = public_models(self._pool.views()).get(generation.lease_name)
        ticket.model = view.want.spec.model if view is not None else None
        run = await until_gone(request.receive, self._completions.open(generation))
        if run is None:
            ticket.end(Outcome("cancelled"))
            return Response(status_code=_CLIENT_CLOSED)
        return RunResponse(
            run,
            ticket,
            Manner(
                stream=generation.stream,
                keep_alive_seconds=self._settings.keep_alive_seconds,
                tells_usage=request.headers.get(USAGE_HEADER, ""),
                tells=request.headers.get(TELL_HEADER) == TELL,
                greeted=greeted_rows(generation),
            ),
        )

    def _log_unknown(self, names: tuple[str, ...]) -> None:
        for name in names:
            if name not in self._logged and len(self._logged) < _LOGGED_NAMES:
                self._logged.add(name)
                _LOG.info("unknown_request_field_ignored", field=name[:64])


def public_models(views: tuple[EngineView, ...]) -> dict[str, EngineView]:
    """Return every name a client may use here with the best engine behind it.

    An engine that was unloaded to make room is still served: a request brings it back.
    """
    models: dict[str, EngineView] = {}
    leaving = {EnginePhase.DRAINING, EnginePhase.STOPPED}
    for view in views:
        if view.phase in leaving and not view.wakes:
            continue
        for name in (view.want.spec.model, *view.want.spec.aliases):
            if name not in models or view.accepting:
                models[name] = view
    return models


def _model_body(name: str, view: EngineView) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": int(view.started_epoch_seconds or 0),
        "owned_by": "mlxfleet",
        "ready": view.accepting,
    }


def _json(body: dict[str, Any]) -> Response:
    return Response(encode_json(body), media_type="application/json")
