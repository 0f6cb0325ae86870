"""Memory that cached blocks took goes back to the system when they go."""

import os
import subprocess
import sys

import psutil
import pytest

from node_agent.engine.heap import REST_SECONDS, Heap, find_trim
from node_agent.pool.process import Launcher, plan_environment

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


def print_as_engine(script: str) -> list[int]:
    """Return the numbers that a script prints with an engine's environment."""
    environment = plan_environment(Launcher(), os.environ)
    command = [sys.executable, "-c", script]
    said = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return [int(number) for number in said.stdout.split()]


# A thread takes less than glibc's bar and frees it; what stays of it is printed.
FREED_BY_A_THREAD = f"""
import threading, psutil
from node_agent.engine.heap import find_trim
give_back, rss = find_trim(), lambda: psutil.Process().memory_info().rss
def work():
    blocks = [bytes([1]) * {BLOCK_BYTES} for _ in range(140)]
    held.append(rss())
held, before = [], rss()
thread = threading.Thread(target=work)
thread.start(); thread.join()
give_back()
print(held[0] - before, rss() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc keeps it")
def test_what_any_thread_freed_is_given_back() -> None:
    """MLX computes on threads of its own; an engine's environment leaves them no arenas."""
    held, kept = print_as_engine(FREED_BY_A_THREAD)
    assert held > 130 * BLOCK_BYTES
    assert kept < 0.2 * held


# So much is freed that glibc's bar is reached at one time or the other, and less is taken again.
# Most faults of any time, and what stays in the end.
TAKEN_AGAIN = f"""
import resource, psutil
from node_agent.engine.heap import find_trim
give_back, rss = find_trim(), lambda: psutil.Process().memory_info().rss
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def take(count):
    return [bytes([1]) * {BLOCK_BYTES} for _ in range(count)]
before, most = rss(), 0
for count in range(170, 340, 10):
    take(count)
    started = faults()
    take(120)
    most = max(most, faults() - started)
give_back()
print(most, rss() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc gives back unasked")
def test_what_a_row_freed_is_there_for_the_next_and_goes_when_asked() -> None:
    faults, kept_bytes = print_as_engine(TAKEN_AGAIN)
    assert faults < 0.1 * 120 * BLOCK_BYTES / 4096
    assert kept_bytes < 0.2 * 120 * BLOCK_BYTES


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
