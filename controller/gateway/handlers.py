"""The OpenAI routes as raw ASGI applications: check, peek, resolve, hand to the proxy.

Every path answers in OpenAI's error form and is counted once. No prompt text is logged.
"""

import random
import traceback
from collections.abc import Callable
from dataclasses import dataclass

import structlog
from starlette.types import Receive, Scope, Send

from controller.gateway.counting.prompts import Prompts
from controller.gateway.exchange import Exchange, demand_of
from controller.gateway.http.asgi import ClientLeftError, Downstream, Inbound
from controller.gateway.http.peek import Peeked, peek, shown_name
from controller.gateway.http.sse import Usage
from controller.gateway.keys.access import Caller, plan_tenancy, refuse_model
from controller.gateway.keys.door import Door, Visit
from controller.gateway.nodes.catalog import list_models, names_of, resolve
from controller.gateway.nodes.fleet import Fleet
from controller.gateway.nodes.routing import Asking
from controller.gateway.proxy import Proxy
from controller.gateway.sending.attempts import Broken, Finished
from controller.gateway.settings import GatewaySettings
from controller.metrics import GatewayMetrics
from manifests.errors import Code, Refusal

_LOG = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class HandlerParts:
    """What the handlers work with."""

    settings: GatewaySettings
    fleet: Fleet
    proxy: Proxy
    door: Door
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
        self._random = random.Random(parts.settings.seed)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request and count it, however it ends."""
        inbound = Inbound.from_scope(scope, receive)
        down = Downstream(send, inbound.request_id, self._parts.clock)
        metrics, started = self._parts.metrics, self._parts.clock()
        model: str | None = None
        visit: Visit | None = None
        outcome = "fault"
        metrics.begin_request()
        try:
            prepared = await self.prepare(inbound, down, started)
            if isinstance(prepared, str):
                outcome = prepared
            else:
                model = prepared.model
                admitted = self._admit(prepared)
                if isinstance(admitted, Refusal):
                    await down.refuse(admitted)
                    outcome = "client_error"
                else:
                    visit = admitted
                    outcome = await self._forward(prepared)
        except ClientLeftError:
            outcome = "cancelled"
        except Exception as fault:  # noqa: BLE001 - request root: every request gets an answer
            _log_fault(inbound, fault)
            await _answer_fault(down)
        finally:
            model = down.model or model
            if visit is not None:
                self._parts.door.settle(visit, down, outcome)
            metrics.end_request()
            metrics.observe_request(model, outcome, self._parts.clock() - started)
            if down.first_data_seconds is not None:
                metrics.observe_first_data(model, down.first_data_seconds - started)

    async def prepare(
        self, inbound: Inbound, down: Downstream, started: float, *, explains: bool = False
    ) -> Exchange | str:
        """Return the exchange to forward, or the outcome when it was refused; nothing is held.

        A key whose limits let nothing in is refused before its prompt is counted; not one that
        only wants to be told (`explains`) where its request would go.
        """
        settings, door = self._parts.settings, self._parts.door
        caller = door.identify(inbound)
        if isinstance(caller, Refusal):
            await door.turn_away(down, caller)
            return outcome_of_status(down.status)
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
        models = self._resolve(caller, peeked, Asking(inbound.headers, body, self._random.random()))
        if isinstance(models, Refusal):
            await down.refuse(models)
            return outcome_of_status(down.status)
        if not explains and (refusal := door.refuse_uncounted(caller, down)) is not None:
            down.model = models[0]
            await down.refuse(refusal)
            return outcome_of_status(down.status)
        exchange = Exchange(
            inbound,
            down,
            peeked,
            models[0],
            body,
            started,
            models=models,
            caller=caller,
            tenancy=plan_tenancy(caller, inbound.headers),
        )
        return await self._parts.prompts.count(exchange)

    def _resolve(self, caller: Caller, peeked: Peeked, asking: Asking) -> tuple[str, ...] | Refusal:
        view = self._parts.fleet.view()
        if not caller.may_use(*names_of(view, peeked.model)):
            return refuse_model(caller, peeked.model)
        return resolve(view, peeked.model, asking)

    def _admit(self, exchange: Exchange) -> Visit | Refusal:
        demand = demand_of(exchange, self._parts.settings)
        cost = Usage(demand.prompt_tokens, demand.output_tokens * demand.rows)
        return self._parts.door.admit(exchange.caller, exchange.down, cost)

    async def _forward(self, exchange: Exchange) -> str:
        work = self._parts.proxy.forward(exchange)
        ending = await exchange.inbound.until_client_leaves(work, lambda: exchange.down.whole)
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
        caller = self._parts.door.identify(inbound)
        if isinstance(caller, Refusal):
            await self._parts.door.turn_away(down, caller)
            return
        if inbound.method not in {"GET", "HEAD"}:
            allow = ((b"allow", b"GET, HEAD"),)
            await down.refuse(refuse_method(inbound.method, "GET"), allow)
            return
        view = self._parts.fleet.view()
        listed = [
            item
            for item in list_models(view, self._parts.created_seconds)
            if caller.may_use(*names_of(view, item["id"]))
        ]
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
        down = Downstream(send, inbound.request_id, self._parts.clock)
        caller = self._parts.door.identify(inbound)
        if isinstance(caller, Refusal):
            await self._parts.door.turn_away(down, caller)
            return
        refusal = Refusal(
            Code.NOT_FOUND,
            f"Unknown path {shown_name(inbound.path)}.",
            hint="Try /v1/models, /v1/chat/completions or /v1/completions.",
        )
        await down.refuse(refusal)


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
