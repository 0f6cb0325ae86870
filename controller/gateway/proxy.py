"""One client request to its end: pick an endpoint, forward, and try elsewhere before data.

Owns the order of the steps; every decision is a pure function elsewhere. Called by the
handlers.
"""

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

import structlog

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
from controller.gateway.breaker import Verdict
from controller.gateway.catalog import explain_no_engine
from controller.gateway.endpoints import EndpointView
from controller.gateway.exchange import Course, Exchange
from controller.gateway.explain import describe_route
from controller.gateway.fleet import Fleet
from controller.gateway.headers import plan_upstream_headers
from controller.gateway.queueing import Seat
from controller.gateway.refusals import No, choose_answer, is_memory_refusal
from controller.gateway.relay import relay
from controller.gateway.seating import Seating
from controller.gateway.selection import Decision
from controller.gateway.settings import GatewaySettings
from controller.gateway.upstream import Call, Upstream, UpstreamError
from controller.metrics import GatewayMetrics
from manifests.errors import Code, Refusal, Retryable
from manifests.wire.elapsed import ELAPSED_HEADER, format_elapsed
from manifests.wire.gateway import MODEL_HEADER, USAGE_EACH, USAGE_END, USAGE_HEADER

_LOG = structlog.get_logger(__name__)
_ABOUT_ONE_MODEL = frozenset({Code.CONTEXT_LENGTH_EXCEEDED})


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
        self._seating = Seating(parts.fleet, parts.settings, parts.metrics.stages, parts.clock)

    async def forward(self, exchange: Exchange) -> Ending | None:
        """Bring one request to its end; None when no endpoint was open.

        Raises: ClientLeftError. Cancelling it closes the upstream connection at once.
        """
        course = Course()
        again: Seat | None = None
        while True:
            seat = again or await self._seating.find(exchange, course)
            if isinstance(seat, Refusal):
                return await self._refuse(exchange, seat)
            endpoint = seat.decision.winner
            if endpoint is None:
                return await self._give_up(exchange, course)
            exchange.down.route = describe_route(seat.decision, course.waited_seconds)
            ending = await self._attempt(exchange, endpoint, seat)
            self._count(course, endpoint, ending)
            step = plan_next(ending, self._history(exchange, course), self._settings)
            if step is Next.DONE:
                return await self._end(exchange, ending)
            if step is Next.GIVE_UP and self._next_model(exchange, course, endpoint, ending):
                step = Next.ELSEWHERE
            if step is Next.GIVE_UP:
                return await self._give_up(exchange, course)
            again = self._seating.again(seat) if step is Next.SAME else None

    def consider(self, exchange: Exchange) -> Decision:
        """Return what would be done with a request now, and do nothing."""
        return self._seating.consider(exchange)

    async def _refuse(self, exchange: Exchange, refusal: Refusal) -> Refused:
        await exchange.down.refuse(refusal)
        return Refused(refusal.http_status, (), None, refusal)

    async def _attempt(self, exchange: Exchange, endpoint: EndpointView, seat: Seat) -> Ending:
        """Send the request to one endpoint with the place that is reserved there."""
        breakers, began = self._seating.breakers, self._clock()
        breakers.begin(endpoint.key)
        verdict, outcome = Verdict.NOTHING, "cancelled"
        try:
            ending = await self._send(exchange, endpoint)
            verdict, outcome = judge(ending), label(ending)
            return ending
        finally:
            seat.release()
            breakers.record(endpoint.key, verdict, self._clock())
            self._metrics.count_attempt(endpoint.key.node, outcome)
            self._metrics.stages.observe("attempt", outcome, self._clock() - began)

    async def _send(self, exchange: Exchange, endpoint: EndpointView) -> Ending:
        """Forward, and leave a node that dies before it has sent a byte."""
        inbound = exchange.inbound
        exchange.down.model = endpoint.model
        # Without a key nobody is charged, and a count at the end does for the metrics.
        usage = USAGE_EACH if exchange.key_name else USAGE_END
        told = {
            MODEL_HEADER: endpoint.model,
            USAGE_HEADER: usage,
            ELAPSED_HEADER: format_elapsed(self._clock() - exchange.started_seconds),
            **exchange.tenancy,
        }
        call = Call(
            url=endpoint.address + inbound.path,
            headers=plan_upstream_headers(inbound.headers, inbound.request_id, told),
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

    def _next_model(
        self, exchange: Exchange, course: Course, endpoint: EndpointView, ending: Ending
    ) -> bool:
        """Whether a no speaks for one model only, and others are left. Mutates: course."""
        if isinstance(ending, Refused) and ending.refusal.code in _ABOUT_ONE_MODEL:
            course.hopeless.add(endpoint.model)
        return endpoint.model in course.hopeless and not course.hopeless.issuperset(exchange.models)

    def _count(self, course: Course, endpoint: EndpointView, ending: Ending) -> None:
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

    def _history(self, exchange: Exchange, course: Course) -> History:
        elapsed = self._clock() - exchange.started_seconds - course.waited_seconds
        return History(course.attempts, course.faults, course.stale, elapsed)

    async def _end(self, exchange: Exchange, ending: Ending) -> Ending:
        if isinstance(ending, Broken):
            await exchange.down.refuse(ending.refusal)
        if isinstance(ending, Finished) and ending.usage is not None:
            self._metrics.count_tokens(
                exchange.down.model or "",
                ending.usage.prompt_tokens,
                ending.usage.completion_tokens,
            )
        return ending

    async def _give_up(self, exchange: Exchange, course: Course) -> Refused | Lost | None:
        """Tell the client the best no there is."""
        if not course.noes:
            self._metrics.stages.count_refusal("no_engine")
            await exchange.down.refuse(explain_no_engine(self._fleet.view(), exchange.model))
            return None
        view = self._fleet.view()
        candidates = [item for model in exchange.models for item in view.candidates(model)]
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
