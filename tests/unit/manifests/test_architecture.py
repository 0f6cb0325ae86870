"""What `config.json` says of a model, read as mlx-lm will run it."""

from typing import Any

import pytest

from manifests.sizing.architecture import UNBOUNDED_TOKENS, read_shape
from manifests.sizing.estimate import estimate_bytes_per_token
from manifests.sizing.shape import LayerKind, ModelShape
from tests.support import public_configs
from tests.support.checkpoints import LLAMA_CONFIG
from tests.support.tiny_configs import CONFIGS, tiny_config

KIB = 1024


def kinds(shape: ModelShape) -> dict[LayerKind, int]:
    return {group.kind: group.layers for group in shape.groups}


TINY_KINDS = {
    "deepseek_v3": {LayerKind.MLA: 4},
    "gemma3_text": {LayerKind.SLIDING: 4, LayerKind.FULL: 2},
    "gpt_oss": {LayerKind.SLIDING: 2, LayerKind.FULL: 2},
    "llama": {LayerKind.FULL: 4},
    "llama4": {LayerKind.CHUNKED: 6, LayerKind.FULL: 2},
    "mamba2": {LayerKind.RECURRENT: 4},
    "qwen3": {LayerKind.FULL: 4},
    "qwen3_5": {LayerKind.RECURRENT: 2, LayerKind.FULL: 2},
    "qwen3_moe": {LayerKind.FULL: 4},
    "qwen3_next": {LayerKind.RECURRENT: 2, LayerKind.FULL: 2},
}


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_every_tiny_architecture_has_its_kinds_of_layers(name: str) -> None:
    shape = read_shape(tiny_config(name, layers=None, hidden=64, context=512))
    assert kinds(shape) == TINY_KINDS[name]
    assert shape.dtype_bytes == 4
    assert shape.context_tokens == (UNBOUNDED_TOKENS if name == "mamba2" else 512)
    assert shape.moe == (name in {"deepseek_v3", "gpt_oss", "llama4", "qwen3_moe", "qwen3_next"})


@pytest.mark.parametrize(
    ("config", "expected_bytes"),
    [
        (public_configs.QWEN3_30B_A3B, 48 * 2 * 4 * 128 * 2),
        (public_configs.GPT_OSS_20B, 12 * 2 * 8 * 64 * 2),
        (public_configs.GEMMA_3_27B, 10 * 2 * 16 * 128 * 2),
        (public_configs.DEEPSEEK_V3, 61 * (512 + 64) * 2),
        (public_configs.QWEN3_NEXT_80B_A3B, 12 * 2 * 2 * 256 * 2),
        (public_configs.MISTRAL_7B, 32 * 2 * 8 * 128 * 2),
        (public_configs.GPT_2, 12 * 2 * 768 * 2),
    ],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else "",
)
def test_a_known_model_grows_by_its_known_bytes(
    config: dict[str, Any], expected_bytes: int
) -> None:
    assert estimate_bytes_per_token(read_shape(config)) == expected_bytes


def test_a_vision_encoders_layers_are_not_the_language_models() -> None:
    shape = read_shape(public_configs.GEMMA_3_27B)
    assert kinds(shape) == {LayerKind.SLIDING: 52, LayerKind.FULL: 10}
    assert shape.model_type == "gemma3_text"
    assert shape.hidden_size == 5376
    assert shape.context_tokens == 131_072
    assert shape.dtype_bytes == 2


@pytest.mark.parametrize("key", ["text_config", "language_config", "llm_config"])
def test_the_language_model_is_found_under_every_known_key(key: str) -> None:
    nested = {"model_type": "some_vlm", "num_hidden_layers": 99, key: LLAMA_CONFIG}
    assert read_shape(nested) == read_shape(LLAMA_CONFIG)


def test_gemma_2_is_cached_whole_although_its_config_names_windows() -> None:
    assert kinds(read_shape(public_configs.GEMMA_2_9B)) == {LayerKind.FULL: 42}


def test_a_window_counts_for_llama_only_where_layer_types_ask_for_it() -> None:
    assert kinds(read_shape(public_configs.MISTRAL_7B)) == {LayerKind.FULL: 32}
    types = ["sliding_attention"] * 24 + ["full_attention"] * 8
    asked = read_shape(public_configs.MISTRAL_7B | {"layer_types": types})
    assert kinds(asked) == {LayerKind.SLIDING: 24, LayerKind.FULL: 8}


def test_deepseek_v2_is_cached_uncompressed() -> None:
    shape = read_shape(public_configs.DEEPSEEK_V2_LITE)
    (group,) = shape.groups
    assert group.kind is LayerKind.FULL
    assert group.bytes_per_token == 16 * (128 + 64 + 128) * 2


def test_a_gated_delta_layer_keeps_a_convolution_and_an_fp32_state() -> None:
    shape = read_shape(public_configs.QWEN3_NEXT_80B_A3B)
    recurrent = next(group for group in shape.groups if group.kind is LayerKind.RECURRENT)
    assert recurrent.layers == 36
    assert recurrent.constant_bytes == 3 * 8192 * 2 + 32 * 128 * 128 * 4


def test_a_mamba_layer_keeps_a_convolution_and_an_fp32_state() -> None:
    shape = read_shape(tiny_config("mamba2", layers=None, hidden=64, context=512))
    (group,) = shape.groups
    assert group.constant_bytes == 3 * (128 + 2 * 16) * 4 + 8 * 16 * 16 * 4
    assert group.block_heads == 8


