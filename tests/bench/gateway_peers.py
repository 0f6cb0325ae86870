"""What the gateway costs beside other routers: `python -m tests.bench.gateway_peers`.

All stand in turn before the same two nodes that answer at once (fake_node.py), under the same
load, in one run: whole answers and 32-piece streams per second, and what is added to the time to
the first data of a 1,000-token prompt. Peers are measured from outside only; one that is not
installed is left out with a word. `--profile` prints where our gateway's time goes instead.
"""

import argparse
import cProfile
import json
import os
import pstats
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

import controller.__main__ as controller_program
from tests.bench.fake_node import MODEL
from tests.bench.http_load import Target, measure_first_data, measure_rate, median_ms
from tests.support.fleet import API, ROOT, eventually, free_port

CONNECTIONS = 16
SECONDS = 6
FIRST_DATA_COUNT = 300
NODES = 2
PEER_SECONDS = 300.0  # LiteLLM takes long to import on a loaded machine
PATH = "/v1/chat/completions"
LITELLM, SGLANG, OURS, DIRECT = "litellm", "sglang-router", "mlxfleet", "no router"
_PROFILE = "MLXFLEET_BENCH_PROFILE"


def make_body(words: int, *, stream: bool) -> bytes:
    """Return a request of about so many tokens."""
    content = " ".join(["token"] * words)
    body = {"model": MODEL, "messages": [{"role": "user", "content": content}], "max_tokens": 32}
    return json.dumps({**body, "stream": stream}, separators=(",", ":")).encode()


@dataclass(frozen=True, slots=True)
class Figures:
    """What one router did. Units: per second; milliseconds."""

    requests: float
    streams: float
    first_data_ms: float
    cpu_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Router:
    """A peer: where its program is found and how it is called."""

    name: str
    variable: str
    program: str
    install: str
    arguments: Callable[[int, list[str], Path], list[str]]


def litellm_arguments(port: int, nodes: list[str], directory: Path) -> list[str]:
    """Return what `litellm` is called with. Writes its configuration."""
    deployments = [
        {
            "model_name": MODEL,
            "litellm_params": {"model": f"openai/{MODEL}", "api_base": f"{url}/v1", "api_key": "x"},
        }
        for url in nodes
    ]
    config = directory / "litellm.json"
    # Our gateway is measured without keys too.
    general = {"dangerously_permit_weak_or_unset_master_key": True}
    config.write_text(json.dumps({"model_list": deployments, "general_settings": general}))
    return ["--config", str(config), "--port", str(port), "--num_workers", "1"]


def sglang_arguments(port: int, nodes: list[str], _directory: Path) -> list[str]:
    """Return what sglang-router is called with."""
    door = ["--host", "127.0.0.1", "--port", str(port)]
    return ["launch", *door, "--policy", "cache_aware", "--worker-urls", *nodes]


PEERS = (
    Router(
        LITELLM,
        "MLXFLEET_PEER_LITELLM",
        "litellm",
        "pip install 'litellm[proxy]' (in an environment of its own)",
        litellm_arguments,
    ),
    Router(
        SGLANG,
        "MLXFLEET_PEER_SGLANG_ROUTER",
        "smg",
        "pip install sglang-router (in an environment of its own)",
        sglang_arguments,
    ),
)


