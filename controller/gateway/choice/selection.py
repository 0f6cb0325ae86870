"""Candidates to one decision: where a request goes, or why it waits or never fits; pure.

Called by the proxy, the queue and the explain route. The decision keeps what it was made from.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from controller.gateway.choice.demand import NOTHING_HELD, Demand, Hold, Holds
from controller.gateway.choice.filters import (
    filter_healthy,
    filter_open,
    filter_waking,
    find_roomiest,
)
from controller.gateway.choice.fit import Fit, Limit, plan_fit
from controller.gateway.choice.picker import pick
from controller.gateway.choice.scorers import Scored, score_endpoints
from controller.gateway.nodes.endpoints import EndpointKey, EndpointView

_FRESH_REPORT_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What else decides beside the request.

    Our reservations, open breakers, what was tried for it, and what waiting requests of no lower
    rank have a claim on. `cached` is how many of its tokens each endpoint has; `last_used` when
    each got a request from here, `passed` how many it could have had since, and others got.
    `complete` says that every engine of the model has reported.
    """

    holds: Holds = field(default_factory=dict)
    blocked: Collection[EndpointKey] = frozenset()
    tried: Collection[EndpointKey] = frozenset()
    claimed: Collection[EndpointKey] = frozenset()
    cached: Mapping[EndpointKey, int] = field(default_factory=dict)
    last_used: Mapping[EndpointKey, float] = field(default_factory=dict)
    passed: Mapping[EndpointKey, int] = field(default_factory=dict)
    now_seconds: float = 0.0
    complete: bool = True

    def hold(self, key: EndpointKey) -> Hold:
        """Return what we have on one endpoint."""
        return self.holds.get(key, NOTHING_HELD)


class Outcome(StrEnum):
    """What a decision says to do."""

    SEND = "send"
    WAIT = "wait"
    NEVER = "never"
    NOBODY = "nobody"


class Why(StrEnum):
    """The reason of an outcome, for people and as a metric label."""

    FITS = "fits"
    WAKES = "wakes"
    MAKES_ROOM = "makes_room"
    ROOMIEST = "roomiest"
    NO_ROOM = "no_room"
    TOO_LARGE = "too_large"
    CLOSED = "closed"


class Excluded(StrEnum):
    """Why an endpoint was not considered further."""

    NOT = ""
    CLOSED = "closed"
    TRIED = "tried"
    BREAKER = "breaker"
    CLAIMED = "claimed"
    NO_ROOM = "no_room"
    NEVER = "never"
    CONTEXT = "context"
    FULL = "full"
    SLOWER = "slower"


@dataclass(frozen=True, slots=True)
class Candidate:
    """One endpoint as the decision saw it; `scored` is None for those that were filtered."""

    endpoint: EndpointView
    fit: Fit
    cached_tokens: int
    excluded: Excluded
    scored: Scored | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do with a request now, and everything it was decided from."""

    outcome: Outcome
    why: Why
    demand: Demand
    candidates: tuple[Candidate, ...] = ()
    winner: EndpointView | None = None

    @property
    def won(self) -> Candidate | None:
        """The winner with its figures."""
        key = None if self.winner is None else self.winner.key
        return next((item for item in self.candidates if item.endpoint.key == key), None)

    @property
    def passed(self) -> tuple[EndpointKey, ...]:
        """The endpoints that could have taken it as well."""
        key = None if self.winner is None else self.winner.key
        return tuple(
            item.endpoint.key
            for item in self.candidates
            if item.scored is not None and item.endpoint.key != key
        )

    @property
    def could_hold(self) -> frozenset[EndpointKey]:
        """The endpoints that a request which waits is waiting for."""
        return frozenset(
            item.endpoint.key
            for item in self.candidates
            if item.excluded in {Excluded.NO_ROOM, Excluded.FULL, Excluded.CLAIMED}
            and not item.fit.never
        )


@dataclass(frozen=True, slots=True)
class _Case:
    """One question: who may take this, with each one's fit."""

    candidates: Sequence[EndpointView]
    demand: Demand
    around: Circumstances
    fits: Mapping[EndpointKey, Fit]


