"""From a request to its seat: decide at once, wait in line for room, or say why there is none.

Owns the chooser and the line. Called by the proxy, which sends what has a seat.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from controller.gateway.choice.choosing import Chooser, Question, refuse_never
from controller.gateway.choice.explain import describe_route, describe_shortage
from controller.gateway.choice.queueing import (
    Ended,
    LineFullError,
    Seat,
    Wait,
    WaitingQueue,
    WaitOverError,
)
from controller.gateway.choice.selection import Decision, Outcome, Why
from controller.gateway.exchange import Course, Exchange, demand_of
from controller.gateway.nodes.breaker import Breakers
from controller.gateway.nodes.catalog import FleetView, explain_no_engine, is_catching_up
from controller.gateway.nodes.fleet import Fleet
from controller.gateway.sending.refusals import refuse_full, refuse_waited
from controller.gateway.settings import GatewaySettings
from controller.metrics import StageMetrics
from manifests.errors import Refusal

_STREAM_HEAD = ((b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache"))
_WAITING = b": waiting\n\n"


class Seating:
    """Finds seats; all methods belong to one event loop."""

    def __init__(
        self,
        fleet: Fleet,
        settings: GatewaySettings,
        stages: StageMetrics,
        clock: Callable[[], float],
    ) -> None:
        """Start with an empty line, which changes of the fleet and free places move on."""
        self._fleet, self._settings, self._clock = fleet, settings, clock
        self._stages = stages
        self._queue = WaitingQueue(settings.queue_size, clock, stages.set_depth)
        self._chooser = Chooser(fleet, settings, clock, self._queue.poke)
        fleet.listen(self._queue.poke)

    @property
    def breakers(self) -> Breakers:
        """What is known of the endpoints' health from attempts."""
        return self._chooser.breakers

    def again(self, seat: Seat) -> Seat:
        """Return a seat at the same endpoint, for a request that never reached it."""
        return Seat(seat.decision, self._chooser.hold(seat.decision))

    def consider(self, exchange: Exchange) -> Decision:
        """Return what would be done with a request now, and do nothing."""
        exchange = self._choose_model(exchange, Course())
        return self._consider(exchange, Course())

    def _consider(self, exchange: Exchange, course: Course) -> Decision:
        claims = self._queue.claims(exchange.model, exchange.priority)
        return self._chooser.consider(self._question(exchange, course), claims)

    def _choose_model(self, exchange: Exchange, course: Course) -> Exchange:
        """Return the exchange with its first Model that can take it now, else that may later."""
        left = [model for model in exchange.models if model not in course.hopeless]
        if len(left) < 2:
            same = not left or left[0] == exchange.model
            return exchange if same else replace(exchange, model=left[0])
        asked = [replace(exchange, model=model) for model in left]
        ranks = [_rank(self._consider(one, course)) for one in asked]
        return asked[ranks.index(min(ranks))]

    async def find(self, exchange: Exchange, course: Course) -> Seat | Refusal:
        """Return where to send the request, waiting for room when there is none yet."""
        began, stages = self._clock(), self._stages
        exchange = self._choose_model(exchange, course)
        claims = self._queue.claims(exchange.model, exchange.priority)
        seat = self._chooser.seat(self._question(exchange, course), claims)
        stages.observe("select", seat.decision.outcome.value, self._clock() - began)
        nobody = seat.decision.outcome is Outcome.NOBODY
        if nobody and not course.tried and await self._catch_up(exchange.models):
            return await self.find(exchange, course)
        if seat.decision.outcome is Outcome.WAIT:
            waited = await self._wait(exchange, course)
            if isinstance(waited, Refusal):
                return waited
            seat = waited
        stages.count_decision(seat.decision.why.value)
        if seat.decision.outcome is Outcome.NEVER:
            exchange.down.route = describe_route(seat.decision)
            stages.count_refusal(seat.decision.why.value)
            return refuse_never(seat.decision) or explain_no_engine(
                self._fleet.view(), exchange.model
            )
        return seat

    async def _wait(self, exchange: Exchange, course: Course) -> Seat | Refusal:
        """Stand in line for room."""
        began, stages = self._clock(), self._stages
        outcome = "cancelled"
        try:
            seat = await self._queue.wait(
                self._plan_wait(exchange),
                lambda claimed: self._chooser.seat(self._question(exchange, course), claimed),
            )
        except Ended as end:
            outcome = "full" if isinstance(end, LineFullError) else "expired"
            stages.count_refusal(f"queue_{outcome}")
            return self._explain_wait(exchange, end)
        else:
            outcome = "served"
            return seat
        finally:
            course.waited_seconds += self._clock() - began
            stages.observe("queue", outcome, self._clock() - began)

    def _plan_wait(self, exchange: Exchange) -> Wait:
        settings, stream = self._settings, exchange.peeked.stream

        async def tell_waiting() -> None:
            if not exchange.down.started:
                exchange.down.route = "queued"
                await exchange.down.start(200, _STREAM_HEAD)
            await exchange.down.write(_WAITING, has_data=False)

        return Wait(
            model=exchange.model,
            priority=exchange.priority,
            tenant=exchange.tenant,
            tokens=demand_of(exchange, settings).total_tokens,
            seconds=self._left_seconds(exchange),
            tick=tell_waiting,
            first_tick_seconds=settings.queue_head_seconds if stream else math.inf,
            tick_seconds=settings.queue_comment_seconds,
        )

    def _left_seconds(self, exchange: Exchange) -> float:
        deadline = exchange.peeked.deadline_seconds
        if deadline is None:
            return self._settings.queue_seconds
        return max(0.0, deadline - (self._clock() - exchange.started_seconds))

    def _explain_wait(self, exchange: Exchange, end: Ended) -> Refusal:
        if not isinstance(end, WaitOverError):
            return refuse_full(self._settings.queue_size)
        if end.decision is not None and not exchange.down.started:
            exchange.down.route = describe_route(end.decision)
        return refuse_waited(
            self._settings.queue_seconds,
            describe_shortage(end.decision),
            exchange.peeked.deadline_seconds,
        )

    async def _catch_up(self, models: Sequence[str]) -> bool:
        """Give the report of an engine that is declared ready a moment; tell whether it came."""
        late = [model for model in models if is_catching_up(self._fleet.view(), model)]
        if not late:
            return False

        def one_came(view: FleetView) -> bool:
            return not all(is_catching_up(view, model) for model in late)

        return await self._fleet.wait_until(one_came, self._settings.catch_up_seconds)

    def _question(self, exchange: Exchange, course: Course) -> Question:
        return Question(
            model=exchange.model,
            demand=demand_of(exchange, self._settings),
            cached=exchange.cached,
            tried=course.tried,
            noes=[no for no in course.noes if no.endpoint.model == exchange.model],
        )


def _rank(decision: Decision) -> int:
    """Return how much is to be hoped of one Model among several; less is better."""
    if decision.outcome is Outcome.SEND:
        # The roomiest is a last resort: by all estimates the request does not fit there.
        return 2 if decision.why is Why.ROOMIEST else 0
    return {Outcome.WAIT: 1, Outcome.NOBODY: 3}.get(decision.outcome, 4)
