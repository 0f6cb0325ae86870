"""Reads a `ModelShape` from a model's `config.json`. Pure; never imports MLX.

It says how mlx-lm caches each layer, which is not always what the model's authors describe:
mlx-lm keeps the whole past for Gemma 2, Mistral and Qwen 2 although their configs name a window,
and stores DeepSeek V2 uncompressed. An architecture that is not listed counts as full attention,
and so does a kind of layer that nobody here knows, which `ModelShape.assumed` then names: its
cache is never larger. Source: mlx-lm 0.32.2, `models/*.py`.
"""

from collections.abc import Mapping
from typing import Any

from manifests.sizing.config_fields import ConfigFields
from manifests.sizing.shape import LayerGroup, LayerKind, ModelShape

# Omni models nest twice: thinker_config.text_config.
LANGUAGE_KEYS = ("text_config", "language_config", "llm_config", "thinker_config")

# A config may come from anywhere; more layers than this would only cost memory to count.
MAX_LAYERS = 10_000

# Recurrent state is kept in fp32 whatever the model's dtype.
STATE_BYTES = 4

# Elements alive for one prefilled token, for each element of the hidden and the inner width.
DENSE_ROW_FACTOR = 8

# A model without attention has no limit of its own; this keeps arithmetic finite.
UNBOUNDED_TOKENS = 1 << 20

# mlx-lm makes a rotating cache for these where the config asks for a window. Source: `make_cache`.
HONOURS_WINDOW = frozenset(
    (
        "afmoe",
        "cohere2",
        "exaone4",
        "exaone_moe",
        "gemma3",
        "gemma3_text",
        "gemma3n_text",
        "gemma4_text",
        "gpt_oss",
        "laguna",
        "llama",
        "mellum",
        "ministral3",
        "mistral",
        "olmo3",
        "step3p5",
    )
)
WINDOW_PATTERNS = {"gemma3_text": 6, "gemma3": 6, "cohere2": 4, "gemma4_text": 5}

# mlx-lm caches the latent for these; other models with `kv_lora_rank` cache full keys and values.
CACHES_LATENT = frozenset(
    (
        "deepseek_v3",
        "deepseek_v32",
        "glm4_moe_lite",
        "glm_moe_dsa",
        "joyai_llm_flash",
        "kimi_k2",
        "mistral4",
    )
)
MAMBA = frozenset(("falcon_mamba", "mamba", "mamba2"))
GATED_DELTA = frozenset(
    ("qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text")
)

# Published configs leave these out and rely on the code's defaults. Source: mlx-lm's ModelArgs.
DEFAULTS: dict[str, dict[str, Any]] = {
    "gemma3_text": {
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "vocab_size": 262_208,
        "sliding_window": 1024,
        "max_position_embeddings": 131_072,
    },
    "gemma4_text": {"max_position_embeddings": 131_072, "sliding_window": 512},
    "gpt_oss": {"sliding_window": 128, "max_position_embeddings": 131_072},
}

ATTENTION_NAMES = frozenset(("full_attention", "attention", "hybrid", "global"))
RECURRENT_NAMES = frozenset(("linear_attention", "mamba", "mamba2", "conv", "recurrent"))
SLIDING_NAMES = frozenset(("sliding_attention", "local"))
KNOWN_NAMES = ATTENTION_NAMES | RECURRENT_NAMES | SLIDING_NAMES | {"chunked_attention"}


def read_shape(config: Mapping[str, Any], *, dtype_bytes: int | None = None) -> ModelShape:
    """Return the shape that a parsed `config.json` describes.

    `dtype_bytes` is what the weights say, which is what mlx-lm computes in; without it the
    config's own dtype counts.

    Raises: ValueError naming the field that is missing or makes no sense.
    """
    fields = language_fields(config)
    model_type = fields.text("model_type")
    dtype_bytes = dtype_bytes or fields.dtype_bytes()
    recurrent_only = model_type in MAMBA
    heads = fields.optional("num_attention_heads", "n_head", "n_heads", "num_heads")
    if heads is None and not recurrent_only:
        raise fields.missing("num_attention_heads")
    hidden = fields.integer("hidden_size", "n_embd", "d_model", "dim")
    names = _layer_names(fields, model_type)
    groups = _grouped(_layers(fields, names, dtype_bytes))
    latent = model_type in CACHES_LATENT
    context = fields.optional("max_position_embeddings", "max_seq_len", "n_positions", "seq_length")
    if context is None and not recurrent_only:
        raise fields.missing("max_position_embeddings")
    return ModelShape(
        model_type=model_type,
        groups=groups,
        hidden_size=hidden,
        intermediate_size=_intermediate(fields, hidden),
        attention_heads=0 if recurrent_only else heads or 0,
        kv_heads=0 if recurrent_only else _kv_heads(fields, heads or 0),
        head_dim=0 if recurrent_only else _head_dim(fields),
        vocab_size=fields.integer("vocab_size"),
        dtype_bytes=dtype_bytes,
        context_tokens=UNBOUNDED_TOKENS if recurrent_only or context is None else context,
        moe=_experts(fields) > 0,
        row_elements=_row_elements(fields, model_type, hidden),
        expanded_elements=_expanded(fields) if latent else 0,
        score_copies=_score_copies(model_type, latent=latent),
        assumed=tuple(sorted(set(names) - KNOWN_NAMES)),
    )


