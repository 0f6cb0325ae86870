"""What the gateway costs beside other routers: `python -m tests.bench.gateway_peers`.

All stand in turn before the same two nodes that answer at once (fake_node.py), under the same
load, in one run: whole answers and 32-piece streams per second, every request with another text,
and what is added to the time to the first data of a 1,000-token prompt. Ours counts every prompt
with the nodes' tokenizer; the last column sends one text again and again, which it remembers.
Peers are measured from outside only; one that is not installed is left out with a word.
`--profile` prints where our gateway's time goes instead.
"""

import argparse
import cProfile
import json
import os
import pstats
import random
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import psutil

import controller.__main__ as controller_program
from manifests.wire.explain import EXPLAIN_PATH
from tests.bench.fake_node import MODEL, engine_name
from tests.bench.gateway_routers import LITELLM, PEERS, SGLANG, Router, find
from tests.bench.http_load import NUMBER, Target, measure_first_data, measure_rate, median_ms
from tests.support.fleet import API, ROOT, eventually, free_port

CONNECTIONS = 16
SECONDS = 4
FIRST_DATA_COUNT = 200
NODES = 2
PEER_SECONDS = 300.0  # LiteLLM takes long to import on a loaded machine
PATH = "/v1/chat/completions"
OURS, DIRECT, PAIR = "mlxfleet", "no router", "2 workers"
LONG_WORDS = 750  # about 1,000 tokens
_PROFILE = "MLXFLEET_BENCH_PROFILE"


def make_body(*, stream: bool, words: int = 0) -> bytes:
    """Return a chat with a number in its text, and so many words more."""
    chosen, known = random.Random(1), (ROOT / "LICENSE").read_text().split()
    more = "".join(f" {chosen.choice(known)}" for _ in range(words))
    message = {"role": "user", "content": f"{NUMBER} say hello{more}"}
    body = {"model": MODEL, "messages": [message], "max_tokens": 32, "stream": stream}
    return json.dumps(body, separators=(",", ":")).encode()


@dataclass(frozen=True, slots=True)
class Figures:
    """What one router did. Units: per second; milliseconds.

    `repeats` are requests of one text. `cpu_ms` is the router's own for one request, all its
    processes together; `load_ratio` what of the machine the load and the nodes took meanwhile.
    """

    requests: float
    streams: float
    first_data_ms: float
    cpu_ms: float = 0.0
    load_ratio: float = 0.0
    repeats: float = 0.0


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
            content=make_body(stream=False),
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

        source = {"path": "/nowhere"}
        post("models", "Model", MODEL, {"source": source})
        for number, address in enumerate(nodes):
            name = f"n{number}"
            post("nodes", "Node", name, {})
            engine = {"model": MODEL, "node": name, "revision": "r", "source": source}
            post("engines", "Engine", engine_name(name), engine)
            client.patch(
                f"/nodes/{name}/status",
                json={"status": {"address": address}},
                headers={"content-type": "application/merge-patch+json"},
            ).raise_for_status()


def counts(url: str) -> bool:
    """Whether our gateway counts prompts as its nodes do."""
    found = httpx.post(
        url + EXPLAIN_PATH, content=make_body(stream=False), timeout=10, trust_env=False
    )
    return found.status_code == 200 and bool(found.json()["exact"])


def print_counts(url: str) -> None:
    """Print how our gateway came by the counts of prompts."""
    text = httpx.get(url + "/metrics", timeout=10, trust_env=False).text
    found = re.findall(r'mlxfleet_gateway_prompts_total{outcome="(\w+)"} ([\d.e+]+)', text)
    shown = (f"{float(count):.0f} {how}" for how, count in found)
    print(f"prompts at {OURS}: {', '.join(shown)}")


def measure(url: str, pid: int, nodes: list[int], directory: Path) -> Figures:
    """Return the figures of what listens at `url`, a process before those of the nodes."""
    own = psutil.Process(pid)
    watched, loading = [own, *own.children(recursive=True)], [psutil.Process(it) for it in nodes]
    whole = Target(url + PATH, make_body(stream=False))
    measure_rate(whole, CONNECTIONS, 2, directory)
    before, before_load = spent_seconds(watched), spent_seconds(loading) + children_seconds()
    rate = measure_rate(whole, CONNECTIONS, SECONDS, directory)
    spent = spent_seconds(watched) - before
    load = spent_seconds(loading) + children_seconds() - before_load
    streaming = Target(url + PATH, make_body(stream=True))
    streams = measure_rate(streaming, CONNECTIONS, SECONDS, directory)
    long = Target(url + PATH, make_body(stream=True, words=LONG_WORDS))
    first = median_ms(measure_first_data(long, FIRST_DATA_COUNT))
    repeats = measure_rate(replace(whole, same=True), CONNECTIONS, SECONDS, directory)
    cpu_ms = spent / (rate * SECONDS) * 1e3
    return Figures(rate, streams, first, cpu_ms, load / SECONDS / (os.cpu_count() or 1), repeats)


def children_seconds() -> float:
    """Return the CPU time of our processes that have ended, which the load's are."""
    found = resource.getrusage(resource.RUSAGE_CHILDREN)
    return found.ru_utime + found.ru_stime


