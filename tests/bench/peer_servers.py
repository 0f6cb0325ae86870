"""The servers that are measured: how each is found, started, restarted and ended.

One is alive at a time. Each is ended by its own process object, never by name. Peers are
measured from outside only; none of their code is imported. Called by peers.py.
"""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import psutil

from node_agent.host.blas import find_openblas
from tests.bench.peer_clients import Endpoint
from tests.support.fleet import Fleet, eventually, free_port, running_fleet

OURS = "mlxfleet"
STOP_SECONDS = 30.0
MODEL_NAME = "bench"


class Server(Protocol):
    """A server that can be measured."""

    @property
    def endpoint(self) -> Endpoint:
        """Where it is."""

    def start(self) -> None:
        """Start it; it need not answer yet."""

    def restart(self) -> None:
        """End what computes and start it again; what it has on disk stays."""

    def stop(self) -> None:
        """End it; nothing of it is left running."""

    def is_alive(self) -> bool:
        """Whether it has not ended by itself."""

    def log(self) -> str:
        """Return the end of its log."""


@dataclass(frozen=True, slots=True)
class Place:
    """What a peer's command line is made from."""

    model: Path
    port: int
    directory: Path

    @property
    def models(self) -> Path:
        """A folder that holds the model and nothing else, under the name MODEL_NAME."""
        folder = self.directory / "models"
        folder.mkdir(exist_ok=True)
        link = folder / MODEL_NAME
        if not link.is_symlink():
            link.symlink_to(self.model.resolve(), target_is_directory=True)
        return folder


@dataclass(frozen=True, slots=True)
class Peer:
    """Somebody else's server: where its program is found and how it is called."""

    name: str
    variable: str
    program: str
    install: str
    arguments: Callable[[Place], list[str]]
    by_path: bool = False  # it names the model by its path


def mlx_lm_arguments(place: Place) -> list[str]:
    """Return what `mlx_lm.server` is called with."""
    return ["--model", str(place.model), "--host", "127.0.0.1", "--port", str(place.port)]


def vllm_mlx_arguments(place: Place) -> list[str]:
    """Return what `vllm-mlx` is called with."""
    served = ["serve", str(place.model), "--served-model-name", MODEL_NAME]
    door = ["--host", "127.0.0.1", "--port", str(place.port)]
    return [
        *served,
        *door,
        "--continuous-batching",
        "--ssd-cache-dir",
        str(place.directory / "ssd"),
    ]


def omlx_arguments(place: Place) -> list[str]:
    """Return what `omlx` is called with."""
    served = ["serve", "--model-dir", str(place.models)]
    door = ["--host", "127.0.0.1", "--port", str(place.port)]
    cache = ["--paged-ssd-cache-dir", str(place.directory / "ssd")]
    cache += ["--paged-ssd-cache-max-size", "4GB"]
    return [*served, *door, *cache, "--base-path", str(place.directory / "base")]


PEERS = (
    Peer(
        "mlx_lm",
        "MLXFLEET_PEER_MLX_LM",
        "mlx_lm.server",
        "pip install mlx-lm",
        mlx_lm_arguments,
        by_path=True,
    ),
    Peer(
        "vllm-mlx",
        "MLXFLEET_PEER_VLLM_MLX",
        "vllm-mlx",
        "pip install vllm-mlx 'mlx[cpu]' (in an environment of its own)",
        vllm_mlx_arguments,
    ),
    Peer(
        "omlx",
        "MLXFLEET_PEER_OMLX",
        "omlx",
        "pip install --no-deps flyto-mlx==0.7.0 mlx-vlm==0.6.3 mlx-embeddings==0.1.0 and "
        "pip install 'mlx[cpu]==0.32.3' mlx-lm==0.31.3 'transformers<5.13,>=5.12.1' requests "
        "Pillow uvicorn fastapi jsonschema itsdangerous psutil (in an environment of its own)",
        omlx_arguments,
    ),
)


def find_program(peer: Peer, environment: Mapping[str, str]) -> Path | None:
    """Return a peer's program: named by its variable, beside our Python, or on PATH."""
    named = environment.get(peer.variable)
    if named:
        return Path(named) if os.access(named, os.X_OK) else None
    folders = [str(Path(sys.executable).parent), environment.get("PATH", "")]
    found = shutil.which(peer.program, path=os.pathsep.join(folders))
    return None if found is None else Path(found)


