"""How many seconds a request would probably take on each endpoint; pure.

Scores are seconds, never counts, so that unequal machines compare. Called by `selection`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from controller.gateway.endpoints import EndpointView
from controller.gateway.filters import NOTHING_HELD, Demand, Holds
from manifests.engine import EnginePhase

_UNMEASURED_PREFILL = 500.0
_UNMEASURED_DECODE = 20.0
_UNMEASURED_LOAD_SECONDS = 10.0
# An engine that is already loading is taken to be half way.
_LOADING_RATIO = 0.5


@dataclass(frozen=True, slots=True)
class Scored:
    """An endpoint and the estimated seconds until the request is done there."""

    endpoint: EndpointView
    seconds: float


def score_endpoints(
    endpoints: Sequence[EndpointView], demand: Demand, holds: Holds
) -> tuple[Scored, ...]:
    """Return each endpoint with its estimate, in the order given.

    Every request already there is taken to be like this one. An endpoint that has measured no
    rate yet is taken to be as fast as the fastest, so that it gets work and measures one.
    """
    prefill = max((item.prefill_tokens_per_second for item in endpoints), default=0.0)
    decode = max((item.decode_tokens_per_second for item in endpoints), default=0.0)
    return tuple(
        Scored(
            item,
            estimate_seconds(
                demand,
                load=load_of(item, holds),
                prefill_rate=item.prefill_tokens_per_second or prefill or _UNMEASURED_PREFILL,
                decode_rate=item.decode_tokens_per_second or decode or _UNMEASURED_DECODE,
            )
            + estimate_wake_seconds(item),
        )
        for item in endpoints
    )


def estimate_seconds(
    demand: Demand, *, load: int, prefill_rate: float, decode_rate: float
) -> float:
    """Return the seconds to serve this request and `load` requests like it.

    Units: rates in tokens per second, over all requests of the engine.
    """
    one = demand.prompt_tokens / prefill_rate + demand.output_tokens / decode_rate
    return one * (1 + load)


def estimate_wake_seconds(endpoint: EndpointView) -> float:
    """Return how long a request waits for the engine to come back, 0 for one that is there."""
    if not endpoint.wakes:
        return 0.0
    seconds = endpoint.load_seconds or _UNMEASURED_LOAD_SECONDS
    return seconds * _LOADING_RATIO if endpoint.phase is EnginePhase.LOADING else seconds


def load_of(endpoint: EndpointView, holds: Holds) -> int:
    """Return the requests on an endpoint: as reported plus unseen, never less than our own."""
    hold = holds.get(endpoint.key, NOTHING_HELD)
    return max(endpoint.running + endpoint.waiting + hold.unseen_requests, hold.requests)
