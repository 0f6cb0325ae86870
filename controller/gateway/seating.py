"""From a request to its seat: decide at once, wait in line for room, or say why there is none.

Owns the chooser and the line. Called by the proxy, which sends what has a seat.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from controller.gateway.choice.choosing import Chooser, Question, refuse_never
from controller.gateway.choice.explain import describe_route, describe_shortage
from controller.gateway.choice.queueing import (
    Claims,
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
        left = _models_left(exchange, Course())
        claims = self._queue.claims(left, exchange.priority)
        return self._consider(exchange, Course(), left, claims)

    def _consider(
        self, exchange: Exchange, course: Course, models: Sequence[str], claims: Claims
    ) -> Decision:
        """Return the decision for the first Model that can take it now, else that may later.

        A request that waits does so for all of its Models, and that decision is about them all.
        """
        decisions = [
            self._chooser.consider(self._question(exchange, course, model), claims)
            for model in models
        ]
        ranks = [_rank(decision) for decision in decisions]
        best = decisions[ranks.index(min(ranks))]
        if best.outcome is not Outcome.WAIT or len(decisions) == 1:
            return best
        return replace(best, candidates=tuple(one for each in decisions for one in each.candidates))

    def _take(
        self, exchange: Exchange, course: Course, models: Sequence[str], claims: Claims
    ) -> Seat:
        """Decide, and hold a place where the request is sent."""
        decision = self._consider(exchange, course, models, claims)
        held = decision.outcome is Outcome.SEND
        return Seat(decision, self._chooser.hold(decision) if held else None)

    async def find(self, exchange: Exchange, course: Course) -> Seat | Refusal:
        """Return where to send the request, waiting for room when there is none yet."""
        began, stages = self._clock(), self._stages
        models = _models_left(exchange, course)
        claims = self._queue.claims(models, exchange.priority)
        seat = self._take(exchange, course, models, claims)
        stages.observe("select", seat.decision.outcome.value, self._clock() - began)
        nobody = seat.decision.outcome is Outcome.NOBODY
        if nobody and not course.tried and await self._catch_up(exchange.models):
            return await self.find(exchange, course)
        if seat.decision.outcome is Outcome.WAIT:
            waited = await self._wait(exchange, course, models)
            if isinstance(waited, Refusal):
                return waited
            seat = waited
        never = seat.decision.outcome is Outcome.NEVER
        if never and await self._hear_again(exchange, models):
            return await self.find(exchange, course)
        stages.count_decision(seat.decision.why.value)
        if never:
            exchange.down.route = describe_route(seat.decision)
            stages.count_refusal(seat.decision.why.value)
            return refuse_never(seat.decision) or explain_no_engine(self._fleet.view(), models[0])
        return seat

    async def _wait(
        self, exchange: Exchange, course: Course, models: tuple[str, ...]
    ) -> Seat | Refusal:
        """Stand in line for room at any of its Models."""
        began, stages = self._clock(), self._stages
        outcome = "cancelled"
        try:
            seat = await self._queue.wait(
                self._plan_wait(exchange, models),
                lambda claimed: self._take(exchange, course, models, claimed),
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

    def _plan_wait(self, exchange: Exchange, models: tuple[str, ...]) -> Wait:
        settings, stream = self._settings, exchange.peeked.stream

        async def tell_waiting() -> None:
            if not exchange.down.started:
                exchange.down.route = "queued"
                await exchange.down.start(200, _STREAM_HEAD)
            await exchange.down.write(_WAITING, has_data=False)

        return Wait(
            models=models,
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

    async def _hear_again(self, exchange: Exchange, models: Sequence[str]) -> bool:
        """Let nodes say it once more before a final no; tell whether that is worth another look.

        What a node held for too large may fit since: somebody has just raised its ceiling. A last
        report from before the request came does not say.
        """

        def heard(view: FleetView) -> bool:
            items = (item for model in models for item in view.candidates(model))
            return all(item.reported_seconds >= exchange.started_seconds for item in items)

        if heard(self._fleet.view()):
            return False
        seconds = min(self._settings.catch_up_seconds, self._left_seconds(exchange))
        return await self._fleet.wait_until(heard, seconds)

    def _question(self, exchange: Exchange, course: Course, model: str) -> Question:
        asked = exchange if model == exchange.model else replace(exchange, model=model)
        return Question(
            model=model,
            demand=demand_of(asked, self._settings),
            cached=exchange.cached,
            tried=course.tried,
            noes=[no for no in course.noes if no.endpoint.model == model],
        )


def _models_left(exchange: Exchange, course: Course) -> tuple[str, ...]:
    """Return the Models that are worth asking, in the order of their Route."""
    models = exchange.models or (exchange.model,)
    return tuple(model for model in models if model not in course.hopeless) or (exchange.model,)


def _rank(decision: Decision) -> int:
    """Return how much is to be hoped of one Model among several; less is better."""
    if decision.outcome is Outcome.SEND:
        # The roomiest is a last resort: by all estimates the request does not fit there.
        return 2 if decision.why is Why.ROOMIEST else 0
    return {Outcome.WAIT: 1, Outcome.NOBODY: 3}.get(decision.outcome, 4)
