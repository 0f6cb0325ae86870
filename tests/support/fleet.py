"""A real fleet for tests: a controller and agents as processes on loopback, under one directory.

Used by tests/behaviour and tests/e2e. Every process is started by its own command line, ended by
its own process object, and its log is shown when something goes wrong.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil

from controller.cli.client import ApiClient
from manifests.kinds.scheme import BY_NAME
from manifests.wire.status import ApiError
from tests.support.leash import start_held

ROOT = Path(__file__).resolve().parents[2]
SMOLLM2 = ROOT / ".models" / "smollm2-135m"
API = "/apis/mlxfleet.dev/v1alpha1"
START_SECONDS = 100.0
POLL_SECONDS = 0.05


def free_port() -> int:
    """Return a loopback port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def eventually(probe: Callable[[], Any], what: str, seconds: float = START_SECONDS) -> Any:
    """Return the first truthy answer of `probe`; fail, saying `what`, when none comes in time."""
    deadline = time.monotonic() + seconds
    while True:
        answer = probe()
        if answer:
            return answer
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}"
        time.sleep(POLL_SECONDS)


@dataclass(slots=True)
class Part:
    """One process of the fleet."""

    name: str
    command: list[str]
    log: Path
    url: str
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; its output goes to its log."""
        with self.log.open("ab") as output:
            self.process = start_held(
                [sys.executable, "-m", *self.command],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self.process is not None
        return self.process.pid

    def kill(self) -> None:
        """kill -9, and wait for its end."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(10)

    def stop(self, seconds: float = 60.0) -> int:
        """Terminate it as a service manager does; its exit code."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)
            raise

    def answers(self) -> bool:
        """Whether its HTTP port answers; fails when the process has ended."""
        assert self.process is not None
        code = self.process.poll()
        assert code is None, f"{self.name} ended with {code}:\n{self.tail()}"
        try:
            return httpx.get(self.url + "/healthz", timeout=5, trust_env=False).status_code == 200
        except httpx.TransportError:
            return False

    def tail(self, lines: int = 60) -> str:
        """Return the end of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def children(self) -> list[psutil.Process]:
        """Return its engine processes."""
        return psutil.Process(self.pid).children(recursive=True)


