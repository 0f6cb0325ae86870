"""How many seconds until a request's first token on each endpoint, and what it costs others; pure.

Scores are seconds, never counts, so that unequal machines compare. Called by the decision.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from controller.gateway.choice.demand import NOTHING_HELD, Demand, Hold
from controller.gateway.choice.rates import Rates, plan_rates
from controller.gateway.nodes.endpoints import EndpointKey, EndpointView
from manifests.kinds.engine import EnginePhase

FRESH_SECONDS = 1.0
"""Up to this age a report counts as it stands; agents send one a second at least."""

_FADE_SECONDS = 2.0
_UNMEASURED_LOAD_SECONDS = 10.0
# An engine that is already loading is taken to be half way.
_LOADING_RATIO = 0.5
# By how much one more row slows every other while they decode together; an assumption.
_SLOWDOWN_RATIO = 0.25
# Clients ask for room more generously than answers use it; what is above says nothing of speed.
_LIKELY_OUTPUT_TOKENS = 512
# A node whose ceilings were lowered to 0.75 after panics must be this x 0.25 seconds better.
_PANIC_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Parts:
    """Where the seconds go.

    `decode` is what this request and its neighbours lose while they decode together, and what a
    slower engine takes longer than the fastest; `penalty` is for a node that panicked.
    """

    queue: float = 0.0
    prefill: float = 0.0
    restore: float = 0.0
    decode: float = 0.0
    wake: float = 0.0
    penalty: float = 0.0

    @property
    def total(self) -> float:
        """All of it."""
        first = self.queue + self.prefill + self.restore
        return first + self.decode + self.wake + self.penalty

    @property
    def first_token(self) -> float:
        """The seconds until the first token."""
        return self.queue + self.prefill + self.restore + self.wake


@dataclass(frozen=True, slots=True)
class Scored:
    """An endpoint and its estimate."""

    endpoint: EndpointView
    parts: Parts

    @property
    def seconds(self) -> float:
        """The estimate as one figure."""
        return self.parts.total


@dataclass(frozen=True, slots=True)
class Load:
    """The work of one engine: requests, which need not be whole, and seconds of prompts ahead."""

    requests: float = 0.0
    ahead_seconds: float = 0.0


def score_endpoints(
    endpoints: Sequence[EndpointView],
    demand: Demand,
    holds: Mapping[EndpointKey, Hold],
    *,
    cached: Mapping[EndpointKey, int] | None = None,
    passed: Mapping[EndpointKey, int] | None = None,
    now_seconds: float = 0.0,
) -> tuple[Scored, ...]:
    """Return each endpoint with its estimate, in the order given.

    `cached` is how many of the tokens each has, `passed` how many requests went elsewhere since
    its last.
    """
    cached = cached or {}
    found = []
    rates = plan_rates(endpoints, demand, cached, passed or {})
    for item, rate in zip(endpoints, rates, strict=True):
        hold = holds.get(item.key, NOTHING_HELD)
        requests = count_requests(item, hold, now_seconds - item.reported_seconds)
        ahead = estimate_ahead_seconds(item, demand, hold, rate.prefill, now_seconds)
        load = Load(requests, ahead)
        parts = estimate_parts(item, demand, rate, load, cached.get(item.key, 0))
        found.append(Scored(item, parts))
    return tuple(found)


def estimate_parts(
    endpoint: EndpointView, demand: Demand, rates: Rates, load: Load, cached_tokens: int
) -> Parts:
    """Return where the seconds of one request go on one endpoint."""
    cached = max(0, min(cached_tokens, demand.prompt_tokens - 1))
    queue = load.ahead_seconds
    output = min(demand.output_tokens, _LIKELY_OUTPUT_TOKENS)
    alone = output / rates.decode
    if endpoint.max_running:
        # Those over the places must each wait for one of the running requests to end.
        over = max(0.0, load.requests + 1 - endpoint.max_running)
        queue += over * alone / endpoint.max_running
    slower = alone - output / rates.best_decode
    return Parts(
        queue=queue,
        prefill=(demand.prompt_tokens - cached) / rates.prefill,
        restore=cached / rates.restore,
        decode=max(0.0, slower) + alone * load.requests * _SLOWDOWN_RATIO,
        wake=estimate_wake_seconds(endpoint),
        penalty=(1.0 - endpoint.panic_ratio) * _PANIC_SECONDS,
    )


def estimate_wake_seconds(endpoint: EndpointView) -> float:
    """Return how long a request waits for the engine to come back, 0 for one that is there."""
    if not endpoint.wakes:
        return 0.0
    seconds = endpoint.load_seconds or _UNMEASURED_LOAD_SECONDS
    return seconds * _LOADING_RATIO if endpoint.phase is EnginePhase.LOADING else seconds


def trust_ratio(age_seconds: float) -> float:
    """Return how far a report of this age is believed: wholly at first, then less and less."""
    if age_seconds <= FRESH_SECONDS:
        return 1.0
    return math.exp(-(age_seconds - FRESH_SECONDS) / _FADE_SECONDS)


def count_requests(endpoint: EndpointView, hold: Hold, age_seconds: float = 0.0) -> float:
    """Return the requests on an endpoint: as reported plus unseen, never less than our own.

    An old report fades towards what we have there ourselves, so that it can neither shut a node
    out for good nor draw everybody to it.
    """
    reported = endpoint.running + endpoint.waiting + hold.unseen_requests
    more = max(0, reported - hold.requests)
    return hold.requests + more * trust_ratio(age_seconds)


def estimate_ahead_seconds(
    endpoint: EndpointView, demand: Demand, hold: Hold, prefill_rate: float, now_seconds: float
) -> float:
    """Return for how long the engine still computes prompts that came before.

    Ours are known: each begins when it was sent or the one before is done. What its node tells is
    left of all prompts has the last word that ours are done, however long they take; of ours it
    tells too much, since cached tokens count until a prompt begins. Others that wait at a node
    that does not tell are taken to be as long as this request.
    """
    free_at = float("-inf")
    for tokens, since_seconds in hold.feeding:
        free_at = max(free_at, since_seconds) + tokens / prefill_rate
    own = max(0.0, free_at - now_seconds)
    age_seconds = now_seconds - endpoint.reported_seconds
    trust = trust_ratio(age_seconds)
    if endpoint.prompt_tokens_left is not None:
        left = max(0.0, endpoint.prompt_tokens_left / prefill_rate - max(0.0, age_seconds)) * trust
        ours = endpoint.running + endpoint.waiting <= hold.requests
        most = sum(tokens for tokens, _ in hold.feeding) / prefill_rate if ours else math.inf
        return max(own, min(left, most))
    others = max(0, endpoint.waiting - (hold.requests - hold.unseen_requests))
    return own + others * trust * demand.prompt_tokens / prefill_rate
