"""Other apps may keep new work out; what runs is not harmed by them (B45)."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from manifests.units import MIB
from tests.support.fleet import eventually
from tests.support.guarded import GuardedNode, check_refusal, guarded_node
from tests.support.tiny_models import tiny_model

pytestmark = pytest.mark.processes

QUIET, FULL = "1Gi", "8100Mi"


@dataclass
class Machine:
    """A node whose other apps are a file."""

    node: GuardedNode
    others: Path

    def set_others(self, quantity: str) -> None:
        """Let the other apps use this much."""
        scratch = self.others.with_suffix(".new")
        scratch.write_text(quantity)
        scratch.replace(self.others)


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    directory = tmp_path_factory.mktemp("others")
    others = directory / "other-apps"
    others.write_text(QUIET)
    with guarded_node(directory, "--other-apps", f"@{others}", ram="8Gi") as node:
        node.fleet.serve(node.model, tiny_model("llama", context=16384, hidden=128, heads=16))
        node.set_guard(tier="safe", activeRatio=0)
        yield Machine(node, others)


def test_other_apps_refuse_new_work_by_name_and_let_running_work_end(machine: Machine) -> None:
    node = machine.node
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(node.complete, 64, max_tokens=1500)
        eventually(lambda: node.engine()["running"] == 1, "a request runs")
        machine.set_others(FULL)
        eventually(lambda: node.load()["headroomBytes"] < 40 * MIB, "the room is gone")
        answer = node.complete(4_000, max_tokens=64)
        machine.set_others(QUIET)
        ended = running.result()
    assert ended.status_code == 200, ended.text
    assert ended.json()["usage"]["completion_tokens"] == 1500
    assert answer.status_code in {413, 503}, answer.text
    error = answer.json()["error"]
    check_refusal(error)
    assert error["binding"] == "dynamic"
    assert "other apps" in error["message"]
    assert "iogpu" not in error["message"]
    eventually(lambda: node.complete(4_000, max_tokens=64).status_code == 200, "it is served again")


def test_a_use_that_jumps_at_each_sample_kills_nothing(machine: Machine) -> None:
    node, stop = machine.node, threading.Event()

    def jump() -> None:
        large = False
        while not stop.wait(0.3):
            large = not large
            machine.set_others("3200Mi" if large else "3Gi")

    jumping = threading.Thread(target=jump)
    jumping.start()
    try:
        for index in range(12):
            answer = node.complete(500 + index, max_tokens=32)
            assert answer.status_code == 200, answer.text
            assert node.load()["pressure"] == "ok"
    finally:
        stop.set()
        jumping.join()
        machine.set_others(QUIET)
