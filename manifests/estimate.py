"""How many bytes a model and its requests need, from `config.json` and safetensors headers.

Owns the arithmetic that the agent, the placement and the gateway share, so that they agree to
the byte. It never imports MLX and never reads weights.
"""

from enum import StrEnum

from manifests.meta import Reported


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


class ModelShape(Reported):
    """What the estimator needs to know of an architecture. Units: tokens, heads, elements."""

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


class PrefillCase(Reported):
    """One request's demand. Units: tokens; `rows` requests of this size run as one batch.

    `cached_tokens` of the prompt are restored, not computed, but still copied into memory.
    """

    prompt_tokens: int
    cached_tokens: int = 0
    max_tokens: int = 0
    chunk_tokens: int = 512
    rows: int = 1


class PrefillEstimate(Reported):
    """Where the bytes of a request go; `peak_bytes` is what must be free before it starts."""

    kv_bytes: int
    scores_bytes: int
    activations_bytes: int
    growth_bytes: int
    peak_bytes: int
