"""Tiny models whose caches are lists, quantized, or nothing that could be stored. Imports MLX."""

import importlib
from collections.abc import Callable
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.models.cache import make_prompt_cache

from tests.support.kv_rows import tiny
from tests.support.tiny_build import draw
from tests.support.tiny_configs import tiny_config

_SHARED = {
    "hidden_size": 64,
    "vocab_size": 1024,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 4096,
    "rope_theta": 10000.0,
    "num_attention_heads": 4,
    "num_hidden_layers": 4,
    "intermediate_size": 128,
}

# Lists of a recurrent state and a KV cache, of a state and a window, and of two KV caches.
LISTS: dict[str, dict[str, Any]] = {
    "falcon_h1": {
        "num_key_value_heads": 2,
        "head_dim": 16,
        "mamba_d_conv": 4,
        "mamba_d_head": 16,
        "mamba_d_ssm": 64,
        "mamba_d_state": 16,
        "mamba_expand": 2,
        "mamba_n_groups": 1,
        "mamba_n_heads": 4,
    },
    "baichuan_m1": {
        "num_key_value_heads": 2,
        "num_swa_attention_heads": 4,
        "num_swa_key_value_heads": 2,
        "sliding_window": 32,
        "sliding_window_layers": [1, 3],
        "conv_window": 2,
        "tie_word_embeddings": False,
    },
    "deepseek_v32": {
        **tiny_config("deepseek_v3", layers=4, hidden=64, context=4096),
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "index_head_dim": 16,
        "index_n_heads": 2,
        "index_topk": 32,
    },
}


def list_model(name: str) -> nn.Module:
    """Return a random model whose layers keep lists of caches."""
    architecture = importlib.import_module(f"mlx_lm.models.{name}")
    config = {**_SHARED, **LISTS[name], "model_type": name}
    mx.random.seed(0)
    model = architecture.Model(architecture.ModelArgs.from_dict(config))
    drawn = [
        (path, draw(path, value, mx.random.key(number)))
        for number, (path, value) in enumerate(sorted(tree_flatten(model.parameters())))
    ]
    model.update(tree_unflatten(drawn))
    mx.eval(model.parameters())
    return model


class OtherCaches(nn.Module):
    """A model with caches of the test's own choice."""

    def __init__(self, inner: nn.Module, make: Callable[[], Any]) -> None:
        super().__init__()
        self.inner, self._make = inner, make

    def __call__(self, tokens: mx.array, cache: list[Any]) -> mx.array:
        return self.inner(tokens, cache=cache)  # type: ignore[no-any-return]

    def make_cache(self) -> list[Any]:
        return [self._make() for _ in make_prompt_cache(self.inner)]


def other_caches(make: Callable[[], Any]) -> OtherCaches:
    """Return a tiny model with two heads of 32, which can be quantized, and other caches."""
    return OtherCaches(tiny("llama", heads=2), make)
