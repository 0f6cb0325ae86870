"""One client request on its way, and what came of it so far.

Called by the handlers, which make it, the proxy and the seating.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from controller.gateway.asgi import Downstream, Inbound
from controller.gateway.demand import Demand
from controller.gateway.endpoints import EndpointKey
from controller.gateway.peek import MAX_ROWS, Peeked
from controller.gateway.prompt_facts import PromptFacts
from controller.gateway.refusals import No
from controller.gateway.settings import GatewaySettings


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request that is fit to forward, and where its answer goes.

    A higher `priority` waits less; keys of one priority share, each known by its `tenant`. `facts`
    are its prompt in tokens, by model, where it could be counted.
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
    facts: Mapping[str, PromptFacts] = field(default_factory=dict)


@dataclass(slots=True)
class Course:
    """What happened to one request so far.

    Endpoints out of reach do not use up attempts: the request never got there. Nor do noes about
    memory, which cost an agent nothing but tokenizing.
    """

    tried: set[EndpointKey] = field(default_factory=set)
    noes: list[No] = field(default_factory=list)
    attempts: int = 0
    faults: int = 0
    stale: int = 0
    waited_seconds: float = 0.0


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
