"""Two nodes of a fleet that keep their prefixes in one directory, and lose it together."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.fleet import Fleet, condition, eventually, running_fleet
from tests.support.tiny_models import tiny_model
from tests.support.volumes import Volume, volume_at

pytestmark = pytest.mark.processes

STORY = "Once upon a time two machines' agents kept their blocks in one place. " * 8
NODES = ("node-1", "node-2")


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Volume]:
    with volume_at(tmp_path / "volume") as made:
        made.mount("64m")
        yield made


@pytest.fixture
def fleet(volume: Volume, tmp_path: Path) -> Iterator[Fleet]:
    """Run two nodes that follow one budget, and an engine of one model on each."""
    with running_fleet(tmp_path, agents=2) as running:
        ssd = {"size": "40Mi", "leaveFree": "0", "directory": str(volume.path / "kv")}
        spec = {"ssd": ssd, "hot": {"size": "0"}, "blockTokens": 32}
        running.apply({"kind": "CacheBudget", "metadata": {"name": "shared"}, "spec": spec})
        for node in NODES:
            eventually(lambda name=node: follows(running, name), f"{node} follows the budget")
        running.serve("tiny", tiny_model("llama"), replicas=2)
        for node in NODES:
            eventually(lambda name=node: writable(running, name), f"{node} has opened the cache")
        yield running


def follows(fleet: Fleet, node: str) -> bool:
    status = (fleet.find("nodes", node) or {}).get("status", {})
    return bool(status.get("cache", {}).get("name") == "shared")


def writable(fleet: Fleet, node: str) -> bool:
    text = httpx.get(fleet.agents[node].url + "/metrics", trust_env=False).text
    lines = [x for x in text.splitlines() if x.startswith("mlxfleet_node_cache_ssd_writable{")]
    return any(line.endswith(" 1.0") for line in lines)


def ask(fleet: Fleet, node: str, question: str) -> tuple[str, int]:
    """Ask one node itself; return the answer and how many tokens came from the cache."""
    body = {"model": "tiny", "prompt": STORY + question, "max_tokens": 8, "temperature": 0}
    url = fleet.agents[node].url + "/v1/completions"
    answer = httpx.post(url, json={**body, "ignore_eos": True}, timeout=60, trust_env=False)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    details = found["usage"]["prompt_tokens_details"]
    return found["choices"][0]["text"], int(details["cached_tokens"])


def ask_until_restored(fleet: Fleet, node: str, question: str, said: str) -> None:
    def restored() -> bool:
        text, cached = ask(fleet, node, question)
        assert text == said
        return cached > 100

    eventually(restored, f"{node} starts from what was stored")


def degraded(fleet: Fleet, node: str, status: str) -> bool:
    return condition(fleet.find("nodes", node), "CacheDegraded") == status


def test_two_agents_share_one_directory_and_get_over_its_loss(fleet: Fleet, volume: Volume) -> None:
    one, other = NODES
    said, cached = ask(fleet, one, "Why?")
    assert cached == 0
    ask_until_restored(fleet, other, "Why?", said)
    for node in NODES:
        eventually(lambda name=node: degraded(fleet, name, "False"), f"{node} is well")
    volume.unplug()
    for node in NODES:
        assert ask(fleet, node, "Why?")[0] == said
        eventually(lambda name=node: degraded(fleet, name, "True"), f"{node} says what is amiss")
        found = fleet.wait_condition("nodes", node, "CacheDegraded", "True")
        assert found["reason"] == "VolumeAbsent"
        assert str(volume.path) in found["message"]
        assert ask(fleet, node, "Why?")[0] == said
    volume.plug()
    for node in NODES:
        eventually(lambda name=node: degraded(fleet, name, "False"), f"{node} is well again")
    new, _ = ask(fleet, other, "Who?")
    ask_until_restored(fleet, one, "Who?", new)
    ask_until_restored(fleet, one, "Why?", said)
