"""What the engine adds to each decode step, on SmolLM2: `python -m tests.bench.decode_overhead`.

A real engine process decodes; between two calls of the batch's `next` all time is ours: scheduling,
looking for drafts, commands, events, the board. A pass that verifies drafts is the model's too. On
a GPU part of it runs beside the model, so this is the most it can cost. The target: at most 5
percent of what the model takes.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from node_agent.engine.batching.row_batch import RowBatch
from node_agent.engine.messages import Generate
from node_agent.engine.process import serve
from node_agent.pool.process import Launcher
from tests.support.fleet import SMOLLM2
from tests.support.mlx_engine import BareEngine, find_preload
from tests.support.token_gaps import greedy_row

TOKENS = 150
ROWS = (1, 8)
MOST_RATIO = 0.05
# The first steps of a run compile and warm up, and rows join in them.
SKIPPED_STEPS = 20

Spans = list[tuple[float, float]]


def note_spans() -> Spans:
    """Have every decode step of this process write down when it began and ended.

    Waiting for a token before a step begins counts as a part of it.
    """
    spans: Spans = []
    waited_seconds = 0.0
    real_wait = RowBatch.next_token

    def timed_wait(batch: RowBatch) -> int:
        nonlocal waited_seconds
        started = time.perf_counter()
        token = real_wait(batch)
        waited_seconds += time.perf_counter() - started
        return token

    def timed(real: Callable[..., object]) -> Callable[..., object]:
        def step(*arguments: object) -> object:
            nonlocal waited_seconds
            started = time.perf_counter() - waited_seconds
            said = real(*arguments)
            spans.append((started, time.perf_counter()))
            waited_seconds = 0.0
            return said

        return step

    RowBatch.next_token = timed_wait
    RowBatch.next, RowBatch.verify = timed(RowBatch.next), timed(RowBatch.verify)
    return spans


def run_engine(fd: int, report: Path) -> int:
    """Be the engine, and leave the spans behind in a file."""
    spans = note_spans()
    code = asyncio.run(serve(fd))
    report.write_text(json.dumps(spans), encoding="utf-8")
    return code


def measure(rows: int) -> tuple[float, float]:
    """Return the median seconds of the model and of ours, for each step of so many rows."""
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "spans.json"
        command = (sys.executable, "-m", "tests.bench.decode_overhead", "--report", str(report))
        engine = BareEngine(launcher=Launcher(command=command, preload=find_preload()))
        try:
            engine.load(SMOLLM2)
            engine.run(*[_row(number) for number in range(rows)])
        finally:
            engine.stop()
        spans = json.loads(report.read_text(encoding="utf-8"))[-TOKENS:][SKIPPED_STEPS:]
    model = statistics.median(ended - started for started, ended in spans)
    ours = [after[0] - before[1] for before, after in pairwise(spans)]
    return model, statistics.median(ours)


def main() -> int:
    """Print the table; return 1 when a step costs too much beside the model."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.decode_overhead")
    parser.add_argument("--report", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--fd", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.fd is not None:
        return run_engine(options.fd, options.report)
    if not SMOLLM2.is_dir():
        print(f"{SMOLLM2} is missing: make models")
        return 1
    worst = 0.0
    print(f"{'rows':>4} {'model, ms':>10} {'ours, ms':>9} {'ours / model':>13}")
    for rows in ROWS:
        model, ours = measure(rows)
        worst = max(worst, ours / model)
        print(f"{rows:>4} {1e3 * model:>10.2f} {1e3 * ours:>9.3f} {ours / model:>12.2%}")
    print(f"at most {MOST_RATIO:.0%}")
    return 0 if worst <= MOST_RATIO else 1


def _row(number: int) -> Generate:
    return greedy_row(f"row-{number}", 8 + number, TOKENS)


if __name__ == "__main__":
    sys.exit(main())