def language_fields(config: Mapping[str, Any]) -> ConfigFields:
    """Return the fields of the language model, which a multimodal config nests.

    A vision encoder's sizes may stand at the top level, so the nested config is never mixed with
    it; only the dtype, and a model type that is nowhere else, are looked up there.
    """
    inner, prefix = config, ""
    while key := next((k for k in LANGUAGE_KEYS if isinstance(inner.get(k), Mapping)), None):
        kept = ("model_type", "torch_dtype", "dtype")
        outer = {name: inner[name] for name in kept if name in inner}
        inner, prefix = {**outer, **inner[key]}, f"{prefix}{key}."
    return ConfigFields(_with_defaults(inner), prefix=prefix)


def _with_defaults(values: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**DEFAULTS.get(str(values.get("model_type")), {}), **values}


def _experts(fields: ConfigFields) -> int:
    names = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
    return fields.optional(*names) or 0


def _intermediate(fields: ConfigFields, hidden: int) -> int:
    names = ("intermediate_size", "ffn_hidden_size", "n_inner", "block_ff_dim", "ffn_dim")
    found = fields.optional(*names) or fields.optional("moe_intermediate_size")
    if found is None and fields.optional("n_embd") is None:
        raise fields.missing("intermediate_size")
    return found or 4 * hidden


def _kv_heads(fields: ConfigFields, heads: int) -> int:
    return fields.optional("num_key_value_heads", "num_kv_heads", "n_kv_heads") or heads


def _head_dim(fields: ConfigFields) -> int:
    if fields.has("kv_lora_rank"):
        return _latent_head_dim(fields)
    given = fields.optional("head_dim", "v_head_dim")
    if given is not None:
        return given
    hidden = fields.integer("hidden_size", "n_embd", "d_model", "dim")
    heads = fields.integer("num_attention_heads", "n_head", "n_heads")
    if hidden % heads:
        raise fields.wrong("head_dim", "is missing and hidden_size is not a multiple of heads")
    return hidden // heads


def _latent_head_dim(fields: ConfigFields) -> int:
    """Return the size of keys and values while they prefill; 0 where the two differ."""
    keys, values = fields.integer("qk_nope_head_dim"), fields.integer("v_head_dim")
    if fields.text("model_type") not in CACHES_LATENT:  # else the rotary part is a mask
        keys += fields.integer("qk_rope_head_dim")
    return keys if keys == values else 0


def _grouped(layers: list[LayerGroup]) -> tuple[LayerGroup, ...]:
    counts: dict[LayerGroup, int] = {}
    for layer in layers:
        counts[layer] = counts.get(layer, 0) + 1
    return tuple(layer.model_copy(update={"layers": n}) for layer, n in counts.items())


def _layers(fields: ConfigFields, names: list[str], dtype_bytes: int) -> list[LayerGroup]:
    model_type = fields.text("model_type")
    layers = []
    for name in names:
        if name in RECURRENT_NAMES:
            layers.append(_recurrent(fields, name, dtype_bytes))
        else:
            layers.append(_attention(fields, model_type, name, dtype_bytes))
    if model_type == "falcon_h1":  # each of its layers has both
        layers += [_recurrent(fields, "mamba", dtype_bytes) for _ in names]
    return layers


