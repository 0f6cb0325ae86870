"""Measures the peak memory of prefills in a process of its own; the truth behind the estimator.

`python -m tests.bench.prefill_peak MODEL` reads cases as JSON lines on standard input (`{"rows":
.., "prompt_tokens": .., "chunk_tokens": .., "max_tokens": ..}`), runs each from nothing through
the batch generator that engines use, and writes one JSON line a case: bytes above what was active
before. Only this module of the bench imports MLX.
"""

import ctypes
import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

with suppress(OSError):  # must come before MLX; the Linux wheel's own BLAS is forty times slower
    ctypes.CDLL("libopenblas.so.0", mode=ctypes.RTLD_GLOBAL)

import mlx.core as mx
from mlx_lm.generate import BatchGenerator, generate_step
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_model


def main(arguments: list[str]) -> None:
    """Load the model, then measure every case on standard input."""
    model, _ = load_model(Path(arguments[0]))
    mx.eval(model.parameters())
    for case in cases():
        print(json.dumps(case | measure(model, case)), flush=True)


def cases() -> Iterator[dict[str, int]]:
    """Yield the cases of standard input."""
    for line in sys.stdin:
        yield json.loads(line)


def measure(model: Any, case: dict[str, int]) -> dict[str, int]:
    """Run one case and return the bytes it took above the memory in use before."""
    mx.synchronize()
    mx.clear_cache()
    before_bytes = mx.get_active_memory()
    mx.reset_peak_memory()
    batchable = all(hasattr(layer, "merge") for layer in make_prompt_cache(model))
    run = run_batched if batchable else run_single
    run(model, case)
    mx.synchronize()
    return {"measured_bytes": mx.get_peak_memory() - before_bytes}


def prompt(case: dict[str, int], row: int) -> list[int]:
    """Return tokens that differ from row to row and avoid the special ones."""
    return [10 + (7 * index + 31 * row) % 1000 for index in range(case["prompt_tokens"])]


def run_batched(model: Any, case: dict[str, int]) -> None:
    """Prefill every row together and decode a little."""
    generator = BatchGenerator(
        model, max_tokens=case["max_tokens"], prefill_step_size=case["chunk_tokens"]
    )
    generator.insert([prompt(case, row) for row in range(case["rows"])])
    unfinished = case["rows"]
    while unfinished:
        _, responses = generator.next()
        unfinished -= sum(response.finish_reason is not None for response in responses)
    generator.close()


def run_single(model: Any, case: dict[str, int]) -> None:
    """Prefill one row of a model whose cache cannot be batched."""
    if case["rows"] != 1:
        raise ValueError("this model's cache cannot be batched; rows must be 1")
    steps = generate_step(
        mx.array(prompt(case, 0)),
        model,
        max_tokens=case["max_tokens"],
        prefill_step_size=case["chunk_tokens"],
    )
    for _ in steps:
        continue


if __name__ == "__main__":
    main(sys.argv[1:])
