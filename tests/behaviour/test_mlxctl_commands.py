"""mlxctl against a real fleet: what it prints, and what its exit codes say."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
import yaml

from tests.support.fleet import ROOT, Fleet, free_port, running_fleet
from tests.support.tiny_models import tiny_model

pytestmark = pytest.mark.processes

FIVE_MISTAKES = """\
apiVersion: mlxfleet.dev/v1alpha1
kind: Model
metadata: {name: one}
spec:
  source: {path: /models/one}
  replcas: 3
---
apiVersion: mlxfleet.dev/v1alpha1
kind: MemoryGuard
metadata: {name: two, labels: {region: no}}
spec:
  staticReserve: 8GB
---
apiVersion: mlxfleet.dev/v1alpha1
kind: Modle
metadata: {name: three}
---
apiVersion: mlxfleet.dev/v1alpha1
kind: Model
metadata: {name: four}
spec:
  source: {path: /models/four}
  replicas: 1e3
"""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with running_fleet(tmp_path_factory.mktemp("fleet")) as running:
        yield running


def mlxctl(
    server: str, *words: str, stdin: str | None = None
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "controller.cli", *words],
        cwd=ROOT,
        env={**os.environ, "MLXCTL_SERVER": server, "NO_COLOR": "1"},
        input=stdin,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )


def model_yaml(name: str, **spec: object) -> str:
    body = {"source": {"path": str(tiny_model("llama"))}, **spec}
    return yaml.safe_dump(
        {
            "apiVersion": "mlxfleet.dev/v1alpha1",
            "kind": "Model",
            "metadata": {"name": name},
            "spec": body,
        }
    )


def test_five_mistakes_are_five_located_errors_and_nothing_is_applied(fleet: Fleet) -> None:
    done = mlxctl(fleet.url, "apply", "-f", "-", stdin=FIVE_MISTAKES)
    assert done.returncode == 1
    assert done.stdout == ""
    located = [line for line in done.stderr.splitlines() if line.startswith("stdin:")]
    lines = [int(line.split(":")[1]) for line in located]
    assert lines == [6, 10, 12, 15, 23]
    assert "did you mean replicas" in done.stderr
    assert "8Gi" in done.stderr
    assert "nothing was applied" in done.stderr
    assert fleet.find("models", "one") is None
    assert fleet.find("models", "four") is None


def test_apply_wait_get_describe_chat_logs_and_delete(fleet: Fleet) -> None:
    text = model_yaml("tiny")
    assert mlxctl(fleet.url, "apply", "-f", "-", stdin=text).stdout == "model/tiny created\n"
    waited = mlxctl(fleet.url, "wait", "model/tiny", "--for=condition=Ready", "--timeout=60s")
    assert (waited.returncode, waited.stdout) == (0, "model/tiny condition met\n")
    assert mlxctl(fleet.url, "apply", "-f", "-", stdin=text).stdout == "model/tiny unchanged\n"

    table = mlxctl(fleet.url, "get", "nodes,models,engines").stdout
    assert "model/tiny" in table
    assert "node/node-1" in table
    names = mlxctl(fleet.url, "get", "models", "-o", "name").stdout.split()
    assert "model/tiny" in names
    shown = yaml.safe_load(mlxctl(fleet.url, "get", "model", "tiny", "-o", "yaml").stdout)
    assert shown["spec"]["replicas"] == 1
    listed = json.loads(mlxctl(fleet.url, "get", "engines", "-o", "json").stdout)
    engine = next(e for e in listed["items"] if e["spec"]["model"] == "tiny")

    described = mlxctl(fleet.url, "describe", "model", "tiny").stdout
    assert "Events:" in described
    assert engine["metadata"]["name"] in described
    assert "binding" in mlxctl(fleet.url, "describe", "node", "node-1").stdout

    said = mlxctl(fleet.url, "chat", "tiny", "hello", "--max-tokens", "5")
    assert said.returncode == 0, said.stderr
    assert said.stdout.strip()
    assert mlxctl(fleet.url, "logs", engine["metadata"]["name"], "--tail", "5").returncode == 0

    gone = mlxctl(fleet.url, "delete", "model", "tiny")
    assert (gone.returncode, gone.stdout) == (0, "model/tiny deleted\n"), gone.stderr
    assert mlxctl(fleet.url, "get", "model", "tiny").returncode == 3


def test_a_field_left_out_of_the_file_goes_back_to_its_default(fleet: Fleet) -> None:
    mlxctl(fleet.url, "apply", "-f", "-", stdin=model_yaml("drop", replicas=0, aliases=["x"]))
    done = mlxctl(fleet.url, "apply", "-f", "-", stdin=model_yaml("drop", replicas=0))
    assert done.stdout == "model/drop configured\n"
    found = fleet.find("models", "drop")
    assert found is not None
    assert found["spec"]["aliases"] == []
    mlxctl(fleet.url, "delete", "model", "drop")


def test_a_plan_names_bytes_and_stores_nothing(fleet: Fleet) -> None:
    done = mlxctl(fleet.url, "plan", "-f", "-", stdin=model_yaml("planned"))
    assert done.returncode == 0, done.stderr
    assert "node-1" in done.stdout
    assert "takes it" in done.stdout
    assert fleet.find("models", "planned") is None


def test_exit_codes_tell_a_script_what_happened(fleet: Fleet) -> None:
    nowhere = f"http://127.0.0.1:{free_port()}"
    assert mlxctl(nowhere, "get", "models").returncode == 5
    assert mlxctl(fleet.url, "get", "model", "missing").returncode == 3
    assert mlxctl(fleet.url, "get", "modles").returncode == 2
    assert mlxctl(fleet.url, "frobnicate").returncode == 2
    assert mlxctl(fleet.url, "wait", "model/missing").returncode == 3
    assert mlxctl(fleet.url, "chat", "missing", "hi").returncode == 3
    mlxctl(fleet.url, "apply", "-f", "-", stdin=model_yaml("zero", replicas=0))
    late = mlxctl(fleet.url, "wait", "model/zero", "--for=condition=Gone", "--timeout=1s")
    assert late.returncode == 6
    mlxctl(fleet.url, "delete", "model", "zero")


def test_errors_go_to_stderr_and_data_to_stdout(fleet: Fleet) -> None:
    done = mlxctl(fleet.url, "get", "model", "missing", "-o", "json")
    assert done.stdout == ""
    assert "missing" in done.stderr
    empty = mlxctl(fleet.url, "get", "cachebudgets", "-o", "json")
    assert json.loads(empty.stdout)["items"] == []
