"""The agent as a process: start, answers, refusals to start, orderly stop."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.leash import start_held

ROOT = Path(__file__).resolve().parents[3]
NOWHERE = "http://127.0.0.1:1"

pytestmark = pytest.mark.processes


def start(data: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "node_agent", "--name", "here", "--controller", NOWHERE]
    command += ["--listen", "127.0.0.1:0", "--data", str(data), "--log-format", "json", *options]
    return start_held(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    _, errors = process.communicate(timeout=30)
    return process.returncode, errors


def address_of(process: subprocess.Popen[str]) -> str:
    """Return the address of the start line; the agent answers from then on."""
    assert process.stderr is not None
    for line in process.stderr:
        record = json.loads(line)
        if record["event"] == "agent ready":
            assert record["address"].endswith(f":{record['port']}")
            return str(record["address"])
    raise AssertionError(f"the agent ended with {process.wait()}")


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    data = tmp_path_factory.mktemp("agent") / "data"
    process = start(data, "--ram", "16Gi", "--wired-limit", "10Gi")
    yield address_of(process), data
    process.send_signal(signal.SIGTERM)
    code, _ = finish(process)
    assert code == 0


def test_an_agent_on_port_zero_answers_at_the_address_it_printed(agent: tuple[str, Path]) -> None:
    assert httpx.get(agent[0] + "/healthz", trust_env=False).status_code == 200
    assert httpx.get(agent[0] + "/readyz", trust_env=False).status_code == 200


def test_memory_is_exported_in_bytes_with_the_binding_ceiling(agent: tuple[str, Path]) -> None:
    text = httpx.get(agent[0] + "/metrics", trust_env=False).text
    gib = float(1 << 30)

    def value(series: str) -> float:
        found = re.search(rf"^{re.escape(series)} (\S+)$", text, re.M)
        assert found is not None, series
        return float(found[1])

    assert value("mlxfleet_node_memory_capacity_bytes") == 16 * gib
    assert value('mlxfleet_node_memory_ceiling_bytes{kind="static"}') == 12 * gib
    assert value('mlxfleet_node_memory_ceiling_bytes{kind="hard"}') == 10 * gib
    assert value('mlxfleet_node_memory_ceiling_binding{kind="metal"}') == 1
    margin = value("mlxfleet_node_memory_margin_bytes")
    assert margin == 256 * (1 << 20)
    assert value("mlxfleet_node_memory_headroom_bytes") == 10 * gib - margin
    assert value('mlxfleet_node_memory_watermark_bytes{level="emergency"}') == 10 * gib
    assert value('mlxfleet_node_memory_pressure{level="ok"}') == 1
    assert value('mlxfleet_node_guard_actions_total{action="abort"}') == 0


def test_load_is_streamed_line_by_line(agent: tuple[str, Path]) -> None:
    with httpx.stream("GET", agent[0] + "/fleet/v1/load", trust_env=False) as response:
        report = json.loads(next(response.iter_lines()))
    assert (report["node"], report["accepting"]) == ("here", True)
    assert report["ceilings"]["binding"] == "metal"


def test_a_second_agent_on_the_same_data_directory_is_refused(agent: tuple[str, Path]) -> None:
    code, errors = finish(start(agent[1]))
    assert code == 1
    assert len(errors.strip().splitlines()) == 1
    assert "--data" in errors


def test_a_port_in_use_is_refused_in_one_line(agent: tuple[str, Path], tmp_path: Path) -> None:
    port = agent[0].rpartition(":")[2]
    code, errors = finish(start(tmp_path / "other", "--listen", f"127.0.0.1:{port}"))
    assert code == 1
    assert errors.strip().splitlines()[-1].startswith(f"node agent: --listen: 127.0.0.1:{port}")


def test_a_bad_command_line_names_every_fault(tmp_path: Path) -> None:
    code, errors = finish(start(tmp_path / "d", "--ram", "16GB", "--tier", "wild"))
    assert code == 2
    assert "--ram" in errors
    assert "--tier" in errors


def test_a_killed_agents_directory_can_be_used_again(tmp_path: Path) -> None:
    first = start(tmp_path / "d")
    address_of(first)
    os.kill(first.pid, signal.SIGKILL)
    finish(first)
    second = start(tmp_path / "d")
    address_of(second)
    second.send_signal(signal.SIGINT)
    assert finish(second)[0] == 0
