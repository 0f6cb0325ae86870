"""How a gateway came to a decision, as `POST /fleet/v1/explain` answers it.

The body is an OpenAI request; nothing is forwarded. `mlxctl route explain` shows the answer.
"""

from manifests.kinds.meta import Reported

EXPLAIN_PATH = "/fleet/v1/explain"


class RouteSeconds(Reported):
    """Where the estimated seconds of a request go; `total` is what endpoints are compared by."""

    total: float = 0.0
    queue: float = 0.0
    prefill: float = 0.0
    restore: float = 0.0
    decode: float = 0.0
    wake: float = 0.0
    penalty: float = 0.0


class RouteCandidate(Reported):
    """One engine as the decision saw it. Units: bytes, tokens.

    `excluded` is empty for the winner. Without `known` the node does not tell bytes.
    """

    node: str
    engine: str
    phase: str
    excluded: str = ""
    known: bool = False
    need_bytes: int = 0
    have_bytes: int = 0
    ever_bytes: int = 0
    fits_now: bool = True
    fits_ever: bool = True
    limited_by: str = ""
    cached_tokens: int = 0
    seconds: RouteSeconds | None = None


class RouteExplanation(Reported):
    """A decision of this moment. `outcome` is send, wait, never or nobody."""

    model: str
    prompt_tokens: int
    output_tokens: int
    exact: bool
    outcome: str
    why: str
    node: str = ""
    engine: str = ""
    route: str = ""
    message: str = ""
    candidates: tuple[RouteCandidate, ...] = ()
