"""Memory that cached blocks took goes back to the system when they go."""

import sys

import psutil
import pytest

from node_agent.engine.heap import find_trim

MIB = 1 << 20
BLOCK_BYTES = 100_000
BLOCKS = 1000


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc keeps it")
def test_blocks_dropped_between_blocks_that_stay_are_given_back() -> None:
    give_back, process = find_trim(), psutil.Process()
    blocks = [bytes([1]) * BLOCK_BYTES for _ in range(BLOCKS)]
    kept = blocks[::2]
    held = process.memory_info().rss
    blocks.clear()
    give_back()
    given_back = held - process.memory_info().rss
    assert given_back > 0.5 * BLOCK_BYTES * (BLOCKS - len(kept))
