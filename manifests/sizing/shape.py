"""What the estimator needs to know of a model's architecture, as frozen values.

`sizing.architecture` reads them from `config.json`; `sizing.estimate` computes with them.
"""

from enum import StrEnum
from functools import cached_property

from pydantic import Field

from manifests.kinds.meta import Reported


class LayerKind(StrEnum):
    """How one layer remembers the past."""

    FULL = "full"
    SLIDING = "sliding"
    CHUNKED = "chunked"
    MLA = "mla"
    RECURRENT = "recurrent"


class LayerGroup(Reported):
    """Layers of one kind and size.

    Units: `bytes_per_token` is one layer's KV for one token; `constant_bytes` is one layer's
    state whatever the context; `window_tokens` bounds a sliding or chunked layer.
    """

    kind: LayerKind
    layers: int
    bytes_per_token: int = 0
    constant_bytes: int = 0
    window_tokens: int | None = None
    retained_row_bytes: int = Field(
        default=0,
        description="what each recurrent layer keeps alive for every prefilled token until its "
        "chunk ends, when no fused kernel runs",
    )
    passing_row_bytes: int = Field(
        default=0,
        description="the like that is gone again before an attention layer has its scores",
    )
    view_row_bytes: int = Field(
        default=0,
        description="what each recurrent layer's state keeps alive for every token of its last "
        "chunk, because it is a slice of that chunk's input and not a copy",
    )
    block_heads: int = Field(
        default=0, description="heads whose block-local matrices a Mamba layer keeps likewise"
    )


class ModelShape(Reported):
    """What the estimator needs to know of an architecture. Units: tokens, heads, elements.

    `head_dim` is 0 where keys and values differ in size, which no fused kernel takes.
    """

    model_type: str
    groups: tuple[LayerGroup, ...]
    hidden_size: int
    intermediate_size: int
    attention_heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    dtype_bytes: int
    context_tokens: int
    moe: bool = False
    row_elements: int = Field(
        default=0,
        description="elements alive at once for one prefill token in the widest layer; "
        "0 takes the dense rule of thumb, 8 x (intermediate + hidden)",
    )
    expanded_elements: int = Field(
        default=0,
        description="elements per context token that a layer rebuilds from its latent in prefill",
    )
    assumed: tuple[str, ...] = Field(
        default=(),
        description="what the config names and we do not know, counted as full attention",
    )
    score_copies: int = Field(
        default=1, description="score matrices of one layer alive at once when not fused"
    )

    def __hash__(self) -> int:
        return self.content_hash

    @cached_property
    def content_hash(self) -> int:
        """The hash of all fields, computed once: a shape is looked up with every request."""
        return hash(tuple(getattr(self, name) for name in type(self).model_fields))
