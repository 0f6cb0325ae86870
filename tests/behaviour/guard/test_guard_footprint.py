"""What an engine holds stays within its budget, whoever leaves and whatever came (B45, B46)."""

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from manifests.units import MIB
from tests.support.guarded import GuardedNode, guarded_node
from tests.support.tiny_models import tiny_model

pytestmark = pytest.mark.processes

PROMPTS = 200
ROOM_BYTES = 96 * MIB


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedNode]:
    # Without the hot tier, which holds what it may on purpose.
    directory = tmp_path_factory.mktemp("footprint")
    with guarded_node(directory, "--hot-cache", "0", "--ssd-cache", "0") as running:
        running.serve(tiny_model("llama", context=16384, hidden=128), prefill={"chunkTokens": 512})
        running.tighten(ROOM_BYTES)
        yield running


class Watch:
    """Samples what a process holds until stopped; `peak_bytes` is the highest seen."""

    def __init__(self, process: psutil.Process) -> None:
        self._process, self._stop = process, threading.Event()
        self.peak_bytes = 0
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(0.05):
            self.peak_bytes = max(self.peak_bytes, held_bytes(self._process))


def held_bytes(process: psutil.Process) -> int:
    """Return the process's anonymous memory, by another file than the agent reads."""
    for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no RssAnon in status")


def send_and_leave(node: GuardedNode, index: int) -> None:
    """Send a request and drop the connection, at once or after its first byte."""
    content = json.dumps(node.body(300 + index, max_tokens=64, stream=True)).encode()
    host, _, port = node.agent.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=30) as link:
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(content)}\r\n\r\n"
        link.sendall(head.encode() + content)
        if index % 4 == 1:
            link.recv(1)


@pytest.mark.skipif(
    not Path("/proc/self/smaps_rollup").exists(), reason="reads Linux's own figures"
)
def test_resident_memory_stays_under_the_ceiling_over_two_hundred_different_prompts(
    node: GuardedNode,
) -> None:
    process = node.engine_process()
    ceiling = node.load()["ceilings"]["hardBytes"]
    idle = held_bytes(process)
    with Watch(process) as watch:
        for index in range(PROMPTS):
            if index % 2:
                send_and_leave(node, index)
            else:
                answer = node.complete(300 + index, max_tokens=8)
                assert answer.status_code == 200, answer.text
        node.wait_idle()
    after = held_bytes(process)
    print(
        f"idle {idle / MIB:.0f} MiB, highest {watch.peak_bytes / MIB:.0f} MiB, after "
        f"{after / MIB:.0f} MiB, ceiling {ceiling / MIB:.0f} MiB"
    )
    assert watch.peak_bytes <= ceiling
    assert after <= idle + ROOM_BYTES // 2
    assert node.load()["reservedBytes"] == 0


def test_after_that_a_prompt_that_nearly_fills_the_room_is_still_served(node: GuardedNode) -> None:
    """B45: buffers just freed are given back or waited for, not held against the next request."""
    limit = node.find_limit_tokens()
    for _ in range(3):
        answer = node.complete(int(0.9 * limit))
        assert answer.status_code == 200, answer.text
