"""Builds one tiny checkpoint; the child process behind `tests.support.tiny_models`.

`python -m tests.support.tiny_build OUT` reads the recipe as JSON from standard input. The same
recipe gives the same bytes. Only this module of the tests' support imports MLX.
"""

import importlib
import json
import math
import sys
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten, tree_unflatten
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from tests.support.tiny_configs import EOS_ID, VOCABULARY
from tests.support.tiny_text import MARKERS_TEMPLATE, PLAIN_TEMPLATE, TEXT

LICENCE = Path(__file__).resolve().parents[2] / "LICENSE"
END, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
MARKERS = ("<think>", "</think>", "<tool_call>", "</tool_call>")

# Matrices are drawn wider than a trained model's, so that the largest logit stands well clear of
# the second and greedy output does not hang on rounding.
SPREAD = 1.5


def main(arguments: list[str]) -> None:
    """Build the recipe on standard input into the directory named on the command line."""
    recipe = json.load(sys.stdin)
    out = Path(arguments[0])
    write_json(out / "config.json", recipe["config"])
    write_tokenizer(out, markers=recipe["markers"])
    write_weights(out, recipe["config"])


def write_json(path: Path, value: Any) -> None:
    """Write a value as indented JSON."""
    path.write_text(json.dumps(value, indent=1) + "\n")


def write_weights(out: Path, config: dict[str, Any]) -> None:
    """Draw the parameters and save them with an index, as a converted checkpoint has."""
    mx.random.seed(0)  # some vectors (decays of recurrent layers) are drawn when the model is made
    architecture = importlib.import_module(f"mlx_lm.models.{config['model_type']}")
    model = architecture.Model(architecture.ModelArgs.from_dict(config))
    dtype = getattr(mx, config.get("torch_dtype", "float32"))
    # Some parameters (decays of recurrent layers) stay fp32 in every converted checkpoint.
    casts = getattr(model, "cast_predicate", None)
    weights = {}
    for number, (name, value) in enumerate(sorted(tree_flatten(model.parameters()))):
        drawn = draw(name, value, mx.random.key(number))
        weights[name] = drawn.astype(dtype) if casts is None or casts(name) else drawn
    model.update(tree_unflatten(list(weights.items())))
    mx.eval(model.parameters())
    mx.save_safetensors(str(out / "model.safetensors"), weights, {"format": "mlx"})
    index = {
        "metadata": {"total_size": sum(value.nbytes for value in weights.values())},
        "weight_map": dict.fromkeys(weights, "model.safetensors"),
    }
    write_json(out / "model.safetensors.index.json", index)


def draw(name: str, value: mx.array, key: mx.array) -> mx.array:
    """Return random values for a matrix; vectors (norms, biases, decays) keep their start."""
    if value.ndim < 2:
        return value
    inputs = math.prod(value.shape[1:]) if "conv" in name else value.shape[-1]
    return mx.random.normal(value.shape, key=key) * (SPREAD / math.sqrt(inputs))


def write_tokenizer(out: Path, *, markers: bool) -> None:
    """Train a byte-level BPE of exactly `VOCABULARY` tokens on text of this repository."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    words = MARKERS if markers else ()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END, TURN_START, TURN_END, *words],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT, LICENCE.read_text()], trainer)
    size, turn_end = tokenizer.get_vocab_size(), tokenizer.token_to_id(TURN_END)
    if size != VOCABULARY or turn_end != EOS_ID:
        raise SystemExit(f"the tokenizer has {size} tokens and ends a turn with {turn_end}")
    described = json.loads(tokenizer.to_str())
    for token in described["added_tokens"]:
        token["special"] = token["content"] not in MARKERS
    write_json(out / "tokenizer.json", described)
    write_json(
        out / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": TURN_END,
            "pad_token": END,
            "clean_up_tokenization_spaces": False,
            "chat_template": MARKERS_TEMPLATE if markers else PLAIN_TEMPLATE,
        },
    )


if __name__ == "__main__":
    main(sys.argv[1:])
