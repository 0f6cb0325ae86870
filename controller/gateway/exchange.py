"""One client request on its way, and what came of it so far.

Called by the handlers, which make it, the proxy and the seating.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from controller.gateway.choice.demand import Demand
from controller.gateway.choice.prompt_facts import PromptFacts
from controller.gateway.http.asgi import Downstream, Inbound
from controller.gateway.http.peek import MAX_ROWS, Peeked
from controller.gateway.http.told import Told
from controller.gateway.keys.access import NOBODY, Caller
from controller.gateway.nodes.endpoints import EndpointKey
from controller.gateway.sending.attempts import History
from controller.gateway.sending.refusals import No
from controller.gateway.settings import GatewaySettings
from manifests.wire.tenant import TENANT_HEADER


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request that is fit to forward, and where its answer goes.

    `models` are the Models to try in turn, more than one behind a Route, and `model` the one in
    question. `tenancy` are the headers that tell an agent with whom cached prefixes are shared.
    `facts` are its prompt in tokens, by Model, where it could be counted.
    """

    inbound: Inbound
    down: Downstream
    peeked: Peeked
    model: str
    body: bytes = field(repr=False)
    started_seconds: float
    models: tuple[str, ...] = ()
    caller: Caller = NOBODY
    tenancy: Mapping[str, str] = field(default_factory=dict)
    cached: Mapping[EndpointKey, int] = field(default_factory=dict)
    facts: Mapping[str, PromptFacts] = field(default_factory=dict)

    @property
    def key_name(self) -> str:
        """The name of the ApiKey it came with; empty without one."""
        return self.caller.name

    @property
    def priority(self) -> int:
        """Who waits less; higher goes first. With a key a client may stand back, never ahead."""
        asked = self.peeked.priority
        return asked if self.caller.key is None else self.caller.priority + min(0, asked)

    @property
    def tenant(self) -> str:
        """Who shares with others of one priority: the key, else whom the client says it is."""
        return self.key_name or self.tenancy.get(TENANT_HEADER, "")

    def left_seconds(self, now: float) -> float:
        """Return what is left of the client's time; infinite without a deadline."""
        deadline = self.peeked.deadline_seconds
        return math.inf if deadline is None else deadline - (now - self.started_seconds)


@dataclass(slots=True)
class Course:
    """What happened to one request so far.

    Endpoints out of reach do not use up attempts: the request never got there. Nor do noes about
    memory, which cost an agent nothing but tokenizing. `hopeless` are Models of a Route whose no
    holds on every node. `told` says what the client has of a stream; each of its `cuts` begins
    attempts and time anew, but not faults.
    """

    tried: set[EndpointKey] = field(default_factory=set)
    noes: list[No] = field(default_factory=list)
    attempts: int = 0
    faults: int = 0
    stale: int = 0
    waited_seconds: float = 0.0
    hopeless: set[str] = field(default_factory=set)
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
    """Return what a request asks for: counted where it could be, else estimated."""
    peeked, facts = exchange.peeked, exchange.facts.get(exchange.model)
    output = settings.assumed_output_tokens if peeked.max_tokens is None else peeked.max_tokens
    return Demand(
        prompt_tokens=peeked.prompt_tokens if facts is None else facts.tokens,
        output_tokens=output,
        exact=peeked.exact if facts is None else facts.exact,
        capped=peeked.max_tokens is not None,
        rows=peeked.rows if facts is None else min(MAX_ROWS, peeked.rows * facts.prompts),
    )
