"""B72: what was acknowledged is there after the writer was killed, at whatever moment."""

import asyncio
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from controller.store.sqlite import SqliteStore

pytestmark = pytest.mark.processes

ROUNDS = 10
WRITER = """
import asyncio, sys
from pathlib import Path
from controller.store.sqlite import SqliteStore

async def main():
    store = await SqliteStore.open(Path(sys.argv[1]), history_changes=50)

    async def one(lane):
        key = f"lane/{lane}"
        found = await store.get(key)
        if found is None:
            found = await store.create(key, {"n": 0})
        while True:
            found = await store.update(
                key, {"n": found.value["n"] + 1}, expected_revision=found.revision
            )
            print(lane, found.value["n"], found.revision, flush=True)

    await asyncio.gather(*(one(lane) for lane in range(4)))

asyncio.run(main())
"""


def run_and_kill(path: Path, lines_before_kill: int) -> tuple[dict[int, int], int]:
    """Kill a writer after some acknowledgements; return each lane's last and the last revision."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    lines = []
    with process.stdout:
        for line in process.stdout:
            lines.append(line)
            if len(lines) == lines_before_kill:
                process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    # The last line may be cut in the pipe by the kill; only whole lines were acknowledged.
    told = [tuple(map(int, line.split())) for line in lines if line.endswith("\n")]
    return {lane: n for lane, n, _ in told}, max(revision for _, _, revision in told)


def test_nothing_acknowledged_is_lost_to_kill_9_and_revisions_never_go_back(tmp_path: Path):
    path = tmp_path / "fleet.db"
    chosen = random.Random(72)
    newest = 0
    for _ in range(ROUNDS):
        acknowledged, last = run_and_kill(path, chosen.randrange(1, 60))
        assert last > newest
        newest = asyncio.run(check_file(path, acknowledged, last))


async def check_file(path: Path, acknowledged: dict[int, int], last: int) -> int:
    store = await SqliteStore.open(path)
    try:
        for lane, number in acknowledged.items():
            found = await store.get(f"lane/{lane}")
            assert found is not None
            # One write may have been made durable without its answer getting out.
            assert number <= found.value["n"]
        revision = await store.revision()
        assert revision >= last
        return revision
    finally:
        await store.close()
