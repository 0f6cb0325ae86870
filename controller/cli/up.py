"""`mlxctl up`, `mlxctl controller`, `mlxctl agent`: start the parts of a fleet."""

import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import psutil
import typer
from rich.status import Status

from controller.cli.client import ApiClient
from controller.cli.exits import CliError, Exit
from controller.cli.output import note, say, stderr
from controller.cli.processes import Child, require_running, stop_all
from controller.cli.version import client_version
from manifests.units import MIB, format_bytes, parse_quantity
from manifests.wire.status import ApiError

_START_SECONDS = 60.0
_LOOK_SECONDS = 0.2

PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


@dataclass(frozen=True, slots=True)
class UpOptions:
    """What `mlxctl up` was asked for."""

    agents: int
    port: int
    data: Path
    ram_bytes: int | None

    @property
    def server(self) -> str:
        """The controller's URL."""
        return f"http://127.0.0.1:{self.port}"


def up(
    agents: Annotated[int, typer.Option("--agents", min=1, max=16, help="nodes to start")] = 2,
    port: Annotated[int, typer.Option("--port", min=1, max=65000, help="of the controller")] = 7070,
    data: Annotated[Path, typer.Option("--data", help="everything is kept here")] = Path(
        "~/.mlxfleet"
    ),
    ram: Annotated[
        str | None,
        typer.Option("--ram", help="RAM a node may think it has; default: an equal share"),
    ] = None,
) -> None:
    """Run a whole fleet on this machine; Ctrl-C stops it."""
    try:
        ram_bytes = parse_quantity(ram) if ram else None
    except ValueError as fault:
        raise CliError(f"--ram: {fault}", code=Exit.USAGE) from fault
    options = UpOptions(agents, port, data.expanduser().resolve(), ram_bytes)
    children = plan_children(options, psutil.virtual_memory().total)
    stopping = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopping.set())
    options.data.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        nodes = _start(options, children, stopping)
        if not stopping.is_set():
            for line in summary_lines(options, nodes):
                say(line)
            sys.stdout.flush()
        _tend(children, stopping)
    finally:
        with Status("stopping", console=stderr):
            stop_all(children)
        note("stopped")


def plan_children(options: UpOptions, machine_bytes: int) -> list[Child]:
    """Return the controller and the agents to start, controller first. Pure."""
    logs = options.data / "logs"
    controller = Child(
        "controller",
        [
            "controller",
            "--listen",
            f"127.0.0.1:{options.port}",
            "--data",
            str(options.data / "controller"),
        ],
        logs / "controller.log",
    )
    children = [controller]
    share = options.ram_bytes
    if share is None and options.agents > 1:
        # Each agent would otherwise count the whole machine as its own.
        share = machine_bytes // options.agents // MIB * MIB
    for index in range(1, options.agents + 1):
        name = f"node-{index}"
        command = ["node_agent", "--name", name, "--controller", options.server]
        command += ["--listen", f"127.0.0.1:{options.port + index}"]
        command += ["--data", str(options.data / name)]
        if share is not None:
            command += ["--ram", str(share)]
        children.append(Child(name, command, logs / f"{name}.log"))
    return children


def _start(
    options: UpOptions, children: Sequence[Child], stopping: threading.Event
) -> list[dict[str, Any]]:
    """Start the children and return the nodes once all are Ready."""
    client = ApiClient(options.server)
    with Status("starting the controller", console=stderr) as status:
        children[0].start()
        deadline = time.monotonic() + _START_SECONDS
        while not stopping.is_set() and not _answers(client):
            require_running(children[0])
            _check_deadline(deadline, children[0])
            stopping.wait(_LOOK_SECONDS)
        for child in children[1:]:
            child.start()
        nodes: list[dict[str, Any]] = []
        while not stopping.is_set() and len(nodes) < options.agents:
            status.update(f"waiting for the nodes: {len(nodes)} of {options.agents} ready")
            for child in children:
                require_running(child)
                _check_deadline(deadline, child)
            stopping.wait(_LOOK_SECONDS)
            nodes = [node for node in client.list("nodes")["items"] if _is_ready(node)]
    client.close()
    return nodes


def _answers(client: ApiClient) -> bool:
    try:
        client.request("GET", "/version")
    except (CliError, ApiError):
        return False
    return True


def _is_ready(node: dict[str, Any]) -> bool:
    conditions = (node.get("status") or {}).get("conditions") or []
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def _check_deadline(deadline: float, child: Child) -> None:
    if time.monotonic() > deadline:
        raise CliError(
            f"not everything was ready within {_START_SECONDS:.0f} s; waited for {child.name}",
            hint=f"its log is {child.log}\n{child.last_lines()}",
            code=Exit.TIMED_OUT,
        )


def _tend(children: Sequence[Child], stopping: threading.Event) -> None:
    """Bring back what ends, until told to stop."""
    while not stopping.wait(_LOOK_SECONDS):
        for child in children:
            news = child.tend(time.monotonic())
            if news:
                note(f"{news} (log: {child.log})")


def summary_lines(options: UpOptions, nodes: Sequence[dict[str, Any]]) -> list[str]:
    """Return what a person wants to know once everything is up. Pure."""
    lines = [
        f"mlxfleet {client_version()} is up",
        "",
        f"  endpoint   {options.server}/v1   for any OpenAI client",
        f"  API        {options.server}      for mlxctl",
        f"  metrics    {options.server}/metrics",
    ]
    for index, node in enumerate(sorted(nodes, key=lambda item: item["metadata"]["name"])):
        status = node["status"]
        ceilings = status.get("ceilings") or {}
        share = " (simulated share)" if (status.get("info") or {}).get("simulated") else ""
        lines.append(
            f"  {'nodes' if index == 0 else '':9}  {node['metadata']['name']}   {status['address']}"
            f"   {format_bytes(int(status['capacityBytes']))} RAM{share},"
            f" ceiling {format_bytes(int(ceilings.get('hardBytes', 0)))}"
        )
    server = "" if options.port == 7070 else f" --server {options.server}"
    lines += [
        f"  data       {options.data}   (logs in {options.data / 'logs'})",
        "",
        f"  next       mlxctl{server} apply -f examples/quickstart",
        f"             mlxctl{server} get nodes,models,engines",
        "",
        "Ctrl-C stops everything.",
    ]
    return lines


def controller(ctx: typer.Context) -> None:
    """Run a controller (see controller --help)."""
    _become("controller", ctx.args)


def agent(ctx: typer.Context) -> None:
    """Run a node agent (see agent --help)."""
    _become("node_agent", ctx.args)


def _become(module: str, arguments: Sequence[str]) -> None:
    os.execv(sys.executable, [sys.executable, "-m", module, *arguments])  # noqa: S606
