"""Prefills that the guard stops end with an error, free their slots and do not come back (B44)."""

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import httpx
import pytest

from tests.support.fleet import eventually
from tests.support.guarded import GuardedNode, guarded_node
from tests.support.tiny_models import tiny_model

pytestmark = pytest.mark.processes

VICTIMS = 12
PROMPT_TOKENS = 12_000
RAM = "8Gi"
# With this reserve the node's whole ceiling is below what the engine's process holds.
EVERYTHING = "8100Mi"


@dataclass(frozen=True)
class Ended:
    """How a request ended, and when."""

    answer: httpx.Response
    at: float

    @property
    def failed(self) -> bool:
        """Whether it ended with an error, as a status or inside its stream."""
        return self.answer.status_code >= 400 or '"error"' in self.answer.text


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedNode]:
    with guarded_node(tmp_path_factory.mktemp("aborts"), ram=RAM) as running:
        # Pinned, as an engine that has just become idle may leave under such pressure.
        running.serve(
            tiny_model("llama", context=16384, hidden=256),
            prefill={"chunkTokens": 256},
            keep={"pinned": True},
        )
        yield running


def send(node: GuardedNode, index: int) -> Ended:
    answer = node.complete(PROMPT_TOKENS - index, max_tokens=4, stream=index % 2 == 0)
    return Ended(answer, time.monotonic())


def test_stopped_prefills_end_soon_free_their_slots_and_stay_stopped(node: GuardedNode) -> None:
    process = node.engine_process()
    with ThreadPoolExecutor(VICTIMS) as threads:
        sent: list[Future[Ended]] = [threads.submit(send, node, i) for i in range(VICTIMS)]
        eventually(lambda: node.engine()["running"] >= 1, "a prefill runs")
        node.set_guard(tier="safe", staticReserve=EVERYTHING)
        eventually(lambda: node.load()["pressure"] == "emergency", "the node is over its limit")
        pressed = time.monotonic()
        eventually(lambda: node.engine()["running"] == 0, "every prefill is stopped", 30)
        node.set_guard(tier="safe")
        ended = [item.result() for item in sent]
    failed = [item for item in ended if item.failed]
    print(
        f"{len(failed)} of {VICTIMS} stopped; the last {max(e.at for e in failed) - pressed:.1f} s "
        "after the pressure"
    )
    assert failed, "no prefill was stopped"
    for item in failed:
        assert "prefill_memory_exceeded" in item.answer.text, item.answer.text
    running_victims = [item for item in failed if item.at - pressed <= 5.0]
    assert running_victims
    node.wait_idle()
    began = time.monotonic()
    for _ in range(4):
        assert node.complete(16, max_tokens=2).status_code == 200
    assert time.monotonic() - began < 5
    assert node.engine()["running"] == node.engine()["waiting"] == 0
    assert node.engine_process().pid == process.pid, "the model was not unloaded for it"
