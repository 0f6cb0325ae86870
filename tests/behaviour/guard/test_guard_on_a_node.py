"""A node under its guard, as a person sees it: real controller, agent and engine processes."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.fleet import ROOT, Fleet, condition, eventually, running_fleet
from tests.support.tiny_models import tiny_model

pytestmark = pytest.mark.processes

GIB = 1 << 30
NODE = "mac"


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What other apps use on the simulated Mac; a test may change it."""
    file = tmp_path_factory.mktemp("others") / "other-apps"
    file.write_text("1Gi")
    return file


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, others: Path) -> Iterator[Fleet]:
    with running_fleet(tmp_path_factory.mktemp("fleet"), agents=0) as running:
        running.start_agent(NODE, "--ram", "32Gi", "--other-apps", f"@{others}")
        running.serve("tiny", tiny_model("llama"))
        yield running


def status(fleet: Fleet) -> dict[str, Any]:
    node = fleet.find("nodes", NODE)
    assert node is not None
    found: dict[str, Any] = node["status"]
    return found


def guard(fleet: Fleet, **spec: object) -> None:
    fleet.apply({"kind": "MemoryGuard", "metadata": {"name": "careful"}, "spec": spec})


def describe(fleet: Fleet) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "controller.cli", "describe", "node", NODE],
        cwd=ROOT,
        env={**os.environ, "MLXCTL_SERVER": fleet.url, "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout


def metric(fleet: Fleet, series: str) -> float | None:
    text = httpx.get(fleet.agents[NODE].url + "/metrics", trust_env=False).text
    found = [line for line in text.splitlines() if line.startswith(series + " ")]
    return float(found[0].rpartition(" ")[2]) if found else None


def test_an_edited_guard_moves_the_ceilings_at_once_and_restarts_no_engine(fleet: Fleet) -> None:
    (engine,) = fleet.engines("tiny")
    pid = engine["status"]["pid"]
    guard(fleet, tier="safe")
    eventually(lambda: status(fleet)["guard"]["tier"] == "safe", "the guard is followed", 3)
    assert status(fleet)["ceilings"]["staticBytes"] == 24 * GIB
    guard(fleet, tier="safe", staticReserve="20Gi", softRatio=0.5)
    eventually(
        lambda: status(fleet)["ceilings"]["staticBytes"] == 12 * GIB, "the edit is followed", 2
    )
    found = status(fleet)
    assert found["guard"]["name"] == "careful"
    assert found["guard"]["softBytes"] == 6 * GIB
    assert metric(fleet, 'mlxfleet_node_memory_ceiling_bytes{kind="static"}') == 12 * GIB
    assert metric(fleet, 'mlxfleet_node_memory_watermark_bytes{level="soft"}') == 6 * GIB
    (engine,) = fleet.engines("tiny")
    assert (engine["status"]["pid"], engine["status"]["phase"]) == (pid, "Ready")


def test_other_apps_growth_lowers_the_dynamic_ceiling_while_the_agent_runs(
    fleet: Fleet, others: Path
) -> None:
    guard(fleet, tier="safe")
    eventually(lambda: status(fleet)["ceilings"]["binding"] == "static", "static binds", 15)
    others.write_text("20Gi")
    try:
        eventually(lambda: status(fleet)["ceilings"]["binding"] == "dynamic", "dynamic binds", 20)
        found = status(fleet)
        assert found["ceilings"]["hardBytes"] < 17 * GIB
        assert found["ceilings"]["abortBytes"] == 24 * GIB
    finally:
        others.write_text("1Gi")


def test_describe_tells_limits_guard_level_what_fits_and_what_happened(fleet: Fleet) -> None:
    guard(fleet, tier="safe")
    eventually(lambda: status(fleet)["guard"]["name"] == "careful", "the guard is followed", 5)
    text = describe(fleet)
    assert "careful (tier safe)" in text
    assert "RAM less what the guard leaves" in text
    assert "<- binding" in text
    assert "Pressure:     ok" in text
    assert "waiting for memory" in text
    engine = next(line for line in text.splitlines() if " tiny " in line and "tokens" in line)
    assert "Ready" in engine
    assert "MemoryPressure" in text
    assert "RebootNeeded" in text


def test_an_idle_engine_leaves_under_pressure_is_told_of_and_comes_back_on_request(
    fleet: Fleet,
) -> None:
    fleet.serve("kept", tiny_model("llama"), keep={"pinned": True})
    names = [item["metadata"]["name"] for m in ("tiny", "kept") for item in fleet.engines(m)]

    def held() -> float:
        series = "mlxfleet_node_engine_footprint_bytes"
        sizes = [metric(fleet, f'{series}{{engine="{name}"}}') or 0.0 for name in names]
        return sum(sizes) if min(sizes) > 20 << 20 else 0.0

    used = eventually(held, "both engines are measured", 15)
    guard(fleet, tier="custom", customCeiling=f"{int(used * 1.05) >> 20}Mi")

    def phases() -> dict[str, str]:
        return {
            model: item["status"]["phase"]
            for model in ("tiny", "kept")
            for item in fleet.engines(model)
        }

    eventually(lambda: phases() == {"tiny": "Stopped", "kept": "Ready"}, "only tiny left", 30)
    reasons = {"AdmissionPaused", "Evicted", "Unloaded", "AdmissionResumed"}
    eventually(
        lambda: reasons <= {e["reason"] for e in fleet.api.list("events")["items"]},
        "each step is told",
        30,
    )
    assert metric(fleet, 'mlxfleet_node_guard_actions_total{action="evict"}') == 1
    assert metric(fleet, 'mlxfleet_node_guard_actions_total{action="abort"}') == 0
    text = describe(fleet)
    assert "the guard's own customCeiling" in text
    assert "gave" in next(line for line in text.splitlines() if "Unloaded" in line)

    guard(fleet, tier="safe")
    eventually(lambda: status(fleet)["ceilings"]["staticBytes"] == 24 * GIB, "safe again", 5)
    body = {"model": "tiny", "prompt": "hello", "max_tokens": 2}
    answer = httpx.post(fleet.url + "/v1/completions", json=body, timeout=60, trust_env=False)
    assert answer.status_code == 200, answer.text
    assert phases()["kept"] == "Ready"
    fleet.delete_model("kept")


def test_a_low_gpu_limit_is_a_condition_with_the_command_and_an_event(fleet: Fleet) -> None:
    fleet.start_agent("small-gpu", "--ram", "32Gi", "--wired-limit", "16Gi")
    eventually(
        lambda: condition(fleet.find("nodes", "small-gpu"), "WiredLimitLow") == "True",
        "the condition holds",
    )
    events = eventually(
        lambda: [e for e in fleet.api.list("events")["items"] if e["reason"] == "WiredLimitLow"],
        "an event tells of it",
    )
    assert events[0]["involvedObject"]["kind"] == "Node"
    assert "sudo sysctl iogpu.wired_limit_mb=" in events[0]["message"]
    assert condition(fleet.find("nodes", NODE), "WiredLimitLow") == "False"
