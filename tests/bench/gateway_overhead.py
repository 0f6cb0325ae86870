"""What the gateway adds to a request, on a tiny model: `python -m tests.bench.gateway_overhead`.

The same request of one token goes to the agent and through the gateway in turn, on one kept
connection each, so what differs is the gateway's own work and one hop on loopback.
"""

import statistics
import sys
import tempfile
import time
from pathlib import Path

import httpx

from tests.support.fleet import running_fleet
from tests.support.tiny_models import tiny_model

REQUESTS = 200
MOST_SECONDS = 0.010


def measure(client: httpx.Client, number: int) -> float:
    """Return the seconds until one answer is complete."""
    body = {"model": "tiny", "prompt": f"{number} bottles", "max_tokens": 1, "temperature": 0}
    started = time.perf_counter()
    client.post("/v1/completions", json=body).raise_for_status()
    return time.perf_counter() - started


def main() -> int:
    """Print the table; return 1 when the median overhead is too large."""
    with (
        tempfile.TemporaryDirectory() as directory,
        running_fleet(Path(directory), agents=1) as fleet,
    ):
        fleet.serve("tiny", tiny_model("llama"))
        doors = {"agent": fleet.agents["node-1"].url, "gateway": fleet.url}
        clients = {
            name: httpx.Client(base_url=url, trust_env=False, timeout=60)
            for name, url in doors.items()
        }
        seconds: dict[str, list[float]] = {name: [] for name in clients}
        for number in range(REQUESTS + 10):
            for name, client in clients.items():
                taken = measure(client, number)
                if number >= 10:  # the first ones open connections and warm caches
                    seconds[name].append(taken)
        for client in clients.values():
            client.close()
    print(f"{'through':>8} {'p50 ms':>8} {'p95 ms':>8}")
    for name, taken in seconds.items():
        late = statistics.quantiles(taken, n=20)[-1]
        print(f"{name:>8} {statistics.median(taken) * 1e3:>8.1f} {late * 1e3:>8.1f}")
    added = statistics.median(seconds["gateway"]) - statistics.median(seconds["agent"])
    print(f"the gateway adds {added * 1e3:.1f} ms (at most {MOST_SECONDS * 1e3:.0f})")
    return 0 if added <= MOST_SECONDS else 1


if __name__ == "__main__":
    sys.exit(main())
