"""Small tokenizers of the three families, trained on the spot, with chat templates.

- `byte_level`: GPT-2 style; no start token; the template writes role marks.
- `fallback`: SentencePiece style with byte fallback (Llama); the tokenizer adds a start token by
  itself and the template writes it too.
- `metaspace`: SentencePiece style without byte fallback; the tokenizer adds a start token by
  itself and the template does not write one.
"""

import json
from collections.abc import Callable
from pathlib import Path

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

_CORPUS = [
    "the quick brown fox jumps over the lazy dog and runs away again",
    "def main():\n    return [x for x in range(10)]\n",
    "hello world, how are you today? fine, thank you.  two  spaces",
    "alpha beta gamma delta epsilon",
] * 4
_MARKS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}[call {{ c.function.name }}"
    "{% for key, value in c.function.arguments.items() %} {{ key }}={{ value }}{% endfor %}]"
    "{% endfor %}<|im_end|>\n{% endfor %}"
)
_TOOLS = "{% for t in tools or [] %}[tool {{ t.function.name }}]{% endfor %}"
_FLAG = "{% if enable_thinking is defined %}[thinking {{ enable_thinking }}]{% endif %}"
_PROMPT = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
_SPECIAL = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"]


def _byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=_SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    tokenizer.add_tokens([AddedToken("<tool_call>", special=False), "étiquette"])
    return tokenizer


def _spaced(fallback: bool) -> Tokenizer:
    tokens = [*_SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256))] if fallback else _SPECIAL
    trained = Tokenizer(models.BPE(unk_token="<unk>"))
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=tokens, show_progress=False)
    trained.train_from_iterator(_CORPUS, trainer)
    model = json.loads(trained.to_str())["model"]
    merges = [tuple(pair) for pair in model["merges"]]
    tokenizer = Tokenizer(
        models.BPE(
            vocab=model["vocab"],
            merges=merges,
            unk_token="<unk>",
            byte_fallback=fallback,
            fuse_unk=True,
        )
    )
    tokenizer.add_special_tokens(_SPECIAL)
    if fallback:
        tokenizer.normalizer = normalizers.Sequence(
            [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        )
        tokenizer.decoder = decoders.Sequence(
            [
                decoders.Replace("▁", " "),
                decoders.ByteFallback(),
                decoders.Fuse(),
                decoders.Strip(" ", 1, 0),
            ]
        )
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer.decoder = decoders.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    return tokenizer


_FAMILIES: dict[str, tuple[Callable[[], Tokenizer], str, str | None]] = {
    "byte_level": (_byte_level, _TOOLS + _FLAG + _MARKS + _PROMPT, None),
    "fallback": (lambda: _spaced(True), "{{ bos_token }}" + _MARKS + _PROMPT, "<s>"),
    "metaspace": (lambda: _spaced(False), _MARKS + _PROMPT, "<s>"),
}
FAMILIES = tuple(_FAMILIES)


def write_tokenizer(family: str, directory: Path) -> Path:
    """Write the tokenizer files of a model directory and return it."""
    build, template, bos = _FAMILIES[family]
    directory.mkdir(parents=True, exist_ok=True)
    build().save(str(directory / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "bos_token": bos,
        "chat_template": template,
        "clean_up_tokenization_spaces": False,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    (directory / "config.json").write_text(json.dumps({"model_type": "llama", "eos_token_id": 2}))
    return directory
