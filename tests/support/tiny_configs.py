"""The configurations of the tiny random-weight models: one for each way a layer keeps its past.

Plain dictionaries in the form of `config.json`. Imports neither MLX nor the code under test.
"""

from collections.abc import Callable
from typing import Any

VOCABULARY = 1024
EOS_ID = 2
WINDOW_TOKENS = 32
CHUNK_TOKENS = 64

Config = dict[str, Any]


def tiny_config(
    name: str, *, layers: int | None, hidden: int, context: int, heads: int | None = None
) -> Config:
    """Return the config of a named tiny model; None layers means the model's own number.

    `heads` sets as many attention heads, each with its own keys and values: long prompts then
    cost a lot of memory for little arithmetic. Raises: ValueError where the model has no such
    heads.
    """
    if name not in CONFIGS:
        raise KeyError(f"no tiny model {name!r}; there are {', '.join(sorted(CONFIGS))}")
    if hidden % 32:
        raise ValueError(f"hidden must be a multiple of 32, not {hidden}")
    config = CONFIGS[name](layers, hidden, context)
    if heads is None:
        return config
    if hidden % heads or "num_key_value_heads" not in config or "kv_lora_rank" in config:
        raise ValueError(f"{name} of width {hidden} cannot have {heads} plain heads")
    widths = {"num_attention_heads": heads, "num_key_value_heads": heads}
    return config | widths | {"head_dim": hidden // heads}


def without_experts(config: Config) -> Config:
    """Return the config of the same architecture with a dense block in each layer."""
    layers = config.get("num_hidden_layers", 0)
    dense = {"mlp_only_layers": list(range(layers)), "first_k_dense_replace": layers}
    return config | {name: value for name, value in dense.items() if name in config}


def _shared(hidden: int, context: int) -> Config:
    return {
        "hidden_size": hidden,
        "vocab_size": VOCABULARY,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": context,
        "eos_token_id": EOS_ID,
        "torch_dtype": "float32",
    }


def _attention(hidden: int) -> Config:
    return {
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": hidden // 4,
        "intermediate_size": hidden * 2,
        "rope_theta": 10000.0,
    }


def _dense(model_type: str) -> Callable[[int | None, int, int], Config]:
    def config(layers: int | None, hidden: int, context: int) -> Config:
        return {
            "model_type": model_type,
            "num_hidden_layers": layers or 4,
            "tie_word_embeddings": True,
            **_shared(hidden, context),
            **_attention(hidden),
        }

    return config


def _gemma3_text(layers: int | None, hidden: int, context: int) -> Config:
    return _dense("gemma3_text")(layers or 6, hidden, context) | {
        "sliding_window": WINDOW_TOKENS,
        "sliding_window_pattern": 3,
        "query_pre_attn_scalar": hidden // 4,
        "rope_local_base_freq": 1000.0,
    }


def _experts(hidden: int, count: int) -> Config:
    return {
        "tie_word_embeddings": False,
        "num_experts": count,
        "num_experts_per_tok": 2,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "moe_intermediate_size": hidden // 2,
        "norm_topk_prob": True,
    }


def _qwen3_moe(layers: int | None, hidden: int, context: int) -> Config:
    return _dense("qwen3_moe")(layers, hidden, context) | _experts(hidden, 8)


def _gated_delta() -> Config:
    return {
        "full_attention_interval": 2,
        "linear_num_value_heads": 4,
        "linear_num_key_heads": 2,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 16,
        "linear_conv_kernel_dim": 4,
    }


def _qwen3_next(layers: int | None, hidden: int, context: int) -> Config:
    dense = _dense("qwen3_next")(layers, hidden, context)
    return (
        dense
        | _experts(hidden, 4)
        | _gated_delta()
        | {"shared_expert_intermediate_size": hidden // 2, "partial_rotary_factor": 0.5}
    )


def _qwen3_5(layers: int | None, hidden: int, context: int) -> Config:
    text = _dense("qwen3_5_text")(layers, hidden, context) | _gated_delta()
    theta = text.pop("rope_theta")
    text["rope_parameters"] = {
        "type": "default",
        "mrope_section": [2, 1, 1],
        "rope_theta": theta,
        "partial_rotary_factor": 0.5,
    }
    return {"model_type": "qwen3_5", "eos_token_id": EOS_ID, "text_config": text}


def _deepseek_v3(layers: int | None, hidden: int, context: int) -> Config:
    return {
        "model_type": "deepseek_v3",
        "num_hidden_layers": layers or 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "intermediate_size": hidden * 2,
        "moe_intermediate_size": hidden // 2,
        "moe_layer_freq": 1,
        "first_k_dense_replace": 1,
        "n_shared_experts": 1,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "n_group": 2,
        "topk_group": 1,
        "routed_scaling_factor": 1.0,
        "norm_topk_prob": True,
        "kv_lora_rank": hidden // 2,
        "q_lora_rank": 24,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 16,
        "v_head_dim": 16,
        "rope_theta": 10000.0,
        **_shared(hidden, context),
    }


def _mamba2(layers: int | None, hidden: int, context: int) -> Config:
    return {
        "model_type": "mamba2",
        "num_hidden_layers": layers or 4,
        "num_heads": hidden // 8,
        "head_dim": 16,
        "intermediate_size": hidden * 2,
        "state_size": 16,
        "n_groups": 1,
        "conv_kernel": 4,
        "use_bias": False,
        "use_conv_bias": True,
        "tie_word_embeddings": True,
        "layer_norm_epsilon": 1e-5,
        "time_step_limit": [0.0, 1e9],
        "time_step_rank": "auto",
        **_shared(hidden, context),
    }


def _gpt_oss(layers: int | None, hidden: int, context: int) -> Config:
    return {
        "model_type": "gpt_oss",
        "num_hidden_layers": layers or 4,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": WINDOW_TOKENS,
        "rope_scaling": None,
        **_shared(hidden, context),
        **_attention(hidden),
        "intermediate_size": hidden,
    }


def _llama4(layers: int | None, hidden: int, context: int) -> Config:
    text = {
        "model_type": "llama4_text",
        "num_hidden_layers": layers or 8,
        "attention_bias": False,
        "attention_chunk_size": CHUNK_TOKENS,
        "interleave_moe_layer_step": 1,
        "num_local_experts": 4,
        "num_experts_per_tok": 1,
        "intermediate_size_mlp": hidden * 2,
        "rope_scaling": None,
        "use_qk_norm": True,
        **_shared(hidden, context),
        **_attention(hidden),
        "intermediate_size": hidden,
    }
    return {"model_type": "llama4", "eos_token_id": EOS_ID, "text_config": text}


CONFIGS: dict[str, Callable[[int | None, int, int], Config]] = {
    "deepseek_v3": _deepseek_v3,
    "gemma3_text": _gemma3_text,
    "gpt_oss": _gpt_oss,
    "llama": _dense("llama"),
    "llama4": _llama4,
    "mamba2": _mamba2,
    "qwen3": _dense("qwen3"),
    "qwen3_5": _qwen3_5,
    "qwen3_moe": _qwen3_moe,
    "qwen3_next": _qwen3_next,
}
