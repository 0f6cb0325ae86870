"""One client request to its end: pick an endpoint, forward, and try elsewhere before data.

Owns the order of the steps; every decision is a pure function elsewhere. Called by the
handlers.
"""

import asyncio
import random
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field

import structlog

from controller.gateway.asgi import Downstream, Inbound
from controller.gateway.attempts import (
    Broken,
    Ending,
    Finished,
    History,
    Lost,
    Next,
    Refused,
    counts_as_fault,
    judge,
    label,
    lost,
    plan_next,
)
from controller.gateway.breaker import Breakers, Verdict
from controller.gateway.catalog import explain_no_engine, is_catching_up
from controller.gateway.endpoints import EndpointKey, EndpointView
from controller.gateway.filters import Demand
from controller.gateway.fleet import Fleet
from controller.gateway.headers import plan_upstream_headers
from controller.gateway.peek import Peeked
from controller.gateway.refusals import No, choose_answer, is_memory_refusal, plan_candidates
from controller.gateway.relay import relay
from controller.gateway.reservations import Reservations
from controller.gateway.selection import Circumstances, select_endpoint
from controller.gateway.settings import GatewaySettings
from controller.gateway.upstream import Call, Upstream, UpstreamError
from controller.metrics import GatewayMetrics
from manifests.errors import Retryable
from manifests.wire.elapsed import ELAPSED_HEADER, format_elapsed

