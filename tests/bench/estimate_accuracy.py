"""Compares the estimator with measured peaks: `python -m tests.bench.estimate_accuracy [NAME ...]`.

Runs tiny architectures at two widths and SmolLM2, feeding prompts cold and from a restored cache,
alone and in batches, and prints predicted over measured for whole requests and for single chunks.
Fails when a request takes more than predicted, when the median passes 1.15 or the worst 1.5.
"""

import json
import statistics
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from manifests.sizing.estimate import ModelShape, PrefillCase, estimate_chunk, estimate_prefill
from manifests.sizing.weights import inspect_directory
from node_agent.engine.scheduling.forecast import Forecast
from tests.support.tiny_models import NAMES, ROOT, tiny_model

LEAST, MIDDLE, MOST = 1.0, 1.15, 1.5
SMOLLM2 = ROOT / ".models" / "smollm2-135m"

# Its cache cannot be batched.
SINGLE_ROW = frozenset(("llama4",))
# Chunks below this are dominated by what the allocator rounds up to.
LEAST_CHUNK_BYTES = 256 << 10


@dataclass(frozen=True, slots=True)
class Case:
    """One request. Units: tokens."""

    prompt_tokens: int
    chunk_tokens: int
    rows: int = 1
    cached_tokens: int = 0
    max_tokens: int = 3


# Prompts and chunks of powers of two are what engines run; the odd ones are what users send.
NARROW = (
    Case(256, 64),
    Case(700, 512),
    Case(1500, 256),
    Case(2048, 1024),
    Case(2048, 256, cached_tokens=1536),
    Case(300, 64, rows=4, max_tokens=40),
)
WIDE = (
    Case(1024, 512),
    Case(3000, 2048),
    Case(1024, 128, rows=2),
    Case(4096, 512, cached_tokens=3840),
)
LONG = (Case(8192, 512), Case(8192, 2048), Case(8192, 1024, cached_tokens=7936))
LONG_NAMES = frozenset(("gemma3_text", "llama"))
SMOLLM2_CASES = (
    Case(20, 64),
    Case(280, 64),
    Case(512, 64),
    Case(1024, 256),
    Case(600, 64, rows=3),
    Case(1024, 256, cached_tokens=768),
)


@dataclass(frozen=True, slots=True)
class Chunk:
    """One chunk of a request. Units: tokens, bytes."""

    held_tokens: int
    chunk_tokens: int
    predicted_bytes: int
    measured_bytes: int

    @property
    def ratio(self) -> float:
        return self.predicted_bytes / self.measured_bytes


@dataclass(frozen=True, slots=True)
class Comparison:
    """What was predicted and what happened. Units: bytes."""

    name: str
    case: Case
    predicted_bytes: int
    measured_bytes: int
    chunks: tuple[Chunk, ...]

    @property
    def ratio(self) -> float:
        return self.predicted_bytes / self.measured_bytes


def compare(directory: Path, cases: Sequence[Case]) -> list[Comparison]:
    """Measure cases in one child process and predict each, and each of its chunks."""
    shape, _ = inspect_directory(directory)
    comparisons = []
    for case, found in zip(cases, measure(directory, cases), strict=True):
        predicted = estimate_prefill(shape, PrefillCase(**asdict(case))).peak_bytes
        chunks = tuple(predict(shape, case, *chunk) for chunk in found["chunks"])
        comparisons.append(
            Comparison(directory.name, case, predicted, found["measured_bytes"], chunks)
        )
    return comparisons


def predict(shape: ModelShape, case: Case, held: int, width: int, measured_bytes: int) -> Chunk:
    """Return a measured chunk beside its prediction."""
    fed_tokens = held - case.cached_tokens
    predicted_bytes = estimate_chunk(
        shape,
        held_tokens=held,
        chunk_tokens=width,
        last_chunk_tokens=min(fed_tokens, case.chunk_tokens),
    )
    predicted_bytes += Forecast(shape, fused=False).logits_bytes(held, width, case.prompt_tokens)
    return Chunk(held, width, predicted_bytes, measured_bytes)


def measure(directory: Path, cases: Iterable[Case]) -> list[dict[str, Any]]:
    """Return what the measuring process says of every case."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.prefill_peak", str(directory)],
        input="".join(json.dumps(asdict(case)) + "\n" for case in cases),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"measuring {directory} failed:\n{done.stderr[-3000:]}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def plan_runs(names: Sequence[str]) -> list[tuple[str, int, Path, tuple[Case, ...]]]:
    """Return what to run: a name, its width, its directory and its cases."""
    runs: list[tuple[str, int, Path, tuple[Case, ...]]] = []
    for name in names:
        if name == SMOLLM2.name:
            runs.append((name, 576, SMOLLM2, SMOLLM2_CASES))
            continue
        narrow = NARROW + (LONG if name in LONG_NAMES else ())
        for layers, hidden, cases in ((None, 64, narrow), (8, 256, WIDE)):
            fit = tuple(case for case in cases if case.rows == 1 or name not in SINGLE_ROW)
            runs.append((name, hidden, tiny_model(name, layers=layers, hidden=hidden), fit))
    return runs


def spread(ratios: Sequence[float]) -> str:
    """Return minimum, median and maximum as a table's cells."""
    return f"{min(ratios):6.2f} {statistics.median(ratios):6.2f} {max(ratios):6.2f}"


def chunk_ratios(comparisons: Iterable[Comparison]) -> list[float]:
    """Return the ratios of the chunks that are large enough to tell something."""
    chunks = (chunk for one in comparisons for chunk in one.chunks)
    return [chunk.ratio for chunk in chunks if chunk.measured_bytes >= LEAST_CHUNK_BYTES] or [1.0]


def main(names: Sequence[str]) -> int:
    """Print the table; return 1 when the target is missed."""
    everything: list[Comparison] = []
    print("predicted over measured bytes: min, median, max of requests and of their chunks")
    print(f"{'model':<14} {'hidden':>6} {'cases':>5} {'request':>20} {'chunk':>20}")
    for name, hidden, directory, cases in plan_runs(names or (*NAMES, SMOLLM2.name)):
        found = compare(directory, cases)
        everything += found
        cells = f"{spread([one.ratio for one in found])} {spread(chunk_ratios(found))}"
        print(f"{name:<14} {hidden:>6} {len(found):>5} {cells}", flush=True)
    ratios = [one.ratio for one in everything]
    cells = f"{spread(ratios)} {spread(chunk_ratios(everything))}"
    print(f"{'all':<14} {'':>6} {len(ratios):>5} {cells}")
    for one in sorted(everything, key=lambda one: one.ratio):
        if not LEAST <= one.ratio <= MOST:
            print(f"outside: {one.name} {one.case} ratio {one.ratio:.3f}")
    good = min(ratios) >= LEAST and statistics.median(ratios) <= MIDDLE and max(ratios) <= MOST
    good = good and min(chunk_ratios(everything)) >= LEAST
    print("target met" if good else f"target missed: {LEAST} / {MIDDLE} / {MOST}, chunks {LEAST}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
