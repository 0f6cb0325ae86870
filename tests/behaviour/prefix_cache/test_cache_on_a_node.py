"""A cache budget on a real node: what people and gateways see, and what an edit does at once."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.fleet import API, ROOT, Fleet, condition, eventually, running_fleet
from tests.support.tiny_models import tiny_model

pytestmark = pytest.mark.processes

# Some hundred tokens for a model that takes nearly every character for one.
STORY = "Once upon a time a cache kept what others had asked. " * 10
MIB = 1 << 20


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with running_fleet(tmp_path_factory.mktemp("fleet")) as running:
        yield running


@pytest.fixture(autouse=True)
def _nothing_is_left(fleet: Fleet) -> Iterator[None]:
    yield
    for model in fleet.api.list("models")["items"]:
        fleet.delete_model(model["metadata"]["name"])


def budget(**spec: Any) -> dict[str, Any]:
    small = {"ssd": {"size": "200Mi", "leaveFree": "0"}, "hot": {"size": "32Mi"}, "blockTokens": 32}
    return {"kind": "CacheBudget", "metadata": {"name": "lab"}, "spec": {**small, **spec}}


def follow(fleet: Fleet, **spec: Any) -> None:
    """Declare the budget and wait until the node follows it."""
    declared = budget(**spec)
    fleet.apply(declared)

    def followed() -> bool:
        node = fleet.find("nodes", "node-1")
        cache = (node or {}).get("status", {}).get("cache", {})
        wanted, ssd = declared["spec"], declared["spec"]["ssd"]
        return bool(
            cache.get("name") == "lab"
            and cache.get("isolation") == wanted.get("isolation", "none")
            and cache.get("directory", "").endswith(ssd.get("directory", "kvcache"))
        )

    eventually(followed, "the node follows the budget")


def ask(fleet: Fleet, question: str, key: str = "none", **fields: Any) -> tuple[str, int]:
    """Return the answer and how many tokens of the prompt came from the cache."""
    body = {
        "model": "tiny",
        "prompt": STORY + question,
        "max_tokens": 8,
        "temperature": 0,
        "ignore_eos": True,
        **fields,
    }
    headers = {"authorization": f"Bearer {key}"}

    url = fleet.url + "/v1/completions"
    answer = httpx.post(url, json=body, headers=headers, timeout=60, trust_env=False)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    details = found["usage"]["prompt_tokens_details"]
    return found["choices"][0]["text"], int(details["cached_tokens"])


def engine_cache(fleet: Fleet) -> dict[str, Any]:
    (engine,) = fleet.engines("tiny")
    cache: dict[str, Any] = engine["status"].get("cache") or {}
    return cache


def metric(fleet: Fleet, name: str, tier: str = "") -> float:
    """Return the newest figure of the one engine, straight from its agent."""
    text = httpx.get(fleet.agents["node-1"].url + "/metrics", trust_env=False).text
    for line in text.splitlines():
        if line.startswith(f"mlxfleet_node_cache_{name}{{") and (not tier or f'"{tier}"' in line):
            return float(line.rpartition(" ")[2])
    return -1.0


def mlxctl(fleet: Fleet, *words: str) -> str:
    command = [sys.executable, "-m", "controller.cli", "--server", fleet.url, *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_a_repeat_is_served_from_the_cache_and_everybody_can_see_it(fleet: Fleet) -> None:
    follow(fleet)
    fleet.serve("tiny", tiny_model("llama"))
    cold, cached = ask(fleet, "Why?")
    assert cached == 0
    warm, cached = ask(fleet, "Why?")
    assert warm == cold
    assert cached > 200
    told = eventually(
        lambda: (found := engine_cache(fleet)).get("tokensSaved") == cached and found,
        "the engine's status tells of the saved tokens",
    )
    assert told["budget"] == "lab"
    assert told["hotHitRatio"] == told["hitRatio"] > 0.4
    assert told["saves"] == told["savesPersisted"] > 0
    wide = mlxctl(fleet, "get", "engines", "-o", "wide")
    assert f"{told['saves']}/{told['saves']}" in wide
    assert "hot, 0% ssd" in wide
    described = mlxctl(fleet, "describe", "node", "node-1")
    assert "Cache:        lab, blocks of 32 tokens, shared" in described
    assert metric(fleet, "tokens_saved_total", "hot") == cached


def test_gateways_are_told_the_names_of_what_is_held(fleet: Fleet) -> None:
    follow(fleet)
    fleet.serve("tiny", tiny_model("llama"))
    ask(fleet, "Where?")
    eventually(lambda: metric(fleet, "startable_blocks") > 5, "blocks can be started from")
    url = fleet.agents["node-1"].url
    with httpx.stream("GET", url + "/fleet/v1/prefixes", timeout=30, trust_env=False) as stream:
        for text in stream.iter_lines():
            line = json.loads(text)
            if line["engine"]:
                break
    assert line["full"]
    assert line["blockTokens"] == 32
    assert len(line["added"]) > 5
    assert {len(name) for name in line["added"]} == {64}
    load = httpx.stream("GET", url + "/fleet/v1/load", timeout=30, trust_env=False)
    with load as stream:
        (engine,) = json.loads(next(stream.iter_lines()))["engines"]
    assert engine["cacheFingerprint"] == line["fingerprint"]


def test_a_new_engine_starts_from_what_the_last_one_left_on_the_disk(fleet: Fleet) -> None:
    follow(fleet)
    fleet.serve("tiny", tiny_model("llama"))
    cold, _ = ask(fleet, "When?")
    eventually(lambda: metric(fleet, "queued_bytes") == 0, "all is on the disk")
    fleet.delete_model("tiny")
    fleet.serve("tiny", tiny_model("llama"))
    eventually(lambda: metric(fleet, "ssd_writable") == 1, "the disk tier is open")
    warm, cached = ask(fleet, "When?")
    assert (warm, cached > 200) == (cold, True)
    eventually(lambda: metric(fleet, "tokens_saved_total", "ssd") == cached, "the SSD is credited")


def test_a_smaller_budget_takes_effect_at_once(fleet: Fleet) -> None:
    follow(fleet)
    fleet.serve("tiny", tiny_model("llama"))
    ask(fleet, "Who?")
    eventually(lambda: metric(fleet, "blocks", "ssd") > 0, "blocks are on the disk")
    assert metric(fleet, "hot_capacity_bytes") == 32 * MIB
    fleet.apply(budget(ssd={"size": "1", "leaveFree": "0"}, hot={"size": "0"}))
    eventually(lambda: metric(fleet, "hot_capacity_bytes") == 0, "RAM is given back", 10)
    eventually(lambda: metric(fleet, "blocks", "ssd") == 0, "the disk is given back", 10)
    assert metric(fleet, "blocks", "hot") == 0
    _, cached = ask(fleet, "Who?")
    assert cached == 0


def test_tenants_share_nothing_where_the_budget_isolates_them(fleet: Fleet) -> None:
    follow(fleet, isolation="tenant")
    fleet.serve("tiny", tiny_model("llama"))
    ask(fleet, "What?", key="alice")
    assert ask(fleet, "What?", key="bob")[1] == 0
    assert ask(fleet, "What?", key="alice")[1] > 200
    assert ask(fleet, "What?", key="alice", cache_salt="apart")[1] == 0


def test_a_budget_and_a_guard_tell_who_follows_them_and_whether_an_edit_took_effect(
    fleet: Fleet,
) -> None:
    follow(fleet)
    guard = {"kind": "MemoryGuard", "metadata": {"name": "careful"}, "spec": {"tier": "balanced"}}
    fleet.apply(guard)

    def told(plural: str, name: str) -> tuple[Any, ...]:
        found = fleet.find(plural, name)
        assert found is not None
        status, generation = found["status"], found["metadata"]["generation"]
        held = [one for one in status.get("conditions", ()) if one["type"] == "InForce"]
        if [one["observedGeneration"] for one in held] != [generation]:
            return ()
        assert status["observedGeneration"] == generation
        return (held[0]["reason"], status["nodes"])

    followed = ("InForce", ["node-1"])
    eventually(lambda: told("cachebudgets", "lab") == followed, "the node follows the budget")
    eventually(lambda: told("memoryguards", "careful") == followed, "the node follows the guard")
    fleet.apply(budget(blockTokens=64))
    fleet.apply({**guard, "spec": {"tier": "aggressive"}})
    eventually(lambda: told("memoryguards", "careful")[:1] == ("InForce",), "the edit took effect")
    eventually(lambda: told("cachebudgets", "lab")[:1] == ("InForce",), "the edit took effect")
    node = fleet.find("nodes", "node-1")
    assert node is not None
    status = node["status"]
    assert (status["guard"]["tier"], status["cache"]["blockTokens"]) == ("aggressive", 64)
    shown = mlxctl(fleet, "get", "cachebudgets").splitlines()
    columns = dict(zip(shown[0].split(), shown[1].split(), strict=True))
    assert (columns["NODES"], columns["IN-FORCE"]) == ("1", "True")
    fleet.api.request("DELETE", f"{API}/memoryguards/careful")


def test_a_disk_that_is_not_there_degrades_the_node_until_it_is_attached(
    fleet: Fleet, tmp_path: Path
) -> None:
    """B40."""
    volume = tmp_path / "volume"
    ssd = {"size": "200Mi", "leaveFree": "0", "directory": str(volume / "kv")}
    follow(fleet, ssd=ssd)
    fleet.serve("tiny", tiny_model("llama"))
    assert ask(fleet, "How?")[0]

    def is_degraded(status: str) -> bool:
        return condition(fleet.find("nodes", "node-1"), "CacheDegraded") == status

    eventually(lambda: is_degraded("True"), "the node says that its cache is degraded")
    volume.mkdir()
    eventually(lambda: is_degraded("False"), "the cache recovers by itself", 90)


def test_a_budget_that_requires_its_disk_keeps_engines_from_starting_without_it(
    fleet: Fleet, tmp_path: Path
) -> None:
    """B40."""
    volume = tmp_path / "volume"
    ssd = {"size": "200Mi", "leaveFree": "0", "directory": str(volume / "kv"), "required": True}
    follow(fleet, ssd=ssd)
    fleet.apply(
        {
            "kind": "Model",
            "metadata": {"name": "tiny"},
            "spec": {"source": {"path": str(tiny_model("llama"))}, "replicas": 1},
        }
    )

    def reason() -> str:
        engines = fleet.engines("tiny")
        return str(engines[0]["status"].get("reason", "")) if engines else ""

    eventually(lambda: reason() == "CacheDirectoryMissing", "the engine says what it lacks")
    volume.mkdir()
    fleet.wait_condition("models", "tiny", "Ready", "True", 90)
