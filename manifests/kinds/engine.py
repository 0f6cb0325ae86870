"""The `Engine` kind: one running copy of a model on one node.

The controller makes Engines from Models as a ReplicaSet makes Pods; the node's agent
reconciles them as a kubelet does and reports their phase.
"""

from enum import StrEnum
from typing import Literal

from pydantic import Field

from manifests.kinds.meta import Condition, Declared, FleetObject, Name, Reported
from manifests.kinds.model import (
    Batching,
    ChatTemplate,
    Context,
    EngineType,
    Keep,
    Prefill,
    ReasoningParser,
    Sampling,
    Source,
)

ENGINE_FINALIZER = "mlxfleet.dev/engine-stopped"
MODEL_LABEL = "mlxfleet.dev/model"
NODE_LABEL = "mlxfleet.dev/node"
REVISION_LABEL = "mlxfleet.dev/revision"


class EngineSpec(Declared):
    """Everything the agent needs to run the copy; set by the controller, never edited."""

    model: Name
    node: Name
    revision: str = Field(description="hash of the model settings this copy was made from")
    source: Source
    engine_type: EngineType = EngineType.BATCHED
    aliases: list[str] = Field(default_factory=list)
    memory_guard: Name | None = None
    cache_budget: Name | None = None
    context: Context = Field(default_factory=Context)
    prefill: Prefill = Field(default_factory=Prefill)
    batching: Batching = Field(default_factory=Batching)
    sampling: Sampling = Field(default_factory=Sampling)
    chat_template: ChatTemplate = Field(default_factory=ChatTemplate)
    tool_parser: str | None = None
    reasoning_parser: ReasoningParser = "auto"
    keep: Keep = Field(default_factory=Keep)


class EnginePhase(StrEnum):
    """Where an engine is in its life."""

    PENDING = "Pending"
    DOWNLOADING = "Downloading"
    LOADING = "Loading"
    READY = "Ready"
    DRAINING = "Draining"
    FAILED = "Failed"
    STOPPED = "Stopped"


class Progress(Reported):
    """How far a download or a load is. Units: bytes."""

    done: int = 0
    total: int = 0


class EngineCache(Reported):
    """The prefix cache of one copy. Units: bytes, tokens, seconds; counters since its start.

    The ratios are shares of all prompt tokens: in all, and by the tier they were restored from.
    The SSD's bytes and blocks are of all engines that share its directory. `reason` is empty
    while all is well; `message` then tells of what takes effect at the next start only.
    """

    budget: str = Field(default="", description="a CacheBudget; empty: the agent's own")
    fingerprint: str = Field(default="", description="root of its prefix chains")
    block_tokens: int = 0
    hot_used_bytes: int = 0
    hot_capacity_bytes: int = 0
    hot_blocks: int = 0
    ssd_used_bytes: int = 0
    ssd_blocks: int = 0
    queued_bytes: int = 0
    hit_ratio: float = 0.0
    hot_hit_ratio: float = 0.0
    ssd_hit_ratio: float = 0.0
    tokens_saved: int = 0
    misses: int = 0
    restores: int = 0
    restore_seconds: float = 0.0
    saves: int = 0
    saves_persisted: int = 0
    drops: int = 0
    hot_evictions: int = 0
    ssd_evictions: int = 0
    corruptions: int = 0
    faults: int = 0
    reason: str = ""
    message: str = ""


class EngineStatus(Reported):
    """What the agent last saw of the copy.

    `wakes` holds while it is unloaded to make room and while it comes back: a request sent to it
    waits and is served.
    """

    observed_generation: int = 0
    phase: EnginePhase = EnginePhase.PENDING
    wakes: bool = False
    reason: str = ""
    message: str = ""
    progress: Progress | None = None
    pid: int | None = None
    restarts: int = 0
    next_restart_time: str = ""
    started_time: str = ""
    footprint_bytes: int = 0
    weights_bytes: int = 0
    kv_bytes_per_token: int = 0
    context_tokens: int = 0
    tokens_fit_now: int = 0
    tokens_fit_ever: int = 0
    prefill_tokens_per_second: float = 0.0
    running: int = 0
    waiting: int = 0
    fingerprint: str = ""
    cache: EngineCache | None = Field(default=None, description="None: nothing is cached")
    conditions: tuple[Condition, ...] = ()


class Engine(FleetObject):
    """One copy of a model, bound to a node."""

    kind: Literal["Engine"] = "Engine"
    spec: EngineSpec
    status: EngineStatus = Field(default_factory=EngineStatus)
