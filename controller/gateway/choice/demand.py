"""What a request asks for, and what this gateway has in flight already, as frozen values.

Called by the fit, the filters and the scorers.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from controller.gateway.nodes.endpoints import EndpointKey


@dataclass(frozen=True, slots=True)
class Demand:
    """What one request asks for. Units: tokens.

    `exact` says that `prompt_tokens` were counted as the node counts them; otherwise they are an
    estimate from bytes. Not `capped` means that the client set no limit: `output_tokens` is then
    what such answers usually take, and a node reserves for its own default. `rows` answers are
    written at once.
    """

    prompt_tokens: int
    output_tokens: int
    exact: bool = False
    capped: bool = True
    rows: int = 1

    @property
    def total_tokens(self) -> int:
        """Tokens held at the end of the request."""
        return self.prompt_tokens + self.output_tokens


@dataclass(frozen=True, slots=True)
class Hold:
    """What this gateway has in flight on one endpoint.

    `requests` are all of them; `unseen_*` are those too young to be in the last load report:
    `unseen_bytes` are those of the whole node. `feeding` are the prompts sent there, in order: how
    many tokens had to be computed, and when it was sent.
    """

    requests: int = 0
    unseen_requests: int = 0
    unseen_tokens: int = 0
    unseen_bytes: int = 0
    feeding: tuple[tuple[int, float], ...] = ()


Holds = Mapping[EndpointKey, Hold]
NOTHING_HELD = Hold()
