"""`make demo`: a real model through the whole system, shown step by step.

Starts a controller and two agents on loopback, applies examples/quickstart, waits, talks to the
model through the gateway, shows the fleet, and stops everything. KEEP=1 leaves it running.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MLXCTL = [sys.executable, "-m", "controller.cli"]
QUESTION = "What is the capital of France? Answer in one sentence."
START_SECONDS = 90.0

BOLD, DIM, PLAIN = ("\033[1m", "\033[2m", "\033[0m") if sys.stdout.isatty() else ("", "", "")


def free_ports(count: int) -> int:
    """Return a port p such that p..p+count-1 are free on loopback now; 7070 when possible."""
    for start in (7070, *range(17070, 27070, 100)):
        sockets: list[socket.socket] = []
        try:
            for port in range(start, start + count):
                probe = socket.socket()
                sockets.append(probe)
                probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        else:
            return start
        finally:
            for probe in sockets:
                probe.close()
    raise SystemExit("no free ports on loopback")


def show(title: str, command: list[str], env: dict[str, str]) -> None:
    """Run one command for the reader to see; a failure ends the demo."""
    words = " ".join(f'"{word}"' if " " in word else word for word in command)
    print(f"\n{BOLD}{title}{PLAIN}\n{DIM}$ mlxctl {words}{PLAIN}", flush=True)
    done = subprocess.run([*MLXCTL, *command], env=env, cwd=ROOT, check=False)
    if done.returncode != 0:
        raise SystemExit(f"mlxctl {command[0]} ended with code {done.returncode}")


def start_fleet(port: int, data: Path, env: dict[str, str]) -> subprocess.Popen[str]:
    """Start `mlxctl up` and return it once it says that everything is up."""
    print(f"{BOLD}A controller and two agents{PLAIN}\n{DIM}$ mlxctl up{PLAIN}", flush=True)
    fleet = subprocess.Popen(
        [*MLXCTL, "up", "--port", str(port), "--data", str(data)],
        env=env,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert fleet.stdout is not None
    for line in fleet.stdout:
        if line.startswith("Ctrl-C"):
            return fleet
        print(line, end="", flush=True)
    raise SystemExit(f"the fleet did not start (exit code {fleet.wait()})")


def stop_fleet(fleet: subprocess.Popen[str]) -> None:
    """Stop everything, as Ctrl-C does."""
    fleet.send_signal(signal.SIGINT)
    code = fleet.wait(timeout=120)
    if code != 0:
        raise SystemExit(f"mlxctl up ended with code {code}")


def main() -> None:
    """Run the demo."""
    started = time.monotonic()
    keep = os.environ.get("KEEP") == "1"
    port = free_ports(3)
    server = f"http://127.0.0.1:{port}"
    env = {**os.environ, "MLXCTL_SERVER": server}
    data = Path(tempfile.mkdtemp(prefix="mlxfleet-demo-"))
    fleet = start_fleet(port, data, env)
    done = False
    try:
        show("Declare a model", ["apply", "-f", "examples/quickstart"], env)
        show("Wait until it serves", ["wait", "model/smollm2", "--timeout=120s"], env)
        show("The fleet", ["get", "nodes,models,engines"], env)
        show("Talk to it through the fleet's endpoint", ["chat", "smollm2", QUESTION], env)
        print(f"\n{BOLD}Metrics{PLAIN}\n{DIM}$ curl -s {server}/metrics{PLAIN}")
        metrics = subprocess.run(
            [sys.executable, str(ROOT / "scripts" / "show_metrics.py"), server],
            check=True,
        )
        done = metrics.returncode == 0
        if keep:
            print(f"\nLeft running (KEEP=1) as process {fleet.pid}; stop it with: kill {fleet.pid}")
            print(f'Try:  mlxctl --server {server} chat smollm2 "Tell me a short story."')
    finally:
        if not (keep and done):
            stop_fleet(fleet)
    if not keep:
        # After a failure it stays, for its logs.
        shutil.rmtree(data)
    seconds = time.monotonic() - started
    print(f"\nDone in {seconds:.0f} s. Next: README.md, examples/, `make test`.")


if __name__ == "__main__":
    main()
