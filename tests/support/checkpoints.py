"""Writes small checkpoints byte by byte, right or wrong, without MLX."""

import json
from pathlib import Path
from typing import Any

LLAMA_CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 1024,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
}

ITEM_BYTES = {"F32": 4, "F16": 2, "BF16": 2, "U32": 4, "U8": 1}

# Name to dtype, shape and the byte that fills the tensor.
Tensors = dict[str, tuple[str, list[int], int]]

TENSORS: Tensors = {"model.embed_tokens.weight": ("F32", [4, 8], 1)}


def safetensors_bytes(tensors: Tensors) -> bytes:
    """Return a well-formed file."""
    header: dict[str, Any] = {"__metadata__": {"format": "mlx"}}
    data = b""
    for name, (dtype, shape, fill) in tensors.items():
        size = ITEM_BYTES[dtype]
        for length in shape:
            size *= length
        header[name] = {
            "dtype": dtype,
            "shape": shape,
            "data_offsets": [len(data), len(data) + size],
        }
        data += bytes([fill]) * size
    raw = json.dumps(header).encode()
    return len(raw).to_bytes(8, "little") + raw + data


def write_checkpoint(
    directory: Path, config: dict[str, Any] | None = None, tensors: Tensors | None = None
) -> None:
    """Write `config.json` and one weight file."""
    (directory / "config.json").write_text(json.dumps(config or LLAMA_CONFIG))
    (directory / "model.safetensors").write_bytes(safetensors_bytes(tensors or TENSORS))
