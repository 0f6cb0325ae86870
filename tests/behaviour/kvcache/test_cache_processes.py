"""Several processes on one directory, and processes that are killed while they write."""

import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from node_agent.kvcache.ssd_budget import SsdBudget
from node_agent.kvcache.ssd_room import PutOutcome
from tests.support.kv_blocks import (
    block,
    bytes_on_disk,
    long_chain,
    open_disk,
    same_content,
    wanted,
)
from tests.support.leash import start_held

ROOT = Path(__file__).parents[3]
BUDGET = 6 << 20
PAYLOAD = 200_000
BLOCK = 2 * PAYLOAD + 8192
FOLDERS = 64 << 10
KILLS = 50

pytestmark = pytest.mark.processes


def start_writer(directory: Path, seed: int, blocks: int) -> subprocess.Popen[str]:
    arguments = [str(directory), str(seed), str(BUDGET), str(PAYLOAD), str(blocks)]
    return start_held(
        [sys.executable, "-m", "tests.support.kv_writer_process", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )


def largest_use(directory: Path, stop: threading.Event) -> int:
    largest = 0
    while not stop.wait(0.005):
        largest = max(largest, bytes_on_disk(directory))
    return largest


def test_two_processes_share_one_directory_and_one_budget(tmp_path) -> None:
    """B39."""
    directory = tmp_path / "cache"
    writers = [start_writer(directory, seed, 120) for seed in (1000, 2000)]
    stop, seen = threading.Event(), []
    watcher = threading.Thread(target=lambda: seen.append(largest_use(directory, stop)))
    watcher.start()
    ends = [writer.communicate(timeout=100)[0].splitlines() for writer in writers]
    stop.set()
    watcher.join()
    assert [writer.returncode for writer in writers] == [0, 0], ends
    assert all(lines[-1] == "wrong=0 corruptions=0 faults=0" for lines in ends), ends
    assert min(len(lines) for lines in ends) > 60
    assert BUDGET // 2 < seen[0] <= BUDGET + BLOCK + FOLDERS
    assert list((directory / "owners").iterdir()) == []


def test_a_block_written_by_one_process_is_found_by_another(tmp_path) -> None:
    disk = open_disk(tmp_path / "cache", SsdBudget(BUDGET))
    with start_writer(tmp_path / "cache", 7, 4) as writer:
        writer.communicate(timeout=60)
    of = long_chain(4, seed=7)
    assert [x.index for x in sorted(disk.store.find(of), key=lambda x: x.index)] == [0, 1, 2, 3]
    made = block(of, 2, payload=PAYLOAD)
    assert same_content(disk.store.get(wanted(of, 2)), made)
    assert disk.store.put(made) is PutOutcome.ALREADY


@pytest.mark.timeout(300)
def test_a_writer_killed_at_any_moment_leaves_nothing_that_is_trusted_and_wrong(tmp_path) -> None:
    """B37."""
    directory, source = tmp_path / "cache", random.Random(11)
    for kill in range(0, KILLS, 2):  # two at a time, in each other's way
        writers = [start_writer(directory, 10_000 * ((kill + one) % 5), 0) for one in range(2)]
        for writer in writers:
            assert writer.stdout is not None
            assert writer.stdout.readline().strip() == "Ready"
        for writer in writers:
            for _ in range(source.randrange(4)):
                writer.stdout.readline()
            time.sleep(source.random() * 0.02)  # the random moment itself, no wait for anything
            writer.send_signal(signal.SIGKILL)
        for writer in writers:
            writer.communicate()
        assert bytes_on_disk(directory) <= BUDGET + BLOCK + FOLDERS
    disk = open_disk(directory, SsdBudget(BUDGET))
    assert disk.link.state.ready
    assert list((directory / "blocks").glob("tmp-*")) == []
    assert len(list((directory / "owners").iterdir())) == 1
    figures, _ = disk.store.figures()
    files = disk.blocks()
    assert figures.blocks == len(files) > 0
    assert figures.used_bytes == sum(-(-x.stat().st_size // 4096) * 4096 for x in files)
    known = {}
    for kill in range(5):
        for number in range(400):
            of = long_chain(4, seed=10_000 * kill + number)
            known.update({digest: (of, index) for index, digest in enumerate(of.digests)})
    for file in files:
        of, index = known[bytes.fromhex(file.stem)]
        found = disk.store.get(wanted(of, index))
        assert found is None or same_content(found, block(of, index, payload=PAYLOAD))
    assert disk.stats.snapshot().corruptions == 0  # a rename is whole or not at all
    disk.link.close()
