"""The `CacheBudget` kind: how much SSD and RAM the KV cache may use on a node."""

from typing import Literal

from pydantic import Field

from manifests.kinds.meta import Condition, Declared, FleetObject, Positive, Reported
from manifests.units import GIB, Duration, Quantity


class SsdTier(Declared):
    """The blocks on disk."""

    enabled: bool = True
    directory: str | None = Field(default=None, description="None: a folder under the agent's data")
    size: Quantity = Quantity(text="50Gi", bytes=50 * GIB)
    leave_free: Quantity = Quantity(text="20Gi", bytes=20 * GIB)
    durable: bool = Field(default=False, description="flush each block to the drive")
    required: bool = Field(default=False, description="refuse to serve without the directory")


class HotTier(Declared):
    """The blocks in RAM; counted in the node's memory ledger."""

    enabled: bool = True
    size: Quantity = Quantity(text="1Gi", bytes=GIB)


class CacheBudgetSpec(Declared):
    """What the KV cache may use; `enabled: false` switches a tier off."""

    ssd: SsdTier = Field(default_factory=SsdTier)
    hot: HotTier = Field(default_factory=HotTier)
    block_tokens: Positive = 256
    retention: Duration | None = Field(default=None, description="drop blocks unused for this long")
    isolation: Literal["none", "tenant"] = "none"
    node_selector: dict[str, str] = Field(default_factory=dict)


class CacheBudgetStatus(Reported):
    """Which nodes follow this budget."""

    observed_generation: int = 0
    nodes: tuple[str, ...] = ()
    conditions: tuple[Condition, ...] = ()


class CacheBudget(FleetObject):
    """How much SSD and RAM the KV cache of the selected nodes may use."""

    kind: Literal["CacheBudget"] = "CacheBudget"
    spec: CacheBudgetSpec = Field(default_factory=CacheBudgetSpec)
    status: CacheBudgetStatus = Field(default_factory=CacheBudgetStatus)
