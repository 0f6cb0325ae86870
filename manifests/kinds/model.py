"""The `Model` kind: which weights to serve, how many copies, where and under which limits."""

from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from manifests.kinds.meta import (
    Condition,
    Declared,
    FleetObject,
    Name,
    NonNegative,
    Positive,
    Reported,
)
from manifests.units import Duration


class EngineType(StrEnum):
    """How an engine decodes; `speculative` drafts tokens and verifies them."""

    BATCHED = "batched"
    SPECULATIVE = "speculative"


class Source(Declared):
    """Where the weights come from; exactly one of `path` and `hub`."""

    path: str | None = Field(
        default=None, description="directory on the node holding config.json and *.safetensors"
    )
    hub: str | None = Field(default=None, description="hub repository, such as org/name")
    revision: str | None = Field(default=None, description="hub branch, tag or commit")

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.path is None) == (self.hub is None):
            raise ValueError("set exactly one of path (a directory) and hub (a repository)")
        if self.revision is not None and self.hub is None:
            raise ValueError("revision belongs to hub; a path has no revision")
        return self

    @property
    def text(self) -> str:
        """The source in one word for tables and messages."""
        if self.path is not None:
            return self.path
        return f"{self.hub}@{self.revision}" if self.revision else str(self.hub)


class Context(Declared):
    """How many tokens one request may hold."""

    max_tokens: Positive | None = Field(
        default=None, description="prompt plus output; None means the model's own limit"
    )
    min_tokens: Positive = Field(
        default=2048, description="a node must fit the weights and this much context to be chosen"
    )


class Prefill(Declared):
    """How a prompt is fed to the model."""

    chunk_tokens: Positive | None = Field(
        default=None, description="tokens per forward pass; None lets the engine choose"
    )


class Batching(Declared):
    """How many requests one engine runs and holds."""

    max_running: Positive = Field(default=32, description="requests decoded together")
    max_waiting: NonNegative = Field(default=128, description="requests queued before refusal")


class Sampling(Declared):
    """Defaults for requests that do not say; None leaves the server's default."""

    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: NonNegative | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    max_tokens: Positive | None = None
    repetition_penalty: Annotated[float, Field(gt=0)] | None = None


class ChatTemplate(Declared):
    """Extra variables for the model's own chat template."""

    variables: dict[str, Any] = Field(
        default_factory=dict, description="such as enable_thinking: false"
    )


ReasoningParser = Literal["auto", "none", "think", "longcat", "seed", "colon", "mistral", "gemma"]
"""How a model's thinking is told from its answer: by the tags that its tokenizer or chat template
knows, not at all, or by the tags of one style (manifests/prompt/thinking.py)."""


class Keep(Declared):
    """When an engine may be unloaded to make room."""

    pinned: bool = Field(default=False, description="never unload while declared")
    idle_ttl: Duration | None = Field(
        alias="idleTTL",
        default=None,
        description="unload after this long without a request; None means never",
    )


class Rollout(Declared):
    """How engines are replaced when the model changes."""

    strategy: Literal["Surge", "Recreate"] = "Surge"
    max_unavailable: NonNegative = 0
    progress_deadline: Duration = Duration(text="10m", seconds=600.0)


class ModelSpec(Declared):
    """What the user declares about one model."""

    source: Source
    replicas: Annotated[int, Field(ge=0, le=1000)] = 1
    engine_type: EngineType = EngineType.BATCHED
    aliases: list[str] = Field(default_factory=list, description="further public names")
    node_selector: dict[str, str] = Field(default_factory=dict)
    memory_guard: Name | None = Field(default=None, description="a MemoryGuard by name")
    cache_budget: Name | None = Field(default=None, description="a CacheBudget by name")
    context: Context = Field(default_factory=Context)
    prefill: Prefill = Field(default_factory=Prefill)
    batching: Batching = Field(default_factory=Batching)
    sampling: Sampling = Field(default_factory=Sampling)
    chat_template: ChatTemplate = Field(default_factory=ChatTemplate)
    tool_parser: str | None = None
    reasoning_parser: ReasoningParser = Field(
        default="auto", description="by which tags thinking becomes reasoning_content"
    )
    keep: Keep = Field(default_factory=Keep)
    rollout: Rollout = Field(default_factory=Rollout)


class ModelStatus(Reported):
    """What the controller last saw of one model."""

    observed_generation: int = 0
    replicas: int = 0
    ready_replicas: int = 0
    updated_replicas: int = 0
    selector: str = ""
    fingerprint: str = ""
    weights_bytes: int = 0
    kv_bytes_per_token: int = 0
    context_tokens: int = 0
    conditions: tuple[Condition, ...] = ()


class Model(FleetObject):
    """A model the fleet serves under its name and aliases."""

    kind: Literal["Model"] = "Model"
    spec: ModelSpec
    status: ModelStatus = Field(default_factory=ModelStatus)
