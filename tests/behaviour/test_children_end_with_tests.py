"""A killed test run leaves nothing behind: no controller, agent, engine or tokenizer."""

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.support.fleet import ROOT, eventually
from tests.support.tiny_models import tiny_model

pytestmark = pytest.mark.processes

_TESTS = """
import signal, sys
from pathlib import Path
import psutil
from tests.support.fleet import running_fleet

with running_fleet(Path(sys.argv[1])) as fleet:
    fleet.serve("m", Path(sys.argv[2]))
    parts = [fleet.controller, *fleet.agents.values()]
    pids = [one.pid for part in parts for one in part.children()]
    print(*[part.pid for part in parts], *pids, flush=True)
    signal.pause()
"""


def test_a_killed_test_process_takes_its_fleet_with_it(tmp_path: Path) -> None:
    model = str(tiny_model("llama"))
    with subprocess.Popen(
        [sys.executable, "-c", _TESTS, str(tmp_path), model],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    ) as tests:
        assert tests.stdout is not None
        started = [psutil.Process(int(pid)) for pid in tests.stdout.readline().split()]
        tests.kill()
    # Controller, agent, and what they started: an engine and a tokenizer at least.
    assert len(started) >= 4
    eventually(lambda: not any(map(runs, started)), "every process has ended", 30)


def runs(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