def spent_seconds(processes: list[psutil.Process]) -> float:
    """Return the CPU time of these processes together."""
    return sum(sum(one.cpu_times()[:2]) for one in processes)


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
        eventually(lambda: counts(url), "our gateway counts")
        found = use(url, started.pid)
        print_counts(url)
        return found


def run_workers(nodes: list[str], pids: list[int], directory: Path, count: int) -> Figures:
    """Start an API and so many gateway workers and measure these together."""
    api, url = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
    program = [sys.executable, "-m", "controller", "--listen"]
    declared = [*program, api.removeprefix("http://"), "--store", "memory", "--roles", "api"]
    workers = [*program, url.removeprefix("http://"), "--roles", "gateway", "--api", api]
    with (
        process(declared, directory / "api.log"),
        process([*workers, "--workers", str(count)], directory / "workers.log") as started,
    ):
        eventually(lambda: is_up(api), "our API is up")
        declare(api, nodes)
        eventually(lambda: all(answers(url) for _ in range(20)), "our workers answer")
        eventually(lambda: all(counts(url) for _ in range(20)), "our workers count")
        found = measure(url, started.pid, pids, directory)
        print_counts(url)
        return found


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


def run_peer(
    router: Router, program: str, nodes: list[str], pids: list[int], directory: Path
) -> Figures:
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
        return measure(url, started.pid, pids, directory)


def show(found: dict[str, Figures]) -> list[str]:
    """Print the table and the ratios; return the targets that were missed."""
    heads = ("", "req/s", "streams/s", "first data ms", "CPU ms/req", "load %", "one text/s")
    print("{:>14} {:>8} {:>10} {:>14} {:>11} {:>7} {:>11}".format(*heads))
    for name, one in found.items():
        print(
            f"{name:>14} {one.requests:>8.0f} {one.streams:>10.0f} {one.first_data_ms:>14.2f} "
            f"{one.cpu_ms:>11.3f} {one.load_ratio * 100:>7.0f} {one.repeats:>11.0f}"
        )
    ours = found[OURS]
    added_ms = ours.first_data_ms - found[DIRECT].first_data_ms
    # What, how much, and the aim: at least so much, at most where it is negative, or none.
    checks: list[tuple[str, float, float | None]] = [("added to the first data, ms", added_ms, -2)]
    if PAIR in found:
        # How near to linear: on as many cores as they need, workers are as fast as what each
        # request costs them. On fewer the load, the nodes and the tokenizers take their share.
        pair = found[PAIR]
        checks.append(("requests, 2 workers x one", pair.requests / ours.requests, None))
        checks.append(("CPU a request, 2 workers x one", pair.cpu_ms / ours.cpu_ms, -1.15))
    if LITELLM in found:
        checks.append(("requests, x LiteLLM", ours.requests / found[LITELLM].requests, 20))
        checks.append(("streams, x LiteLLM", ours.streams / found[LITELLM].streams, None))
    if SGLANG in found:
        peer = found[SGLANG]
        checks.append(("requests, x sglang-router", ours.requests / peer.requests, 1 / 3))
        checks.append(("one text, x sglang-router", ours.repeats / peer.repeats, 1 / 3))
        checks.append(("streams, x sglang-router", ours.streams / peer.streams, 1))
    missed = []
    for what, value, target in checks:
        if target is None:
            print(f"{what:<30} {value:>7.2f}")
            continue
        met = value <= -target if target < 0 else value >= target
        bound = f"at most {-target}" if target < 0 else f"at least {target:.2f}"
        print(f"{what:<30} {value:>7.2f}  ({bound}: {'met' if met else 'MISSED'})")
        missed += [] if met else [what]
    return missed


def profile_ours(nodes: list[str], directory: Path, *, stream: bool) -> None:
    """Print where our gateway's time goes under load."""
    target = directory / "profile"

    def use(url: str, _pid: int) -> Figures:
        body = make_body(stream=stream)
        rate = measure_rate(Target(url + PATH, body), CONNECTIONS, SECONDS, directory)
        return Figures(rate, 0, 0)

    found = run_ours(nodes, directory, use, **{_PROFILE: str(target)})
    print(f"{found.requests:.0f} a second under the profiler")
    pstats.Stats(str(target)).sort_stats("tottime").print_stats(45)
    pstats.Stats(str(target)).sort_stats("cumtime").print_stats(70)


def compare(nodes: list[str], pids: list[int], directory: Path, names: list[str]) -> list[str]:
    """Measure everything that is here; return the targets that were missed."""
    found = {DIRECT: measure(nodes[0], pids[0], [], directory)}
    found[OURS] = run_ours(nodes, directory, lambda url, pid: measure(url, pid, pids, directory))
    if sys.platform == "linux" and PAIR in names:
        found[PAIR] = run_workers(nodes, pids, directory, 2)
    for router in PEERS:
        program = find(router)
        if router.name not in names:
            continue
        if program is None:
            print(f"{router.name} is not here: {router.install}, then set {router.variable}")
            continue
        found[router.name] = run_peer(router, program, nodes, pids, directory)
    return show(found)


def main() -> int:
    """Run; return 1 when a target was missed."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.gateway_peers")
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--profile", choices=["requests", "streams"])
    parser.add_argument("--peers", nargs="*", default=[PAIR, *(item.name for item in PEERS)])
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