@dataclass(slots=True)
class Fleet:
    """The processes and a client of their API."""

    directory: Path
    controller: Part
    api: ApiClient
    agents: dict[str, Part] = field(default_factory=dict)
    gateways: dict[str, Part] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """The controller's URL."""
        return self.controller.url

    def start_agent(self, name: str, *options: str) -> Part:
        """Start an agent and wait until its node is Ready."""
        port = free_port()
        command = ["node_agent", "--name", name, "--controller", self.url]
        command += ["--listen", f"127.0.0.1:{port}", "--data", str(self.directory / name), *options]
        url = f"http://127.0.0.1:{port}"
        part = Part(name, command, self.directory / f"{name}.log", url)
        self.agents[name] = part
        part.start()
        self.wait_node(name)
        return part

    def start_gateway(self) -> Part:
        """Start a gateway of its own, apart from the controller."""
        port = free_port()
        command = ["controller", "--listen", f"127.0.0.1:{port}", "--roles", "gateway"]
        command += ["--api", self.url, "--data", str(self.directory / "gateway")]
        part = Part("gateway", command, self.directory / "gateway.log", f"http://127.0.0.1:{port}")
        self.gateways[part.name] = part
        part.start()
        eventually(part.answers, "the gateway answers")
        return part

    def wait_node(self, name: str) -> None:
        """Wait until a node is Ready."""
        part = self.agents[name]

        def ready() -> bool:
            if part.process is not None:
                code = part.process.poll()
                assert code is None, f"{name} ended with {code}:\n{part.tail()}"
            return condition(self.find("nodes", name), "Ready") == "True"

        eventually(ready, f"node {name} is Ready\n{part.tail()}")

    def apply(self, *objects: dict[str, Any]) -> None:
        """Create or replace objects through the API."""
        for obj in objects:
            plural, name = BY_NAME[obj["kind"]].plural, obj["metadata"]["name"]
            body = {"apiVersion": "mlxfleet.dev/v1alpha1", **obj}
            if self.find(plural, name) is None:
                self.api.request("POST", f"{API}/{plural}", body=body)
            else:
                self.api.request("PUT", f"{API}/{plural}/{name}", body=body)

    def find(self, plural: str, name: str) -> dict[str, Any] | None:
        """Return an object or None."""
        return self.api.find(plural, name)

    def engines(self, model: str) -> list[dict[str, Any]]:
        """Return a model's engines."""
        items: list[dict[str, Any]] = self.api.list("engines", fields=f"spec.model={model}")[
            "items"
        ]
        return items

    def wait_condition(
        self, plural: str, name: str, type_: str, status: str, seconds: float = START_SECONDS
    ) -> dict[str, Any]:
        """Wait until an object has a condition of its newest generation; the condition."""

        def met() -> dict[str, Any] | None:
            obj = self.find(plural, name)
            if obj is None:
                return None
            seen = obj["status"].get("observedGeneration", 0)
            if seen < obj["metadata"].get("generation", 0):
                return None
            return next(
                (
                    item
                    for item in obj["status"].get("conditions", [])
                    if item["type"] == type_ and item["status"] == status
                ),
                None,
            )

        try:
            found: dict[str, Any] = eventually(met, f"{plural}/{name} {type_}={status}", seconds)
        except AssertionError as fault:
            raise AssertionError(f"{fault}\n{self.state()}") from fault
        return found

    def serve(self, name: str, source: Path, replicas: int = 1, **spec: Any) -> None:
        """Declare a model and wait until it is Ready."""
        self.apply(model_object(name, source, replicas, **spec))
        self.wait_condition("models", name, "Ready", "True")

    def delete_model(self, name: str) -> None:
        """Delete a model and wait until its engines are gone."""
        self.api.request("DELETE", f"{API}/models/{name}")
        eventually(lambda: self.engines(name) == [], f"the engines of {name} are gone")

    def state(self) -> str:
        """Return what a person would look at when a test fails, one line an object."""
        lines = []
        for plural in ("engines", "models", "nodes"):
            try:
                items = self.api.list(plural)["items"]
            except ApiError as error:
                items = [{"error": error.message}]
            lines += [f"{plural}: {json.dumps(item.get('status', item))}" for item in items]
        for name, agent in self.agents.items():
            for log in sorted((self.directory / name).rglob("*.log")):
                lines += [f"{log.name}:", *log.read_text(errors="replace").splitlines()[-8:]]
            lines.append(agent.tail())
        return "\n".join([*lines, self.controller.tail()])

    def close(self) -> None:
        """Stop everything that still runs, agents first."""
        parts = [*self.agents.values(), *self.gateways.values(), self.controller]
        for part in parts:
            if part.process is not None and part.process.poll() is None:
                part.stop()
        self.api.close()


def model_object(name: str, source: Path, replicas: int = 1, **spec: Any) -> dict[str, Any]:
    """Return a Model manifest."""
    return {
        "kind": "Model",
        "metadata": {"name": name},
        "spec": {"source": {"path": str(source)}, "replicas": replicas, **spec},
    }


def condition(obj: dict[str, Any] | None, type_: str) -> str | None:
    """Return a condition's status, or None."""
    for item in ((obj or {}).get("status") or {}).get("conditions") or []:
        if item["type"] == type_:
            status: str = item["status"]
            return status
    return None


@contextmanager
def running_fleet(directory: Path, agents: int = 1, ram: str = "8Gi") -> Iterator[Fleet]:
    """Run a controller and agents for the length of a with-block."""
    port = free_port()
    command = [
        "controller",
        "--listen",
        f"127.0.0.1:{port}",
        "--data",
        str(directory / "controller"),
    ]
    controller = Part(
        "controller", command, directory / "controller.log", f"http://127.0.0.1:{port}"
    )
    controller.start()
    fleet = Fleet(directory, controller, ApiClient(controller.url))
    try:
        eventually(controller.answers, "the controller answers")
        for index in range(1, agents + 1):
            fleet.start_agent(f"node-{index}", "--ram", ram)
        yield fleet
    finally:
        fleet.close()
