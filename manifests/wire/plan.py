"""The answer of `POST /fleet/v1/plan`: which node would take which model, byte by byte.

The request's body is `{"items": [Model, ...]}`; nothing is stored.
"""

from pydantic import Field

from manifests.kinds.meta import Reported
from manifests.kinds.node import CeilingName

PLAN_PATH = "/fleet/v1/plan"


class Candidate(Reported):
    """One node against one copy of a model. Units: bytes.

    `needed` = weights + context (KV of the minimum context and the prefill peak over it);
    `available` = ceiling - used - already placed; `short_bytes` is 0 when it fits.
    """

    node: str
    fits: bool
    chosen: bool = False
    reason: str = Field(default="", description="machine-readable, empty when it fits")
    message: str = ""
    weights_bytes: int = 0
    context_bytes: int = 0
    needed_bytes: int = 0
    ceiling_bytes: int = 0
    placed_bytes: int = 0
    available_bytes: int = 0
    short_bytes: int = 0
    binding: CeilingName | None = None


class ModelPlan(Reported):
    """Where the copies of one model would go."""

    model: str
    source: str
    replicas: int
    placed: int
    context_tokens: int = 0
    kv_bytes_per_token: int = 0
    nodes: tuple[str, ...] = Field(default=(), description="one entry a copy, existing ones first")
    message: str = ""
    candidates: tuple[Candidate, ...] = ()


class PlanReport(Reported):
    """The plan of every model asked about, in the order given."""

    models: tuple[ModelPlan, ...] = ()
