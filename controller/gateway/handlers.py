"""The OpenAI routes as raw ASGI applications: check, peek, resolve, hand to the proxy.

Every path answers in OpenAI's error form and is counted once. No prompt text is logged.
"""

import traceback
from collections.abc import Callable
from dataclasses import dataclass

import structlog
from starlette.types import Receive, Scope, Send

from controller.gateway.asgi import ClientLeftError, Downstream, Inbound
from controller.gateway.attempts import Broken, Finished
from controller.gateway.catalog import list_models, resolve
from controller.gateway.exchange import Exchange
from controller.gateway.fleet import Fleet
from controller.gateway.headers import text_of
from controller.gateway.peek import peek, shown_name
from controller.gateway.prompts import Prompts
from controller.gateway.proxy import Proxy
from controller.gateway.settings import GatewaySettings
from controller.metrics import GatewayMetrics
from manifests.errors import Code, Refusal
from manifests.wire.tenant import name_tenant

_LOG = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class HandlerParts:
    """What the handlers work with."""

    settings: GatewaySettings
    fleet: Fleet
    proxy: Proxy
    prompts: Prompts
    metrics: GatewayMetrics
    clock: Callable[[], float]
    created_seconds: int


def refuse_method(method: str, allowed: str) -> Refusal:
    """Return the refusal of a method that a path does not have."""
    return Refusal(
        Code.METHOD_NOT_ALLOWED, f"Not allowed: {shown_name(method)}.", hint=f"Use {allowed}."
    )


class Completions:
    """`POST /v1/chat/completions` and `POST /v1/completions`."""

    def __init__(self, parts: HandlerParts) -> None:
        self._parts = parts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request and count it, however it ends."""
        inbound = Inbound.from_scope(scope, receive)
        down = Downstream(send, inbound.request_id, self._parts.clock)
        metrics, started = self._parts.metrics, self._parts.clock()
        model: str | None = None
        outcome = "fault"
        with metrics.in_flight():
            try:
                prepared = await self.prepare(inbound, down, started)
                if isinstance(prepared, Exchange):
                    model = prepared.model
                    outcome = await self._forward(prepared)
                else:
                    outcome = prepared
            except ClientLeftError:
                outcome = "cancelled"
            except Exception as fault:  # noqa: BLE001 - request root: every request gets an answer
                _log_fault(inbound, fault)
                await _answer_fault(down)
            finally:
                metrics.observe_request(model, outcome, self._parts.clock() - started)
                if down.first_data_seconds is not None:
                    metrics.observe_first_data(model, down.first_data_seconds - started)

    async def prepare(self, inbound: Inbound, down: Downstream, started: float) -> Exchange | str:
        """Return the exchange to forward, or the outcome when it was refused."""
        settings = self._parts.settings
        if inbound.method != "POST":
            allow = ((b"allow", b"POST"),)
            await down.refuse(refuse_method(inbound.method, "POST"), allow)
            return "client_error"
        body = await inbound.read_body(settings.max_body_bytes)
        if isinstance(body, Refusal):
            await down.refuse(body)
            return "client_error"
        peeked = peek(body, bytes_per_token=settings.bytes_per_token)
        if isinstance(peeked, Refusal):
            await down.refuse(peeked)
            return "client_error"
        model = resolve(self._parts.fleet.view(), peeked.model)
        if isinstance(model, Refusal):
            await down.refuse(model)
            return "unavailable" if model.code is Code.NO_READY_ENGINE else "client_error"
        exchange = Exchange(
            inbound,
            down,
            peeked,
            model,
            body,
            started,
            priority=peeked.priority,
            tenant=name_tenant(lambda name: text_of(inbound.headers, name)),
        )
        return await self._parts.prompts.count(exchange)

    async def _forward(self, exchange: Exchange) -> str:
        async with exchange.inbound.until_client_leaves():
            ending = await self._parts.proxy.forward(exchange)
        if isinstance(ending, Finished) and ending.usage is not None:
            self._parts.prompts.compare(exchange, ending.usage)
        match ending:
            case Finished(errored=False):
                return "ok"
            case Finished() | Broken():
                return "broken"
            case _:
                return outcome_of_status(exchange.down.status)


class ModelList:
    """`GET /v1/models` and `GET /v1/models/{id}`, from local state only."""

    def __init__(self, parts: HandlerParts) -> None:
        self._parts = parts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """List what is served, or show one of it."""
        inbound = Inbound.from_scope(scope, receive)
        down = Downstream(send, inbound.request_id, self._parts.clock)
        if inbound.method not in {"GET", "HEAD"}:
            allow = ((b"allow", b"GET, HEAD"),)
            await down.refuse(refuse_method(inbound.method, "GET"), allow)
            return
        view = self._parts.fleet.view()
        listed = list_models(view, self._parts.created_seconds)
        wanted = scope.get("path_params", {}).get("id")
        if wanted is None:
            await down.answer_json({"object": "list", "data": listed})
            return
        found = next((item for item in listed if item["id"] == wanted), None)
        if found is not None:
            await down.answer_json(found)
            return
        hint = "Existing models: " + ", ".join(item["id"] for item in listed[:20])
        missing = Refusal(
            Code.MODEL_NOT_FOUND,
            f"The model '{shown_name(wanted)}' is not served.",
            hint=hint if listed else "No model is served now.",
            param="model",
        )
        await down.refuse(missing)


class UnknownPath:
    """Every other path under `/v1`."""

    def __init__(self, parts: HandlerParts) -> None:
        self._parts = parts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Say what exists instead."""
        inbound = Inbound.from_scope(scope, receive)
        refusal = Refusal(
            Code.NOT_FOUND,
            f"Unknown path {shown_name(inbound.path)}.",
            hint="Try /v1/models, /v1/chat/completions or /v1/completions.",
        )
        await Downstream(send, inbound.request_id, self._parts.clock).refuse(refusal)


def outcome_of_status(status: int) -> str:
    """Return the metric outcome of an HTTP status; one of a fixed set."""
    if status < 400:
        return "broken"
    if status < 500:
        return "client_error"
    return "unavailable" if status == 503 else "upstream_error"


def _log_fault(inbound: Inbound, fault: Exception) -> None:
    # Frames only: the text of an exception may hold part of a prompt.
    frames = traceback.extract_tb(fault.__traceback__)
    _LOG.error(
        "gateway_fault",
        request_id=inbound.request_id,
        error=type(fault).__name__,
        where=[f"{frame.name}:{frame.lineno}" for frame in frames[-6:]],
    )


async def _answer_fault(down: Downstream) -> None:
    refusal = Refusal(
        Code.INTERNAL,
        "The gateway failed on this request.",
        hint="Send it again; if it stays, look for gateway_fault in the controller's log.",
    )
    if not down.whole:
        await down.refuse(refusal)
