"""The `Node` kind: one machine, what it can hold and how it is."""

from enum import StrEnum
from typing import Literal

from pydantic import Field

from manifests.kinds.meta import (
    Condition,
    ConditionStatus,
    Declared,
    FleetObject,
    Reported,
    find_condition,
)

# The reason of Ready=False that an agent writes as its last word: its engines have ended.
AGENT_STOPPED = "AgentStopped"


class Taint(Declared):
    """A mark that keeps engines away from a node."""

    key: str
    value: str = ""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] = "NoSchedule"


class NodeSpec(Declared):
    """What a person decides about a node."""

    unschedulable: bool = Field(default=False, description="cordon: no new engines")
    taints: list[Taint] = Field(default_factory=list)


class CeilingName(StrEnum):
    """Which of the three limits is the smallest."""

    STATIC = "static"
    DYNAMIC = "dynamic"
    METAL = "metal"


class Ceilings(Reported):
    """The node's limits in bytes; `hard` is the least of the three and `binding` names it."""

    static_bytes: int = 0
    dynamic_bytes: int = 0
    metal_bytes: int | None = None
    hard_bytes: int = 0
    abort_bytes: int = 0
    binding: CeilingName = CeilingName.STATIC


class PressureLevel(StrEnum):
    """How near the node is to its ceiling."""

    OK = "ok"
    SOFT = "soft"
    HARD = "hard"
    EMERGENCY = "emergency"


class GuardInForce(Reported):
    """The memory guard a node follows, and what it makes of this machine. Units: bytes.

    Without a name it is the agent's own default. `generation` is that of the guard's spec.
    `ceiling_ratio` below 1 means ceilings lowered after kernel panics; `paused` that new requests
    wait while others run.
    """

    name: str = ""
    generation: int = 0
    tier: str = ""
    soft_bytes: int = 0
    hard_bytes: int = 0
    emergency_bytes: int = 0
    margin_bytes: int = 0
    prefill_concurrency: int = 1
    ceiling_ratio: float = 1.0
    paused: bool = False


class CacheInForce(Reported):
    """The cache budget a node follows, and what its engines hold. Units: bytes.

    Without a name it is the agent's own default. `generation` is that of the budget's spec.
    Engines that name another budget are counted in what is used, not in the sizes. `reason` is
    empty while the disk tier does all it should.
    """

    name: str = ""
    generation: int = 0
    directory: str = Field(default="", description="empty: no SSD tier")
    ssd_used_bytes: int = 0
    ssd_size_bytes: int = 0
    ssd_leave_free_bytes: int = 0
    ssd_blocks: int = 0
    hot_used_bytes: int = 0
    hot_size_bytes: int = 0
    block_tokens: int = 0
    isolation: str = ""
    reason: str = ""
    message: str = ""


class NodeInfo(Reported):
    """What kind of machine this is."""

    os: str = ""
    arch: str = ""
    chip: str = ""
    host: str = ""
    agent_version: str = ""
    mlx_version: str = ""
    boot_id: str = ""
    simulated: bool = False
    fused: bool = Field(default=False, description="engines have Metal's fused attention")


class NodeStatus(Reported):
    """What the agent last reported, slowly; live load travels on its load stream."""

    observed_generation: int = 0
    address: str = Field(default="", description="base URL of the agent's HTTP API")
    capacity_bytes: int = 0
    ceilings: Ceilings = Field(default_factory=Ceilings)
    used_bytes: int = 0
    reserved_bytes: int = 0
    headroom_bytes: int = 0
    pressure: PressureLevel = PressureLevel.OK
    guard: GuardInForce = Field(default_factory=GuardInForce)
    cache: CacheInForce = Field(default_factory=CacheInForce)
    waiting: int = Field(default=0, description="requests and loads in line for memory")
    engines: int = 0
    lease_time: str = Field(default="", description="RFC 3339 time of the last renewed lease")
    lease_seconds: float = 10.0
    instance: str = Field(default="", description="changes with every start of the agent")
    info: NodeInfo = Field(default_factory=NodeInfo)
    conditions: tuple[Condition, ...] = ()


class Node(FleetObject):
    """One machine of the fleet, registered by its agent."""

    kind: Literal["Node"] = "Node"
    spec: NodeSpec = Field(default_factory=NodeSpec)
    status: NodeStatus = Field(default_factory=NodeStatus)

    @property
    def agent_stopped(self) -> bool:
        """Whether the agent has said goodbye, so that nothing of ours runs there."""
        ready = find_condition(self.status.conditions, "Ready")
        return (
            ready is not None
            and ready.status is ConditionStatus.FALSE
            and ready.reason == AGENT_STOPPED
        )
