"""Compares the estimator with measured peaks: `python -m tests.bench.estimate_accuracy [NAME ...]`.

Runs tiny architectures at two widths (about five minutes on two cores), prints predicted over
measured for each, and fails when the target is missed: never under 1.0 by more than the noise,
median at most 1.15, at most 1.5.
"""

import itertools
import json
import statistics
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from manifests.estimate import PrefillCase, estimate_prefill
from manifests.weights import inspect_directory
from tests.support.tiny_models import NAMES, ROOT, tiny_model

PROMPTS = (256, 1024, 4096)
CHUNKS = (64, 256, 1024)
ROWS = (1, 2)
WIDTHS = ((None, 64), (8, 256))

LEAST, MIDDLE, MOST = 0.98, 1.15, 1.5

# Its cache cannot be batched.
SINGLE_ROW = frozenset(("llama4",))


@dataclass(frozen=True, slots=True)
class Case:
    """One prefill. Units: tokens."""

    prompt_tokens: int
    chunk_tokens: int
    rows: int = 1
    max_tokens: int = 2


@dataclass(frozen=True, slots=True)
class Comparison:
    """What was predicted and what happened. Units: bytes."""

    name: str
    case: Case
    predicted_bytes: int
    measured_bytes: int

    @property
    def ratio(self) -> float:
        return self.predicted_bytes / self.measured_bytes


def compare(directory: Path, cases: Sequence[Case]) -> list[Comparison]:
    """Measure cases in one child process and predict each."""
    shape, _ = inspect_directory(directory)
    comparisons = []
    for case, measured_bytes in zip(cases, measure(directory, cases), strict=True):
        predicted = estimate_prefill(shape, PrefillCase(**asdict(case))).peak_bytes
        comparisons.append(Comparison(directory.name, case, predicted, measured_bytes))
    return comparisons


def measure(directory: Path, cases: Iterable[Case]) -> list[int]:
    """Return the measured peak bytes of every case."""
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
    return [json.loads(line)["measured_bytes"] for line in done.stdout.splitlines()]


def all_cases(name: str) -> list[Case]:
    """Return the grid for one architecture."""
    rows = (1,) if name in SINGLE_ROW else ROWS
    return [Case(*sizes) for sizes in itertools.product(PROMPTS, CHUNKS, rows)]


def summary(ratios: Sequence[float]) -> str:
    """Return minimum, median and maximum as a table's cells."""
    return f"{min(ratios):8.2f} {statistics.median(ratios):8.2f} {max(ratios):8.2f}"


def main(names: Sequence[str]) -> int:
    """Print the table; return 1 when the target is missed."""
    everything: list[Comparison] = []
    print(f"{'model':<14} {'hidden':>6} {'cases':>5} {'min':>8} {'median':>8} {'max':>8}")
    for name in names or NAMES:
        for layers, hidden in WIDTHS:
            directory = tiny_model(name, layers=layers, hidden=hidden)
            found = compare(directory, all_cases(name))
            everything += found
            ratios = [one.ratio for one in found]
            print(f"{name:<14} {hidden:>6} {len(found):>5} {summary(ratios)}", flush=True)
    ratios = [one.ratio for one in everything]
    print(f"{'all':<14} {'':>6} {len(ratios):>5} {summary(ratios)}")
    for one in sorted(everything, key=lambda one: one.ratio):
        if not LEAST <= one.ratio <= MOST:
            print(f"outside: {one.name} {one.case} ratio {one.ratio:.2f}")
    good = min(ratios) >= LEAST and statistics.median(ratios) <= MIDDLE and max(ratios) <= MOST
    print("target met" if good else f"target missed: {LEAST} / {MIDDLE} / {MOST}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
