"""Whether a request fits an endpoint, in bytes, by the arithmetic of its node; pure.

The verdict is `manifests.sizing.preflight`'s, which the node asks too: on the same figures both
say the same. What the gateway has just sent and no report counts yet is taken as promised. Where a
node does not tell its figures, its own count of tokens that fit stands in. Called by the decision.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache

from controller.gateway.choice.demand import NOTHING_HELD, Demand, Hold
from controller.gateway.nodes.endpoints import EndpointView
from manifests.errors import Refusal, Retryable
from manifests.sizing.advice import Fit as PromptFit
from manifests.sizing.advice import Need, estimate_need
from manifests.sizing.advice import plan_fit as plan_prompt_fit
from manifests.sizing.estimate import PrefillCase
from manifests.sizing.preflight import clip_need, judge_prefill
from manifests.sizing.shape import ModelShape
from manifests.wire.room import EngineRoom

BOUNDLESS_TOKENS = 2**62


_Asked = tuple[int, int, int, int]
"""A demand as plain figures: prompt tokens, output tokens, rows, tokens a chunk."""


class Limit(StrEnum):
    """What keeps a request from an endpoint."""

    NOTHING = ""
    MEMORY = "memory"
    CONTEXT = "context"
    PLACES = "places"


@dataclass(frozen=True, slots=True)
class Fit:
    """One request on one endpoint. Units: bytes, all 0 where the node does not tell.

    `have_bytes` is free now for it, less what we sent there; `ever_bytes` on the node's best day.
    `may_make_room` says that the node could free what is missing, by dropping what it caches and
    unloading what is idle; `drops_cache` that hot caches alone are enough. `refusal` is the node's
    own no, of this moment.
    """

    need_bytes: int = 0
    have_bytes: int = 0
    ever_bytes: int = 0
    fits_now: bool = True
    fits_ever: bool = True
    may_make_room: bool = False
    drops_cache: bool = False
    limited_by: Limit = Limit.NOTHING
    refusal: Refusal | None = None
    known: bool = False

    @property
    def never(self) -> bool:
        """Whether the node would say that its memory can never hold the request."""
        return self.known and not self.fits_ever


def plan_fit(endpoint: EndpointView, demand: Demand, hold: Hold = NOTHING_HELD) -> Fit:
    """Return whether and how a request fits.

    Cached tokens are copied into the row's memory, so the node counts them as any others.
    """
    if endpoint.room is None or endpoint.shape is None:
        fit = _fit_by_tokens(endpoint, demand, hold)
    else:
        fit = _fit_by_bytes(endpoint.room, endpoint.shape, _asked(endpoint, demand), hold)
    limit = fit.limited_by
    if demand.prompt_tokens >= context_of(endpoint):
        limit = Limit.CONTEXT
    elif fit.fits_now and not _has_place(endpoint, hold):
        limit = Limit.PLACES
    return _limited(fit, limit) if limit is not fit.limited_by else fit


def _asked(endpoint: EndpointView, demand: Demand) -> _Asked:
    """Return the demand as the endpoint's node would put it to its arbiter."""
    room = endpoint.room
    output = demand.output_tokens
    if room is not None and not demand.capped:
        output = room.default_output_tokens
    left = max(0, context_of(endpoint) - demand.prompt_tokens)
    chunk_tokens = room.chunk_tokens if room is not None else 512
    return demand.prompt_tokens, min(output, left), demand.rows, chunk_tokens


def _case(asked: _Asked) -> PrefillCase:
    prompt_tokens, max_tokens, rows, chunk_tokens = asked
    return PrefillCase(
        prompt_tokens=prompt_tokens, max_tokens=max_tokens, rows=rows, chunk_tokens=chunk_tokens
    )


