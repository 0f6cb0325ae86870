"""One client request to its end: pick an endpoint, forward, try elsewhere, move a cut stream.

Owns the order of the steps; every decision is a pure function elsewhere. Called by the
handlers.
"""

from collections.abc import Callable
from dataclasses import dataclass

import structlog

from controller.gateway.choice.explain import describe_route
from controller.gateway.choice.queueing import Seat
from controller.gateway.choice.selection import Decision
from controller.gateway.exchange import Course, Exchange
from controller.gateway.http.told import Told
from controller.gateway.moving import (
    Surroundings,
    ask_for_rest,
    ask_to_tell,
    continued,
    plan_leave,
)
from controller.gateway.nodes.breaker import Verdict
from controller.gateway.nodes.catalog import explain_no_engine
from controller.gateway.nodes.endpoints import EndpointView
from controller.gateway.nodes.fleet import Fleet
from controller.gateway.seating import Seating
from controller.gateway.sending.attempts import (
    Broken,
    Cut,
    Ending,
    Finished,
    Lost,
    Next,
    Refused,
    counts_as_fault,
    judge,
    label,
    plan_next,
)
from controller.gateway.sending.headers import plan_upstream_headers
from controller.gateway.sending.refusals import No, choose_answer, is_memory_refusal
from controller.gateway.sending.relay import relay
from controller.gateway.sending.upstream import Call, Upstream, UpstreamError
from controller.gateway.settings import GatewaySettings
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
        course = Course(told=Told(include_usage=exchange.peeked.include_usage))
        placed = exchange
        again: Seat | None = None
        while True:
            seat = again or await self._seating.find(placed, course)
            if isinstance(seat, Refusal):
                return await self._refuse(exchange, seat)
            endpoint = seat.decision.winner
            if endpoint is None:
                return await self._give_up(exchange, course)
            exchange.down.route = describe_route(seat.decision, course.waited_seconds)
            ending = await self._attempt(exchange, endpoint, seat, course)
            self._count(course, endpoint, ending)
            if isinstance(ending, Cut):
                placed = continued(exchange, course, endpoint.model)
            history = course.history(exchange, self._clock())
            step = plan_next(ending, history, self._settings)
            if step is Next.DONE:
                return await self._end(exchange, ending)
            if step is Next.GIVE_UP and self._next_model(placed, course, endpoint, ending):
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

    async def _attempt(
        self, exchange: Exchange, endpoint: EndpointView, seat: Seat, course: Course
    ) -> Ending:
        """Send the request to one endpoint with the place that is reserved there."""
        breakers, began = self._seating.breakers, self._clock()
        breakers.begin(endpoint.key)
        verdict, outcome = Verdict.NOTHING, "cancelled"
        try:
            ending = await self._send(exchange, endpoint, course)
            verdict, outcome = judge(ending), label(ending)
            return ending
        finally:
            seat.release()
            breakers.record(endpoint.key, verdict, self._clock())
            self._metrics.count_attempt(endpoint.key.node, outcome)
            self._metrics.stages.observe("attempt", outcome, self._clock() - began)

    async def _send(self, exchange: Exchange, endpoint: EndpointView, course: Course) -> Ending:
        """Forward, and leave a node that dies before its answer has begun."""
        try:
            answer = await self._upstream.send(self._call(exchange, endpoint, course))
            try:
                return await relay(answer, exchange.down, endpoint.key, self._settings, course.told)
            finally:
                answer.release()
        except UpstreamError as fault:
            return fault.ending

    def _call(self, exchange: Exchange, endpoint: EndpointView, course: Course) -> Call:
        """Return the request for one endpoint: the whole answer, or the rest of a cut stream."""
        inbound, down, fleet = exchange.inbound, exchange.down, self._fleet
        node, address = endpoint.key.node, endpoint.address
        down.model = endpoint.model
        # Without a key nobody is charged, and a count at the end does for the metrics.
        usage = USAGE_EACH if exchange.key_name else USAGE_END
        told = {
            MODEL_HEADER: endpoint.model,
            USAGE_HEADER: usage,
            ELAPSED_HEADER: format_elapsed(self._clock() - exchange.started_seconds),
            **exchange.tenancy,
        }
        call = Call(
            address=address,
            path=inbound.path,
            headers=plan_upstream_headers(inbound.headers, inbound.request_id, told),
            body=exchange.body,
            stream=exchange.peeked.stream,
            wakes=endpoint.wakes,
            is_dead=lambda: fleet.is_dead(node, address),
            is_gone=plan_leave(
                self._settings,
                Surroundings(
                    has_data=lambda: down.has_data,
                    node_silent=lambda: fleet.silent_seconds(node, address),
                    has_elsewhere=lambda: fleet.view().has_other(
                        exchange.models, course.tried, node
                    ),
                ),
            ),
        )
        call = ask_to_tell(call, self._settings)
        if not down.has_data:
            return call
        return ask_for_rest(call, inbound.path, course)

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
        if isinstance(ending, Cut):
            course.note_cut(No(endpoint, Lost(ending.refusal)), self._clock())
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
