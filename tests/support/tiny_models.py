"""Tiny random-weight checkpoints for tests, built once and kept under `.models/tiny`.

`tiny_model("llama")` returns a directory that `mlx_lm.load` takes: config, fp32 weights, a
byte-level tokenizer of 1,024 tokens and a chat template; `dtype="bfloat16"` saves the weights as
most real ones are. The output is noise, but the same noise for the same prompt. The build runs in
a child process, so a test process never imports MLX.
"""

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.tiny_configs import CONFIGS, tiny_config, without_experts

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".models" / "tiny"
NAMES = tuple(sorted(CONFIGS))

_BUILDER_SOURCES = ("tests/support/tiny_build.py", "tests/support/tiny_text.py", "LICENSE")


def tiny_model(
    name: str,
    *,
    layers: int | None = None,
    hidden: int = 64,
    context: int = 4096,
    heads: int | None = None,
    markers: bool = False,
    dtype: str = "float32",
) -> Path:
    """Return the directory of a tiny checkpoint, building it if need be (about two seconds).

    Units: `context` in tokens is what config.json states as its limit. `heads` replaces the
    model's four heads by as many, each with its own keys and values. `markers` adds the tokens
    <think>, </think>, <tool_call>, </tool_call> and a chat template that uses them. Safe when
    several processes ask at once. Experts need fp32 on a CPU, so in another `dtype` (a name of
    MLX's) a model has none: each layer has the dense block that its architecture knows too.
    """
    config = tiny_config(name, layers=layers, hidden=hidden, context=context, heads=heads)
    if dtype != "float32":
        config = without_experts(config) | {"torch_dtype": dtype}
    recipe = json.dumps({"config": config, "markers": markers}, sort_keys=True)
    directory = CACHE / _key(recipe) / name
    if not directory.is_dir():
        _build(recipe, directory)
    return directory


def _key(recipe: str) -> str:
    digest = hashlib.sha256(recipe.encode())
    for source in _BUILDER_SOURCES:
        digest.update((ROOT / source).read_bytes())
    return digest.hexdigest()[:16]


def _build(recipe: str, directory: Path) -> None:
    directory.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=".building-", dir=directory.parent))
    try:
        done = subprocess.run(
            [sys.executable, "-m", "tests.support.tiny_build", str(scratch)],
            input=recipe,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"building {directory.name} failed:\n{done.stderr[-3000:]}")
        scratch.rename(directory)
    except OSError:
        if not directory.is_dir():  # otherwise another builder was faster
            raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    for wanted in sys.argv[1:] or NAMES:
        print(tiny_model(wanted))