def decide(
    candidates: Sequence[EndpointView], demand: Demand, around: Circumstances, draw: float
) -> Decision:
    """Return where to send a request, or why nowhere now.

    First among those that take it now and have room; then among those whose engine was unloaded
    and would have room once back; then where the node can free what is missing. Then an exactly
    counted request waits, or is refused where no node could ever hold it; one that was only
    estimated goes to the roomiest, whose own count has the last word. `draw` in [0, 1) breaks ties.
    """
    fits = {item.key: plan_fit(item, demand, around.hold(item.key)) for item in candidates}
    case = _Case(candidates, demand, around, fits)
    free = [item for item in candidates if item.key not in around.claimed]
    healthy = filter_healthy(filter_open(free, around.tried), around.blocked)
    waking = filter_healthy(filter_waking(free, around.tried), around.blocked)
    plan = _plan_usable(healthy, waking, fits)
    if plan is None and _is_never(case):
        return _conclude(case, Outcome.NEVER, Why.TOO_LARGE)
    if plan is None and _can_wait(case):
        return _conclude(case, Outcome.WAIT, Why.NO_ROOM)
    if plan is None:
        usable = find_roomiest(healthy, around.holds) or find_roomiest(waking, around.holds)
        if not usable:
            return _conclude(case, Outcome.NOBODY, Why.CLOSED)
        plan = (Why.ROOMIEST, usable)
    why, usable = plan
    scored = score_endpoints(
        usable,
        demand,
        around.holds,
        cached=around.cached,
        passed=around.passed,
        now_seconds=around.now_seconds,
    )
    best = pick(scored, draw, around.last_used)
    if why is Why.FITS and best is not None and fits[best.endpoint.key].drops_cache:
        why = Why.MAKES_ROOM
    return _conclude(case, Outcome.SEND, why, scored, best)


def _plan_usable(
    healthy: Sequence[EndpointView],
    waking: Sequence[EndpointView],
    fits: Mapping[EndpointKey, Fit],
) -> tuple[Why, tuple[EndpointView, ...]] | None:
    """Return the endpoints of the best kind that has any, and which kind that is."""
    # A hot cache that fills a small node is no reason to crowd a large one: it gives way at once.
    ready = tuple(item for item in healthy if fits[item.key].fits_now or fits[item.key].drops_cache)
    if ready:
        return Why.FITS, ready
    back = tuple(item for item in waking if fits[item.key].fits_now)
    if back:
        return Why.WAKES, back
    freed = tuple(item for item in healthy if fits[item.key].may_make_room)
    return (Why.MAKES_ROOM, freed) if freed else None


def _is_never(case: _Case) -> bool:
    """Whether every engine there is has told, just now, that its node can never hold it."""
    around = case.around
    if not (case.demand.exact and around.complete and case.candidates) or around.tried:
        return False
    return all(
        case.fits[item.key].never
        and case.fits[item.key].limited_by is Limit.MEMORY
        and around.now_seconds - item.reported_seconds <= _FRESH_REPORT_SECONDS
        for item in case.candidates
    )


def _can_wait(case: _Case) -> bool:
    """Whether room may come: somebody open could hold it once others are done.

    A guess at the tokens is no reason to hold a request back, only full or claimed places are.
    """
    hopeful = [
        item
        for item in case.candidates
        if (item.accepting or item.wakes)
        and item.key not in case.around.tried
        and case.fits[item.key].limited_by is not Limit.CONTEXT
        and not case.fits[item.key].never
    ]
    certain = case.demand.exact and all(case.fits[item.key].known for item in hopeful)
    full = all(
        item.key in case.around.claimed or case.fits[item.key].limited_by is Limit.PLACES
        for item in hopeful
    )
    return bool(hopeful) and (certain or full)


def _conclude(
    case: _Case,
    outcome: Outcome,
    why: Why,
    scored: Sequence[Scored] = (),
    best: Scored | None = None,
) -> Decision:
    by_key = {item.endpoint.key: item for item in scored}
    shown = tuple(
        Candidate(
            endpoint=item,
            fit=case.fits[item.key],
            cached_tokens=case.around.cached.get(item.key, 0),
            excluded=_exclude(item, case, considered=item.key in by_key),
            scored=by_key.get(item.key),
        )
        for item in case.candidates
        if best is None or item.key != best.endpoint.key
    )
    if best is None:
        return Decision(outcome, why, case.demand, shown)
    key = best.endpoint.key
    cached = case.around.cached.get(key, 0)
    won = Candidate(best.endpoint, case.fits[key], cached, Excluded.NOT, best)
    return Decision(outcome, why, case.demand, (won, *shown), best.endpoint)


_BY_LIMIT = {
    Limit.MEMORY: Excluded.NO_ROOM,
    Limit.CONTEXT: Excluded.CONTEXT,
    Limit.PLACES: Excluded.FULL,
}


def _exclude(item: EndpointView, case: _Case, *, considered: bool) -> Excluded:
    """Return why an endpoint did not win; the first reason that holds."""
    fit, around = case.fits[item.key], case.around
    if considered:
        return Excluded.SLOWER
    if item.key in around.tried:
        return Excluded.TRIED
    if not (item.accepting or item.wakes):
        return Excluded.CLOSED
    if item.key in around.claimed:
        return Excluded.CLAIMED
    if fit.never and fit.limited_by is Limit.MEMORY:
        return Excluded.NEVER
    if not fit.fits_now:
        return _BY_LIMIT[fit.limited_by]
    return Excluded.BREAKER if item.key in around.blocked else Excluded.SLOWER
