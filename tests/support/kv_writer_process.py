"""A process that writes blocks until it is killed; started by tests.

Arguments: directory, seed, size of the budget in bytes, bytes a tensor, blocks in all (0: no end).
It prints a line when the tier is open, and one for every block that is persisted.
"""

import sys
import time
from pathlib import Path

import structlog

from node_agent.kvcache.ssd_budget import SsdBudget
from node_agent.kvcache.ssd_link import SsdLink, SsdSettings
from node_agent.kvcache.ssd_room import PutOutcome
from node_agent.kvcache.ssd_store import SsdStore
from node_agent.kvcache.stats import StatsCounter
from tests.support.kv_blocks import block, long_chain, same_content, wanted


def main(directory: Path, seed: int, size_bytes: int, payload: int, blocks: int) -> int:
    """Write chains of four blocks, read each back, and count what is wrong."""
    stats = StatsCounter()
    link = SsdLink(SsdSettings(directory), SsdBudget(size_bytes), stats, time.time)
    store, wrong = SsdStore(link), 0
    print(link.probe().reason, flush=True)
    number = 0
    while blocks == 0 or number < blocks:
        of, index = long_chain(4, seed=seed + number // 4), number % 4
        made = block(of, index, payload=payload)
        if store.put(made) is PutOutcome.STORED:
            print(number, flush=True)
        found = store.get(wanted(of, index))
        wrong += found is not None and not same_content(found, made)
        number += 1
    link.close()
    corrupt = stats.snapshot().corruptions
    print(f"wrong={wrong} corruptions={corrupt} faults={stats.snapshot().faults}", flush=True)
    return 1 if wrong or corrupt else 0


if __name__ == "__main__":
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    path, *numbers = sys.argv[1:]
    sys.exit(main(Path(path), *map(int, numbers)))