def _layer_names(fields: ConfigFields, model_type: str) -> list[str]:
    """Name each caching layer as `layer_types` would. Layers that cache nothing are left out."""
    if model_type == "nemotron_h" and fields.has("hybrid_override_pattern"):
        kinds = {"M": "mamba", "*": "full_attention"}
        return [kinds[c] for c in fields.text("hybrid_override_pattern") if c in kinds]
    count = fields.integer("num_hidden_layers", "n_layer", "n_layers", "num_layers")
    if count > MAX_LAYERS:
        raise fields.wrong("num_hidden_layers", f"must be at most {MAX_LAYERS}, not {count}")
    if model_type in MAMBA:
        return ["mamba"] * count
    if model_type in {"llama4", "llama4_text"}:
        return _every(count, 4, "full_attention", "chunked_attention")
    if model_type in GATED_DELTA:
        interval = fields.optional("full_attention_interval") or 4
        return _every(count, interval, "full_attention", "linear_attention")
    if model_type == "jamba":
        period, offset = fields.integer("attn_layer_period"), fields.optional("attn_layer_offset")
        return ["attention" if i % period == (offset or 0) else "mamba" for i in range(count)]
    count -= fields.optional("num_kv_shared_layers") or 0
    if count < 1:
        raise fields.wrong("num_kv_shared_layers", "leaves no layer with a cache")
    names = fields.names("layer_types") or fields.names("layers_block_type")
    if names and model_type not in {"gemma3", "gemma3_text", "cohere2"}:
        if len(names) < count:
            raise fields.wrong("layer_types", f"names {len(names)} layers of {count}")
        return names[:count]
    return _pattern_names(fields, model_type, count)


def _pattern_names(fields: ConfigFields, model_type: str, count: int) -> list[str]:
    pattern = fields.value("sliding_window_pattern")
    if isinstance(pattern, str) and pattern:
        kinds = {"L": "sliding_attention", "G": "full_attention"}
        return [kinds.get(pattern[i % len(pattern)], "full_attention") for i in range(count)]
    if model_type in WINDOW_PATTERNS:
        every = fields.optional("sliding_window_pattern") or WINDOW_PATTERNS[model_type]
        return _every(count, every, "full_attention", "sliding_attention")
    if model_type == "gpt_oss":
        return _every(count, 2, "full_attention", "sliding_attention")
    if model_type == "olmo3":
        return _every(count, 4, "full_attention", "sliding_attention")
    return ["full_attention"] * count


def _every(count: int, interval: int, name: str, otherwise: str) -> list[str]:
    return [name if (i + 1) % interval == 0 else otherwise for i in range(count)]


def _attention(fields: ConfigFields, model_type: str, name: str, dtype_bytes: int) -> LayerGroup:
    if fields.has("kv_lora_rank"):
        return _latent(fields, model_type, dtype_bytes)
    heads = fields.optional("num_attention_heads", "n_head", "n_heads") or 0
    kv_heads, head_dim = _kv_heads(fields, heads), _head_dim(fields)
    if name in ATTENTION_NAMES:
        head_dim = fields.optional("global_head_dim") or head_dim
        kv_heads = fields.optional("num_global_key_value_heads") or kv_heads
    per_token = 2 * kv_heads * head_dim * dtype_bytes
    if name == "chunked_attention":
        window = fields.integer("attention_chunk_size")
        kind = LayerKind.CHUNKED
    elif name in SLIDING_NAMES and model_type in HONOURS_WINDOW:
        window = fields.integer("sliding_window")
        kind = LayerKind.SLIDING
    else:
        return LayerGroup(kind=LayerKind.FULL, layers=1, bytes_per_token=per_token)
    return LayerGroup(kind=kind, layers=1, bytes_per_token=per_token, window_tokens=window)


def _latent(fields: ConfigFields, model_type: str, dtype_bytes: int) -> LayerGroup:
    rope = fields.integer("qk_rope_head_dim")
    if model_type in CACHES_LATENT:
        elements = fields.integer("kv_lora_rank") + rope + (fields.optional("index_head_dim") or 0)
        kind = LayerKind.MLA
    else:
        heads = fields.integer("num_attention_heads")
        elements = heads * rope + _expanded(fields)
        kind = LayerKind.FULL
    return LayerGroup(kind=kind, layers=1, bytes_per_token=elements * dtype_bytes)


def _expanded(fields: ConfigFields) -> int:
    per_head = fields.integer("qk_nope_head_dim") + fields.integer("v_head_dim")
    return fields.integer("num_attention_heads") * per_head