def describe_never(endpoint: EndpointView, demand: Demand) -> Refusal | None:
    """Return the node's no with the longest prompt that would fit, or None when it has none.

    Costs more than a verdict; asked once for the refusal that a client gets.
    """
    room, shape = endpoint.room, endpoint.shape
    if room is None or shape is None:
        return None
    asked = _asked(endpoint, demand)
    case, standing = _case(asked), room.standing()
    need = clip_need(*_bounds(_need(room, shape, asked)), standing)
    ratio = 1.0 if room.alone else room.transient_ratio

    def fit_within(limit_bytes: int) -> PromptFit:
        return plan_prompt_fit(shape, case, limit_bytes, fused=room.fused, transient_ratio=ratio)

    return judge_prefill(need, standing, fit_within)


def context_of(endpoint: EndpointView) -> int:
    """Return the context limit; an unreported one does not limit."""
    return endpoint.context_tokens or BOUNDLESS_TOKENS


def free_tokens(endpoint: EndpointView, hold: Hold) -> int:
    """Return the tokens that fit now, less what this gateway just sent there.

    For an engine that has yet to come back it is what its node gives on its best day: its load
    makes room, and what is free before it says nothing.
    """
    fit = endpoint.tokens_fit_now
    if endpoint.wakes:
        fit = endpoint.tokens_fit_ever or context_of(endpoint)
    return fit - hold.unseen_tokens


def _fit_by_tokens(endpoint: EndpointView, demand: Demand, hold: Hold) -> Fit:
    if demand.total_tokens <= free_tokens(endpoint, hold):
        return Fit()
    return Fit(fits_now=False, may_make_room=False, limited_by=Limit.MEMORY)


def _fit_by_bytes(room: EngineRoom, shape: ModelShape, asked: _Asked, hold: Hold) -> Fit:
    need = _need(room, shape, asked)
    free_bytes = room.own_standing.headroom_bytes - hold.unseen_bytes
    if not room.absent_bytes and need.need_bytes <= min(need.least_bytes, free_bytes):
        # What most requests are: nothing to clip, nothing in the way.
        return Fit(need.need_bytes, free_bytes, room.ever_bytes, known=True)
    standing = room.standing(hold.unseen_bytes)
    need_bytes = clip_need(*_bounds(need), standing)
    refusal = judge_prefill(need_bytes, standing)
    never = refusal is not None and refusal.retryable is Retryable.NO
    free_bytes = standing.headroom_bytes
    if room.absent_bytes:
        # Its load makes the room; what is free before it says nothing.
        free_bytes = room.ever_bytes - hold.unseen_bytes
    fits = need_bytes <= free_bytes
    return Fit(
        need_bytes=need_bytes,
        have_bytes=max(0, free_bytes),
        ever_bytes=room.ever_bytes,
        fits_now=fits,
        fits_ever=not never,
        may_make_room=not never and not fits and need_bytes <= free_bytes + room.givable_bytes,
        drops_cache=not never and not fits and need_bytes <= free_bytes + room.hot_bytes,
        limited_by=Limit.NOTHING if fits else Limit.MEMORY,
        refusal=None if fits else refusal,
        known=True,
    )


def _need(room: EngineRoom, shape: ModelShape, asked: _Asked) -> Need:
    return _needed(shape, asked, room.fused, room.transient_ratio)


# Copies of a model ask for the same of one request on every node, and short requests are alike.
@lru_cache(maxsize=4096)
def _needed(shape: ModelShape, asked: _Asked, fused: bool, transient_ratio: float) -> Need:
    return estimate_need(shape, _case(asked), fused=fused, transient_ratio=transient_ratio)


def _bounds(need: Need) -> tuple[int, int]:
    return need.need_bytes, need.least_bytes


def _limited(fit: Fit, limit: Limit) -> Fit:
    return replace(fit, fits_now=False, may_make_room=False, drops_cache=False, limited_by=limit)


def _has_place(endpoint: EndpointView, hold: Hold) -> bool:
    taken = endpoint.running + endpoint.waiting + hold.unseen_requests
    return endpoint.places == 0 or taken < endpoint.places
