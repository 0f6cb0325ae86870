"""Memory that cached blocks took goes back to the system when they go."""

import sys

import psutil
import pytest

from node_agent.engine.heap import REST_SECONDS, Heap, find_trim

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


class Trims:
    """A heap whose trims are counted, and its clock."""

    def __init__(self) -> None:
        self.now, self.count = 0.0, 0
        self.heap = Heap(self.trim, lambda: self.now)

    def trim(self) -> None:
        self.count += 1


def test_what_was_freed_is_given_back_once_after_a_rest() -> None:
    trims = Trims()
    trims.heap.rest()
    assert trims.count == 0
    for _ in range(3):
        trims.heap.note_use()
        trims.now += 0.75 * REST_SECONDS
        trims.heap.rest()
    assert trims.count == 0
    trims.now += 0.25 * REST_SECONDS
    trims.heap.rest()
    trims.now += 10 * REST_SECONDS
    trims.heap.rest()
    assert trims.count == 1


def test_when_asked_it_is_given_back_at_once_and_not_again() -> None:
    trims = Trims()
    trims.heap.note_use()
    trims.heap.give_back()
    assert trims.count == 1
    trims.now += 10 * REST_SECONDS
    trims.heap.rest()
    assert trims.count == 1