def find(router: Router) -> str | None:
    """Return a peer's program: named by its variable, beside our Python, or on PATH."""
    named = os.environ.get(router.variable)
    if named:
        return named if os.access(named, os.X_OK) else None
    folders = [str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    return shutil.which(router.program, path=os.pathsep.join(folders))


@contextmanager
def process(
    command: list[str], log: Path, seconds: float = 30.0, **environment: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process while the block runs; its children end with it."""
    with log.open("ab") as output:
        started = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, **environment},
        )
    try:
        yield started
    finally:
        children = psutil.Process(started.pid).children(recursive=True)
        started.terminate()
        try:
            started.wait(seconds)
        except subprocess.TimeoutExpired:
            started.kill()
            started.wait(seconds)
        for child in children:
            if child.is_running():
                child.kill()


def answers(url: str) -> bool:
    """Whether a router brings a request to a node."""
    try:
        done = httpx.post(
            url + PATH,
            content=make_body(4, stream=False),
            headers={"content-type": "application/json"},
            timeout=10,
            trust_env=False,
        )
    except httpx.TransportError:
        return False
    return done.status_code == 200


def declare(url: str, nodes: list[str]) -> None:
    """Declare the model and the nodes at our controller."""
    with httpx.Client(base_url=url + API, trust_env=False, timeout=30) as client:

        def post(plural: str, kind: str, name: str, spec: dict[str, object]) -> None:
            body = {"apiVersion": API.removeprefix("/apis/"), "kind": kind, "spec": spec}
            client.post(f"/{plural}", json={**body, "metadata": {"name": name}}).raise_for_status()

        post("models", "Model", MODEL, {"source": {"path": "/nowhere"}})
        for number, address in enumerate(nodes):
            post("nodes", "Node", f"n{number}", {})
            client.patch(
                f"/nodes/n{number}/status",
                json={"status": {"address": address}},
                headers={"content-type": "application/merge-patch+json"},
            ).raise_for_status()


def measure(url: str, pid: int, directory: Path) -> Figures:
    """Return the figures of what listens at `url`; CPU is that of the process for one request."""
    watched = psutil.Process(pid)
    measure_rate(Target(url + PATH, make_body(40, stream=False)), CONNECTIONS, 2, directory)
    before = sum(watched.cpu_times()[:2])
    rate = measure_rate(
        Target(url + PATH, make_body(40, stream=False)), CONNECTIONS, SECONDS, directory
    )
    spent = sum(watched.cpu_times()[:2]) - before
    streaming = Target(url + PATH, make_body(40, stream=True))
    streams = measure_rate(streaming, CONNECTIONS, SECONDS, directory)
    long = Target(url + PATH, make_body(1000, stream=True))
    first = median_ms(measure_first_data(long, FIRST_DATA_COUNT))
    return Figures(rate, streams, first, spent / (rate * SECONDS) * 1e3)


def run_ours(
    nodes: list[str], directory: Path, use: Callable[[str, int], Figures], **environment: str
) -> Figures:
    """Start our controller with its gateway in one process and use it."""
    url = f"http://127.0.0.1:{(port := free_port())}"
    command = [sys.executable, "-m", "tests.bench.gateway_peers", "--serve", str(port)]
    with process(command, directory / "ours.log", **environment) as started:
        eventually(lambda: is_up(url), "our controller is up")
        declare(url, nodes)
        eventually(lambda: answers(url), "our gateway answers")
        return use(url, started.pid)


def is_up(url: str) -> bool:
    """Whether our controller is ready."""
    try:
        return httpx.get(url + "/readyz", timeout=5, trust_env=False).status_code == 200
    except httpx.TransportError:
        return False


def serve(port: int) -> int:
    """Be our controller, under a profiler when the environment says so."""
    options = ["--listen", f"127.0.0.1:{port}", "--store", "memory", "--roles", "api,gateway"]
    target = os.environ.get(_PROFILE)
    if target is None:
        return controller_program.main(options)
    profile = cProfile.Profile(time.process_time)
    code: int = profile.runcall(controller_program.main, options)
    profile.dump_stats(target)
    return code


def run_peer(router: Router, program: str, nodes: list[str], directory: Path) -> Figures:
    """Start a peer and measure it."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [program, *router.arguments(port, nodes, directory)]
    offline = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "PYTHONPATH": ""}
    with process(command, directory / f"{router.name}.log", **offline) as started:
        try:
            eventually(
                lambda: started.poll() is not None or answers(url),
                f"{router.name} answers",
                PEER_SECONDS,
            )
            assert started.poll() is None, f"{router.name} ended by itself"
        except AssertionError as late:
            log = (directory / f"{router.name}.log").read_text(errors="replace")
            raise AssertionError(f"{late}\n{log[-2000:]}") from late
        return measure(url, started.pid, directory)


def show(found: dict[str, Figures]) -> list[str]:
    """Print the table and the ratios; return the targets that were missed."""
    print(f"{'':>14} {'req/s':>8} {'streams/s':>10} {'first data ms':>14} {'CPU ms/req':>11}")
    for name, one in found.items():
        print(
            f"{name:>14} {one.requests:>8.0f} {one.streams:>10.0f} {one.first_data_ms:>14.2f} "
            f"{one.cpu_ms:>11.2f}"
        )
    ours = found[OURS]
    checks = [("added to the first data, ms", ours.first_data_ms - found[DIRECT].first_data_ms, -2)]
    if LITELLM in found:
        checks.append(("requests, x LiteLLM", ours.requests / found[LITELLM].requests, 20))
        checks.append(("streams, x LiteLLM", ours.streams / found[LITELLM].streams, 0))
    if SGLANG in found:
        peer = found[SGLANG]
        checks.append(("requests, x sglang-router", ours.requests / peer.requests, 1 / 3))
        checks.append(("streams, x sglang-router", ours.streams / peer.streams, 1))
    missed = []
    for what, value, target in checks:
        met = value <= -target if target < 0 else value >= target
        bound = f"at most {-target}" if target < 0 else f"at least {target:.2f}"
        print(f"{what:<30} {value:>7.2f}  ({bound}: {'met' if met else 'MISSED'})")
        missed += [] if met else [what]
    return missed


def profile_ours(nodes: list[str], directory: Path, *, stream: bool) -> None:
    """Print where our gateway's time goes under load."""
    target = directory / "profile"

    def use(url: str, _pid: int) -> Figures:
        body = make_body(40, stream=stream)
        rate = measure_rate(Target(url + PATH, body), CONNECTIONS, SECONDS, directory)
        return Figures(rate, 0, 0)

    found = run_ours(nodes, directory, use, **{_PROFILE: str(target)})
    print(f"{found.requests:.0f} a second under the profiler")
    pstats.Stats(str(target)).sort_stats("tottime").print_stats(45)
    pstats.Stats(str(target)).sort_stats("cumtime").print_stats(70)


def compare(nodes: list[str], pids: list[int], directory: Path, names: list[str]) -> list[str]:
    """Measure everything that is here; return the targets that were missed."""
    found = {DIRECT: measure(nodes[0], pids[0], directory)}
    found[OURS] = run_ours(nodes, directory, lambda url, pid: measure(url, pid, directory))
    for router in PEERS:
        program = find(router)
        if router.name not in names:
            continue
        if program is None:
            print(f"{router.name} is not here: {router.install}, then set {router.variable}")
            continue
        found[router.name] = run_peer(router, program, nodes, directory)
    return show(found)


def main() -> int:
    """Run; return 1 when a target was missed."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.gateway_peers")
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--profile", choices=["requests", "streams"])
    parser.add_argument("--peers", nargs="*", default=[item.name for item in PEERS])
    given = parser.parse_args()
    if given.serve is not None:
        return serve(given.serve)
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        directory, nodes, pids = Path(name), [], []
        for number in range(NODES):
            port = free_port()
            command = [sys.executable, "-m", "tests.bench.fake_node", f"n{number}", str(port)]
            started = stack.enter_context(process(command, directory / f"node{number}.log"))
            nodes.append(f"http://127.0.0.1:{port}")
            pids.append(started.pid)
        for url in nodes:
            eventually(lambda url=url: answers(url), "a node answers")
        if given.profile is not None:
            profile_ours(nodes, directory, stream=given.profile == "streams")
            return 0
        return 1 if compare(nodes, pids, directory, given.peers) else 0


if __name__ == "__main__":
    sys.exit(main())