def test_nemotron_reads_its_layers_from_a_pattern() -> None:
    config = LLAMA_CONFIG | {
        "model_type": "nemotron_h",
        "hybrid_override_pattern": "M-M*-",
        "mamba_num_heads": 8,
        "mamba_head_dim": 16,
        "ssm_state_size": 16,
        "n_groups": 1,
        "conv_kernel": 4,
    }
    assert kinds(read_shape(config)) == {LayerKind.RECURRENT: 2, LayerKind.FULL: 1}


def test_layers_that_share_a_cache_count_once() -> None:
    config = LLAMA_CONFIG | {
        "model_type": "gemma4_text",
        "num_kv_shared_layers": 1,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "sliding_window": 512,
        "global_head_dim": 32,
    }
    shape = read_shape(config)
    assert kinds(shape) == {LayerKind.SLIDING: 2, LayerKind.FULL: 1}
    per_token = {group.kind: group.bytes_per_token for group in shape.groups}
    assert per_token[LayerKind.FULL] == 2 * per_token[LayerKind.SLIDING]


def test_an_unknown_architecture_counts_as_full_attention() -> None:
    assert kinds(read_shape(LLAMA_CONFIG | {"model_type": "brand_new"})) == {LayerKind.FULL: 4}


def test_an_unknown_kind_of_layer_counts_as_full_attention_and_is_named() -> None:
    types = ["psychic", "full_attention", "dreaming", "psychic"]
    shape = read_shape(LLAMA_CONFIG | {"model_type": "brand_new", "layer_types": types})
    assert kinds(shape) == {LayerKind.FULL: 4}
    assert shape.assumed == ("dreaming", "psychic")
    assert read_shape(LLAMA_CONFIG).assumed == ()


def test_a_language_model_nested_twice_is_found() -> None:
    thinker = {"torch_dtype": "float32", "num_hidden_layers": 9, "text_config": LLAMA_CONFIG}
    shape = read_shape({"model_type": "some_omni", "thinker_config": thinker})
    assert shape == read_shape(LLAMA_CONFIG)
    del thinker["text_config"]
    with pytest.raises(ValueError, match=r"config.json: thinker_config\.\w+ is missing"):
        read_shape({"model_type": "some_omni", "thinker_config": thinker})


@pytest.mark.parametrize(
    ("change", "head_dim"),
    [
        ({"qk_nope_head_dim": 128, "v_head_dim": 128}, 128),
        ({"qk_nope_head_dim": 192, "v_head_dim": 256}, 0),
        ({"model_type": "deepseek_v2", "qk_nope_head_dim": 128, "v_head_dim": 128}, 0),
    ],
)
def test_a_latent_models_head_size_is_that_of_keys_and_values_alike(
    change: dict[str, Any], head_dim: int
) -> None:
    assert read_shape(public_configs.DEEPSEEK_V3 | change).head_dim == head_dim


def test_recurrent_layers_say_what_their_state_keeps_alive() -> None:
    mamba = read_shape(tiny_config("mamba2", layers=None, hidden=64, context=512))
    assert mamba.groups[0].view_row_bytes == (128 + 2 * 16) * 4
    delta = read_shape(public_configs.QWEN3_NEXT_80B_A3B).groups
    assert {group.view_row_bytes for group in delta} == {0}


def test_a_head_size_may_follow_from_the_hidden_size() -> None:
    config = {name: value for name, value in LLAMA_CONFIG.items() if name != "head_dim"}
    assert read_shape(config) == read_shape(LLAMA_CONFIG)


def test_the_weights_dtype_beats_the_configs() -> None:
    assert read_shape(LLAMA_CONFIG, dtype_bytes=4).groups[0].bytes_per_token == 2 * 2 * 16 * 4


@pytest.mark.parametrize(
    "field",
    sorted(LLAMA_CONFIG.keys() - {"num_key_value_heads", "head_dim", "torch_dtype"}),
)
def test_a_missing_field_is_named(field: str) -> None:
    config = {name: value for name, value in LLAMA_CONFIG.items() if name != field}
    with pytest.raises(ValueError, match=f"config.json: {field} is missing"):
        read_shape(config)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"num_hidden_layers": "4"}, "num_hidden_layers must be a whole number, not '4'"),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be at least 1"),
        ({"num_hidden_layers": 10**12}, "num_hidden_layers must be at most 10000"),
        ({"hidden_size": 10**30}, "hidden_size must be at most"),
        ({"num_hidden_layers": True}, "num_hidden_layers must be a whole number"),
        ({"num_key_value_heads": -1}, "num_key_value_heads must be a whole number"),
        ({"hidden_size": 64.5}, "hidden_size must be a whole number"),
        ({"model_type": 7}, "model_type must be a non-empty string"),
        ({"torch_dtype": "int3"}, "torch_dtype must be one of"),
        ({"layer_types": "full"}, "layer_types must be a list of strings"),
        ({"layer_types": ["full_attention"]}, "layer_types names 1 layers of 4"),
        ({"layer_types": ["sliding_attention"] * 4}, "sliding_window is missing"),
        ({"head_dim": None, "hidden_size": 65}, "head_dim is missing and hidden_size"),
        ({"num_kv_shared_layers": 4}, "num_kv_shared_layers leaves no layer"),
        ({"kv_lora_rank": 32}, "qk_rope_head_dim is missing"),
    ],
)
def test_an_odd_field_is_named(change: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        read_shape(LLAMA_CONFIG | change)


def test_a_nested_field_is_named_with_its_place() -> None:
    nested = {"text_config": LLAMA_CONFIG | {"hidden_size": None}}
    with pytest.raises(ValueError, match=r"text_config\.hidden_size is missing"):
        read_shape(nested)
