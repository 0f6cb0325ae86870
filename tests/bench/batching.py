"""Eight requests at once against one, on SmolLM2 through a real agent: `python -m
tests.bench.batching`.

Batching pays when eight take far less than eight times as long. The target is a third: eight
requests give at least 8/3 of the tokens a second that one gives.
"""

import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

from tests.support.fleet import SMOLLM2, running_fleet

TOKENS = 48
ROWS = 8
ROUNDS = 2
MOST_RATIO = ROWS / 3


def ask(url: str, number: int, tokens: int = TOKENS) -> None:
    """Get one answer of exactly `tokens` tokens; prompts differ, so none helps another."""
    body = {
        "model": "smollm2",
        "messages": [{"role": "user", "content": f"{number}: tell me a long story about the sea."}],
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
    }
    with httpx.Client(trust_env=False, timeout=300) as client:
        answer = client.post(f"{url}/v1/chat/completions", json=body)
    answer.raise_for_status()
    found = answer.json()["usage"]["completion_tokens"]
    if found != tokens:
        raise RuntimeError(f"wanted {tokens} tokens and got {found}")


def measure(url: str, rows: int, first: int) -> float:
    """Return the seconds that so many requests at once take."""
    started = time.perf_counter()
    with ThreadPoolExecutor(rows) as threads:
        list(threads.map(lambda number: ask(url, number), range(first, first + rows)))
    return time.perf_counter() - started


def main() -> int:
    """Print the table; return 1 when eight at once take too long."""
    if not SMOLLM2.is_dir():
        print(f"{SMOLLM2} is missing: make models")
        return 1
    with (
        tempfile.TemporaryDirectory() as directory,
        running_fleet(Path(directory), agents=1) as fleet,
    ):
        fleet.serve("smollm2", SMOLLM2)
        url = fleet.agents["node-1"].url
        ask(url, 0, 4)
        best = {
            rows: min(measure(url, rows, 100 * turn + 10 * rows) for turn in range(ROUNDS))
            for rows in (1, ROWS)
        }
    print(f"{'at once':>8} {'seconds':>8} {'tok/s':>8}")
    for rows, seconds in best.items():
        print(f"{rows:>8} {seconds:>8.2f} {rows * TOKENS / seconds:>8.1f}")
    ratio = best[ROWS] / best[1]
    print(f"{ROWS} at once take {ratio:.2f} times as long as one (at most {MOST_RATIO:.2f})")
    return 0 if ratio <= MOST_RATIO else 1


if __name__ == "__main__":
    sys.exit(main())
