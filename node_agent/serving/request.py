"""What a client asked for, checked and frozen; the same for every wire dialect.

Values only. `dialect.py` makes them, `completion.py` runs them.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from manifests.prompt.body import ChatPrompt, TextPrompts
from manifests.wire.continuation import Continuation


class Endpoint(StrEnum):
    """Which route a request came by; decides the shape of the answer."""

    CHAT = "chat"
    COMPLETIONS = "completions"


@dataclass(frozen=True, slots=True)
class SamplingRequest:
    """The sampling settings a client sent; None means it did not say."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    logit_bias: dict[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One request. `top_logprobs` None means no log-probabilities; `max_tokens` None, no cap.

    `tenant` names who asks, where that is known, and `cache_salt` is the client's own: each keeps
    its cached prefixes apart; `isolated` does so for the tenant whatever the node's budget says.
    `served_model` is the model to answer with when `model` is a public name of it that only a
    gateway knows. A higher `priority` goes first. `deadline_seconds` count from when the request
    came; None is no deadline. `elapsed_seconds` of them a gateway had used up before. `continues`
    is the stream of which this is the rest.
    """

    endpoint: Endpoint
    model: str
    prompt: ChatPrompt | TextPrompts
    choices: int = 1
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    top_logprobs: int | None = None
    stream: bool = False
    include_usage: bool = False
    priority: int = 0
    deadline_seconds: float | None = None
    elapsed_seconds: float = 0.0
    tenant: str = ""
    isolated: bool = False
    served_model: str = ""
    cache_salt: str = ""
    sampling: SamplingRequest = field(default_factory=SamplingRequest)
    unknown_fields: tuple[str, ...] = ()
    continues: Continuation | None = None

    @property
    def lease_name(self) -> str:
        """The name by which this node knows the model."""
        return self.served_model or self.model

    @property
    def rows(self) -> int:
        """How many answers are generated: prompts times choices."""
        prompts = self.prompt.count if isinstance(self.prompt, TextPrompts) else 1
        return prompts * self.choices
