"""One client request on its way, and what came of it so far.

Called by the handlers, which make it, the proxy and the seating.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from controller.gateway.asgi import Downstream, Inbound
from controller.gateway.attempts import History
from controller.gateway.demand import Demand
from controller.gateway.endpoints import EndpointKey
from controller.gateway.peek import Peeked
from controller.gateway.refusals import No
from controller.gateway.settings import GatewaySettings
from controller.gateway.told import Told


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request that is fit to forward, and where its answer goes.

    A higher `priority` waits less; keys of one priority share, each known by its `tenant`.
    """

    inbound: Inbound
    down: Downstream
    peeked: Peeked
    model: str
    body: bytes = field(repr=False)
    started_seconds: float
    priority: int = 0
    tenant: str = ""
    cached: Mapping[EndpointKey, int] = field(default_factory=dict)

    def left_seconds(self, now: float) -> float:
        """Return what is left of the client's time; infinite without a deadline."""
        deadline = self.peeked.deadline_seconds
        return math.inf if deadline is None else deadline - (now - self.started_seconds)


@dataclass(slots=True)
class Course:
    """What happened to one request so far.

    Endpoints out of reach do not use up attempts: the request never got there. Nor do noes about
    memory, which cost an agent nothing but tokenizing. `told` says what the client has of a stream;
    each of its `cuts` begins attempts and time anew, but not faults.
    """

    tried: set[EndpointKey] = field(default_factory=set)
    noes: list[No] = field(default_factory=list)
    attempts: int = 0
    faults: int = 0
    stale: int = 0
    waited_seconds: float = 0.0
    cuts: int = 0
    cut_seconds: float | None = None
    told: Told = field(default_factory=Told)

    def note_cut(self, no: No, now: float) -> None:
        """Begin anew after a cut: all but the endpoint that was lost may be tried again."""
        self.tried, self.noes = {no.endpoint.key}, [no]
        self.attempts = self.stale = 0
        self.cuts, self.cut_seconds, self.waited_seconds = self.cuts + 1, now, 0.0

    def history(self, exchange: Exchange, now: float) -> History:
        """Return what decides about the next step."""
        since = exchange.started_seconds if self.cut_seconds is None else self.cut_seconds
        return History(
            attempts=self.attempts,
            faults=self.faults,
            stale=self.stale,
            elapsed_seconds=now - since - self.waited_seconds,
            cuts=self.cuts,
            left_seconds=exchange.left_seconds(now),
        )


def demand_of(exchange: Exchange, settings: GatewaySettings) -> Demand:
    """Return what a request asks for."""
    peeked = exchange.peeked
    output = settings.assumed_output_tokens if peeked.max_tokens is None else peeked.max_tokens
    return Demand(
        prompt_tokens=peeked.prompt_tokens,
        output_tokens=output,
        exact=peeked.exact,
        capped=peeked.max_tokens is not None,
        rows=peeked.rows,
    )
