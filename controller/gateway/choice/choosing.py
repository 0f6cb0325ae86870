"""Where requests go: the state that a decision needs, and the place that is held by it.

Owns the reservations, the breakers and the draw; the decision is `selection.decide`. Choosing and
reserving are one step on the event loop. Called by the proxy, the queue and the explain route.
"""

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from controller.gateway.choice.demand import Demand
from controller.gateway.choice.fit import describe_never
from controller.gateway.choice.queueing import Claims
from controller.gateway.choice.reservations import Amount, HeldPlace, Reservations
from controller.gateway.choice.selection import Circumstances, Decision, decide
from controller.gateway.nodes.breaker import Breakers
from controller.gateway.nodes.endpoints import EndpointKey
from controller.gateway.nodes.fleet import Fleet
from controller.gateway.sending.refusals import No, plan_candidates, speak_of_never
from controller.gateway.settings import GatewaySettings
from manifests.errors import Refusal


@dataclass(frozen=True, slots=True)
class Question:
    """One request as choosing sees it.

    `cached` is how many of its tokens each endpoint has; `tried` and `noes` are what came of it
    so far.
    """

    model: str
    demand: Demand
    cached: Mapping[EndpointKey, int] = field(default_factory=dict)
    tried: Collection[EndpointKey] = frozenset()
    noes: Sequence[No] = ()


class Chooser:
    """Decides and reserves; all methods belong to one event loop."""

    def __init__(
        self,
        fleet: Fleet,
        settings: GatewaySettings,
        clock: Callable[[], float],
        on_release: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_release` is called after every place that was given back."""
        self._fleet, self._clock = fleet, clock
        self._random = random.Random(settings.seed)
        self._reservations = Reservations(settings.settle_seconds, on_release)
        self.breakers = Breakers()
        fleet.subscribe(self._forget_gone)

    def consider(self, question: Question, claimed: Claims = frozenset()) -> Decision:
        """Return what would be done with a request now; changes nothing that matters."""
        view, now = self._fleet.view(), self._clock()
        candidates = plan_candidates(view.candidates(question.model), question.noes)
        around = Circumstances(
            holds=self._reservations.holds(candidates),
            blocked=self.breakers.blocked(now),
            tried=question.tried,
            claimed=claimed,
            cached=question.cached,
            last_used=self._reservations.last_used,
            passed=self._reservations.passed,
            now_seconds=now,
            complete=view.is_complete(question.model),
        )
        return decide(candidates, question.demand, around, self._random.random())

    def hold(self, decision: Decision) -> HeldPlace:
        """Hold the place that a decision is about, once more if need be."""
        won = decision.won
        assert won is not None  # noqa: S101 - the caller has looked at the outcome
        demand = decision.demand
        amount = Amount(
            tokens=demand.rows * demand.total_tokens,
            prefill_tokens=max(1, demand.prompt_tokens - won.cached_tokens),
            need_bytes=won.fit.need_bytes,
        )
        self._reservations.note_passed(decision.passed)
        return self._reservations.reserve(won.endpoint.key, amount, self._clock())

    def _forget_gone(self) -> None:
        endpoints = self._fleet.view().endpoints
        self.breakers.forget(item.key for item in endpoints)
        self._reservations.forget(endpoints)


def refuse_never(decision: Decision) -> Refusal | None:
    """Return the answer to what no node can ever hold: the nearest one, what binds it, advice."""
    nearest = max(decision.candidates, key=lambda item: item.fit.ever_bytes, default=None)
    if nearest is None:
        return None
    refusal = describe_never(nearest.endpoint, decision.demand) or nearest.fit.refusal
    return None if refusal is None else speak_of_never(refusal, nearest.endpoint)