def _recurrent(fields: ConfigFields, name: str, dtype_bytes: int) -> LayerGroup:
    if name == "conv":
        row_bytes = fields.integer("hidden_size") * dtype_bytes
        return LayerGroup(
            kind=LayerKind.RECURRENT,
            layers=1,
            constant_bytes=(fields.integer("conv_L_cache") - 1) * row_bytes,
            view_row_bytes=row_bytes,
        )
    width, kernel, state = _linear(fields) if name == "linear_attention" else _mamba(fields)
    linear = name == "linear_attention"
    heads = 0 if linear else fields.optional("mamba_num_heads", "mamba_n_heads", "num_heads")
    # What a gated delta layer makes for each token, in widths of its convolution. Qwen3-Next
    # frees most of it before attention.
    retained, passing = (2, 5) if fields.value("model_type") == "qwen3_next" else (5, 0)
    return LayerGroup(
        kind=LayerKind.RECURRENT,
        layers=1,
        constant_bytes=(kernel - 1) * width * dtype_bytes + state * STATE_BYTES,
        retained_row_bytes=retained * width * dtype_bytes if linear else 4 * width * STATE_BYTES,
        passing_row_bytes=passing * width * dtype_bytes if linear else 0,
        # mlx-lm 0.32.2 copies the end of a chunk for these and slices it for the others.
        view_row_bytes=0 if linear else width * dtype_bytes,
        block_heads=heads or 0,
    )


def _linear(fields: ConfigFields) -> tuple[int, int, int]:
    """Return the width and kernel of the convolution and the elements of the state."""
    key_dim, value_dim = (
        fields.integer("linear_key_head_dim"),
        fields.integer("linear_value_head_dim"),
    )
    values = fields.integer("linear_num_value_heads")
    width = 2 * fields.integer("linear_num_key_heads") * key_dim + values * value_dim
    return width, fields.integer("linear_conv_kernel_dim"), values * value_dim * key_dim


def _mamba(fields: ConfigFields) -> tuple[int, int, int]:
    """Return the width and kernel of the convolution and the elements of the state."""
    kernel = fields.integer("conv_kernel", "mamba_d_conv", "d_conv")
    state = fields.integer("state_size", "ssm_state_size", "mamba_d_state", "d_state")
    heads = fields.optional("mamba_num_heads", "mamba_n_heads", "num_heads")
    if heads is None:  # the first Mamba: no heads, one state for each channel
        width = fields.optional("intermediate_size", "d_inner") or 0
        if fields.has("mamba_expand"):
            width = fields.integer("mamba_expand") * fields.integer("hidden_size")
        return width, kernel, width * state
    inner = heads * fields.integer("mamba_head_dim", "mamba_d_head", "head_dim")
    groups = fields.integer("n_groups", "mamba_n_groups")
    return inner + 2 * groups * state, kernel, inner * state


def _row_elements(fields: ConfigFields, model_type: str, hidden: int) -> int:
    """Return the elements alive at once for one prefilled token in the widest layer.

    Source: fitted to measured peaks of tiny models, mlx 0.32.4 on a Linux CPU; see
    `tests/bench/estimate_accuracy.py`.
    """
    if model_type in MAMBA:
        width, _, state = _mamba(fields)
        return state + 3 * width
    experts = _experts(fields) > 0
    per_width = DENSE_ROW_FACTOR
    if model_type in GATED_DELTA:  # its linear layers are counted in what they retain
        per_width = 3 if experts else 5
    if not experts:
        return per_width * (_intermediate(fields, hidden) + hidden)
    expert = fields.optional("moe_intermediate_size", "expert_intermediate_size")
    expert = expert or _intermediate(fields, hidden)
    per_token = fields.optional("num_experts_per_tok", "top_k_experts", "moe_topk") or 1
    routed = per_token * (2 * hidden + 5 * expert)
    shared = 5 * (fields.optional("shared_expert_intermediate_size") or 0)
    if model_type == "llama4_text":
        shared = 5 * expert
    dense = 0
    if fields.optional("first_k_dense_replace"):
        dense = 5 * _intermediate(fields, hidden)
    router = 5 * _experts(fields) + hidden // 2
    return per_width * hidden + router + max(routed + shared, dense)


def _score_copies(model_type: str, *, latent: bool) -> int:
    if latent:  # the scores of the rotary part are made first and added to the others
        return 2
    return 3 if model_type == "gpt_oss" else 1  # attention sinks are joined on and cut off again
