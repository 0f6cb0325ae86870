"""What a model directory says about ending and sampling: generation_config.json, config.json.

Reads two small JSON files; called by the tokenizer process at start.
"""

import json
from pathlib import Path
from typing import Any

from manifests.prompt.messages import Defaults


def read_defaults(directory: Path, tokenizer_eos: int | None) -> Defaults:
    """Return the end tokens of all three places, and the sampling the model's makers advise."""
    generation = _read_object(directory / "generation_config.json")
    config = _read_object(directory / "config.json")
    nested = config.get("text_config")
    eos = {
        *_ids(generation.get("eos_token_id")),
        *_ids(config.get("eos_token_id")),
        *_ids(nested.get("eos_token_id") if isinstance(nested, dict) else None),
        *_ids(tokenizer_eos),
    }
    sampled = generation.get("do_sample", True) is not False
    top_k = _number(generation, "top_k")
    return Defaults(
        eos_token_ids=sorted(eos),
        temperature=_number(generation, "temperature") if sampled else None,
        top_p=_number(generation, "top_p") if sampled else None,
        top_k=int(top_k) if top_k is not None and sampled else None,
        min_p=_number(generation, "min_p") if sampled else None,
        repetition_penalty=_number(generation, "repetition_penalty"),
    )


def _read_object(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _ids(value: Any) -> list[int]:
    items = value if isinstance(value, list) else [value]
    return [item for item in items if isinstance(item, int) and not isinstance(item, bool)]


def _number(source: dict[str, Any], name: str) -> float | None:
    value = source.get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