_LOG = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request that is fit to forward, and where its answer goes."""

    inbound: Inbound
    down: Downstream
    peeked: Peeked
    model: str
    body: bytes = field(repr=False)
    started_seconds: float


@dataclass(slots=True)
class _Course:
    """What happened to one request so far.

    Endpoints out of reach do not use up attempts: the request never got there. Nor do noes about
    memory, which cost an agent nothing but tokenizing.
    """

    tried: set[EndpointKey] = field(default_factory=set)
    noes: list[No] = field(default_factory=list)
    attempts: int = 0
    faults: int = 0
    stale: int = 0


@dataclass(frozen=True, slots=True)
class ProxyParts:
    """What the proxy works with."""

    settings: GatewaySettings
    fleet: Fleet
    upstream: Upstream
    metrics: GatewayMetrics
    clock: Callable[[], float]


class Proxy:
    """Forwards requests; all methods belong to one event loop."""

    def __init__(self, parts: ProxyParts) -> None:
        self._settings, self._fleet = parts.settings, parts.fleet
        self._upstream, self._metrics, self._clock = parts.upstream, parts.metrics, parts.clock
        self._random = random.Random(parts.settings.seed)
        self._reservations = Reservations(parts.settings.settle_seconds)
        self._breakers = Breakers()
        self._fleet.subscribe(self._forget_gone)

    async def forward(self, exchange: Exchange) -> Ending | None:
        """Bring one request to its end; None when no endpoint was open.

        Raises: ClientLeftError. Cancelling it closes the upstream connection at once.
        """
        course = _Course()
        again: EndpointView | None = None
        while True:
            endpoint = again or self._select(exchange, course)
            if endpoint is None and not course.tried and await self._catch_up(exchange.model):
                continue
            if endpoint is None:
                return await self._give_up(exchange, course)
            ending = await self._attempt(exchange, endpoint)
            self._count(course, endpoint, ending)
            step = plan_next(ending, self._history(exchange, course), self._settings)
            if step is Next.DONE:
                return await self._end(exchange, ending)
            if step is Next.GIVE_UP:
                return await self._give_up(exchange, course)
            again = endpoint if step is Next.SAME else None

    async def _catch_up(self, model: str) -> bool:
        """Give the report of an engine that is declared ready a moment; tell whether it came."""
        if not is_catching_up(self._fleet.view(), model):
            return False
        seconds = self._settings.catch_up_seconds
        return await self._fleet.wait_until(lambda view: not is_catching_up(view, model), seconds)

    def _select(self, exchange: Exchange, course: _Course) -> EndpointView | None:
        candidates = plan_candidates(self._fleet.view().candidates(exchange.model), course.noes)
        around = Circumstances(
            holds=self._reservations.holds(candidates),
            blocked=self._breakers.blocked(self._clock()),
            tried=course.tried,
        )
        return select_endpoint(candidates, self._demand(exchange), around, self._random.random())

    def _demand(self, exchange: Exchange) -> Demand:
        wanted = exchange.peeked.max_tokens
        output = self._settings.assumed_output_tokens if wanted is None else wanted
        return Demand(exchange.peeked.prompt_tokens, output)

    async def _attempt(self, exchange: Exchange, endpoint: EndpointView) -> Ending:
        """Send the request to one endpoint with a place reserved there."""
        tokens = self._demand(exchange).total_tokens
        self._breakers.begin(endpoint.key)
        verdict, outcome = Verdict.NOTHING, "cancelled"
        try:
            with self._reservations.reserve(endpoint.key, tokens, self._clock()):
                ending = await self._send(exchange, endpoint)
            verdict, outcome = judge(ending), label(ending)
            return ending
        finally:
            self._breakers.record(endpoint.key, verdict, self._clock())
            self._metrics.count_attempt(endpoint.key.node, outcome)

    async def _send(self, exchange: Exchange, endpoint: EndpointView) -> Ending:
        """Forward, and leave a node that dies before it has sent a byte."""
        inbound = exchange.inbound
        elapsed = format_elapsed(self._clock() - exchange.started_seconds)
        headers = plan_upstream_headers(inbound.headers, inbound.request_id)
        call = Call(
            url=endpoint.address + inbound.path,
            headers={**headers, ELAPSED_HEADER: elapsed},
            body=exchange.body,
            stream=exchange.peeked.stream,
            wakes=endpoint.wakes,
        )
        with ExitStack() as stack:
            try:
                async with asyncio.timeout(None) as scope:
                    now = asyncio.get_running_loop().time

                    def leave() -> None:
                        if not exchange.down.has_data:
                            scope.reschedule(now())

                    stack.callback(self._fleet.on_dead(endpoint.key.node, leave))
                    async with self._upstream.send(call) as response:
                        return await relay(response, exchange.down, endpoint.key, self._settings)
            except UpstreamError as fault:
                return fault.ending
            except TimeoutError:
                gone = lost("The node is gone.")
                return Broken(gone.refusal) if exchange.down.has_data else gone

    def _forget_gone(self) -> None:
        self._breakers.forget(item.key for item in self._fleet.view().endpoints)

    def _count(self, course: _Course, endpoint: EndpointView, ending: Ending) -> None:
        course.tried.add(endpoint.key)
        reached = not (isinstance(ending, Lost) and (ending.stale or ending.unreachable))
        course.attempts += reached and not _never_fits(ending)
        course.stale += isinstance(ending, Lost) and ending.stale
        course.faults += counts_as_fault(ending)
        if isinstance(ending, Refused | Lost):
            course.noes.append(No(endpoint, ending))
        if not isinstance(ending, Finished):
            _LOG.info(
                "attempt_failed",
                node=endpoint.key.node,
                engine=endpoint.key.engine,
                outcome=label(ending),
                code=ending.refusal.code.value,
            )

    def _history(self, exchange: Exchange, course: _Course) -> History:
        elapsed = self._clock() - exchange.started_seconds
        return History(course.attempts, course.faults, course.stale, elapsed)

    async def _end(self, exchange: Exchange, ending: Ending) -> Ending:
        if isinstance(ending, Broken):
            await exchange.down.refuse(ending.refusal)
        if isinstance(ending, Finished) and ending.usage is not None:
            self._metrics.count_tokens(
                exchange.model, ending.usage.prompt_tokens, ending.usage.completion_tokens
            )
        return ending

    async def _give_up(self, exchange: Exchange, course: _Course) -> Refused | Lost | None:
        """Tell the client the best no there is."""
        if not course.noes:
            await exchange.down.refuse(explain_no_engine(self._fleet.view(), exchange.model))
            return None
        candidates = self._fleet.view().candidates(exchange.model)
        no = choose_answer(course.noes, candidates)
        if isinstance(no, Refused) and no.body is not None and not exchange.down.started:
            await exchange.down.answer(no.status, no.headers, no.body)
        else:
            await exchange.down.refuse(no.refusal)
        return no


def _never_fits(ending: Ending) -> bool:
    return (
        isinstance(ending, Refused)
        and is_memory_refusal(ending)
        and ending.refusal.retryable is Retryable.NO
    )
