"""`python -m tests.bench [NAME ...]`: runs the benches one after the other, each as a process.

Prints what was measured on which machine and ends with 1 when a bench missed its target.
"""

import argparse
import os
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import psutil

from tests.support.fleet import ROOT

# What each measures, in the order of running.
BENCHES = {
    "estimate_accuracy": "predicted over measured peak memory of prompts",
    "batching": "eight requests at once against one, on SmolLM2 through a real agent",
    "running_pace": "how long a running stream waits while a long prompt is fed, on SmolLM2",
    "decode_overhead": "what the engine adds to each decode step, on SmolLM2",
    "prompt_lookup": "one request's tokens a second with drafts and without, on SmolLM2",
    "warm_profile": "where the time to a warm first token goes, and its share of cold, on SmolLM2",
    "restore_stall": "how long a running stream waits while 0.7 GB are restored, on SmolLM2",
    "gateway_overhead": "what the gateway adds to a request, on a tiny model",
    "placement": "the gateway against round robin and least connections, on four unequal nodes",
    "gateway_peers": "the gateway beside other routers that are installed, on fake nodes",
    "peers": "side by side with the other MLX servers that are installed, on SmolLM2",
}


def describe_machine() -> str:
    """Return the machine and the versions that figures depend on."""
    model = platform.processor() or platform.machine()
    if sys.platform == "linux":
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        names = [line.split(":", 1)[1].strip() for line in lines if "model name" in line]
        model = names[0] if names else model
    gib = psutil.virtual_memory().total / (1 << 30)
    return (
        f"{platform.system()} {platform.release()}, {model}, {os.cpu_count()} cores, "
        f"{gib:.0f} GiB; Python {platform.python_version()}, mlx {version('mlx')}, "
        f"mlx-lm {version('mlx-lm')}; load {os.getloadavg()[0]:.1f}"
    )


def run(name: str) -> bool:
    """Run one bench and print how long it took; say whether its target was met."""
    print(f"\n== {name}: {BENCHES[name]}", flush=True)
    started = time.monotonic()
    done = subprocess.run([sys.executable, "-m", f"tests.bench.{name}"], cwd=ROOT, check=False)
    print(f"({time.monotonic() - started:.0f} s)", flush=True)
    return done.returncode == 0


def main(arguments: Sequence[str]) -> int:
    """Run the named benches, all without names; return 1 when one missed its target."""
    known = "\n".join(f"  {name:<18} {what}" for name, what in BENCHES.items())
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench",
        description=f"benches:\n{known}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="which to run; all without")
    names = parser.parse_args(arguments).names or list(BENCHES)
    unknown = [name for name in names if name not in BENCHES]
    if unknown:
        parser.error(f"no bench {', '.join(unknown)}; there are {', '.join(BENCHES)}")
    print(describe_machine(), flush=True)
    missed = [name for name in names if not run(name)]
    print(f"\nmissed: {', '.join(missed)}" if missed else "\nall targets met")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