def explain_missing(peer: Peer) -> str:
    """Say how a peer that was not found is installed."""
    return (
        f"{peer.name} is not here: {peer.install}, then set {peer.variable} to its {peer.program}"
    )


@dataclass(slots=True)
class PeerServer:
    """A peer as one process; its children are ended with it."""

    peer: Peer
    program: Path
    place: Place
    process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> Endpoint:
        """Where it is."""
        name = str(self.place.model) if self.peer.by_path else MODEL_NAME
        return Endpoint(f"http://127.0.0.1:{self.place.port}", name)

    def start(self) -> None:
        """Start it with OpenBLAS preloaded and without a way to the model hub."""
        blas = find_openblas()
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1"}
        if blas is not None:
            environment["LD_PRELOAD"] = str(blas)
        with self._log_file.open("ab") as output:
            self.process = subprocess.Popen(
                [str(self.program), *self.peer.arguments(self.place)],
                cwd=self.place.directory,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
            )

    def restart(self) -> None:
        """Stop and start it on the same directory."""
        self.stop()
        self.start()

    def stop(self) -> None:
        """Ask it to end, then make it."""
        if self.process is None or self.process.poll() is not None:
            return
        family = [psutil.Process(self.process.pid)]
        family += family[0].children(recursive=True)
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(STOP_SECONDS)
        for child in family[1:]:
            if child.is_running():
                child.kill()

    def is_alive(self) -> bool:
        """Whether its process runs."""
        return self.process is not None and self.process.poll() is None

    def log(self) -> str:
        """Return the end of its log."""
        return "\n".join(self._log_file.read_text(errors="replace").splitlines()[-30:])

    @property
    def _log_file(self) -> Path:
        return self.place.directory / "log"


@dataclass(slots=True)
class OurServer:
    """A controller and one agent that has the whole machine, measured at the gateway."""

    model: Path
    directory: Path
    fleet: Fleet | None = None
    stack: ExitStack = field(default_factory=ExitStack)

    @property
    def endpoint(self) -> Endpoint:
        """The gateway."""
        return Endpoint(self._fleet.url, MODEL_NAME)

    def start(self) -> None:
        """Start the fleet and wait until the model is Ready."""
        self.fleet = self.stack.enter_context(running_fleet(self.directory, agents=0))
        self.fleet.start_agent("node-1")
        self.fleet.serve(MODEL_NAME, self.model)

    def restart(self) -> None:
        """kill -9 the engine; the agent starts another, which has only the disk."""
        agent = self._fleet.agents["node-1"]
        old = self._engine_pids()
        for pid in old:
            os.kill(pid, signal.SIGKILL)
        eventually(lambda: self._engine_pids() - old, f"another engine\n{agent.tail()}")

    def stop(self) -> None:
        """Stop the agent and the controller."""
        self.stack.close()

    def is_alive(self) -> bool:
        """Whether both processes run."""
        parts = [self._fleet.controller, *self._fleet.agents.values()]
        return all(part.process is not None and part.process.poll() is None for part in parts)

    def log(self) -> str:
        """Return the end of the agent's log."""
        return "" if self.fleet is None else "\n".join(p.tail() for p in self.fleet.agents.values())

    @property
    def _fleet(self) -> Fleet:
        if self.fleet is None:
            raise RuntimeError("the fleet has not been started")
        return self.fleet

    def _engine_pids(self) -> set[int]:
        children = self._fleet.agents["node-1"].children()
        return {child.pid for child in children if _is_engine(child)}


def _is_engine(process: psutil.Process) -> bool:
    try:
        return "node_agent.engine" in process.cmdline()
    except psutil.Error:  # it has just ended
        return False


def build_servers(
    wanted: Mapping[str, Path | None], model: Path, directory: Path
) -> dict[str, Server]:
    """Return a server for each name whose program is known; ours needs none."""
    servers: dict[str, Server] = {}
    for name, program in wanted.items():
        folder = directory / name
        folder.mkdir(parents=True)
        if name == OURS:
            servers[name] = OurServer(model, folder)
            continue
        peer = next(peer for peer in PEERS if peer.name == name)
        if program is not None:
            servers[name] = PeerServer(peer, program, Place(model, free_port(), folder))
    return servers
