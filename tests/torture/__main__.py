"""`python -m tests.torture --seconds 300 --seed S [--guard on|off|both]`.

Runs real models under a kernel memory limit that kills and prints what happened. Exit code 0: the
promises held, and without the guard the kernel killed; 1: they did not; 2: it cannot run here.
"""

import argparse
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from manifests.units import parse_quantity
from tests.torture.cgroup import CgroupUnavailableError
from tests.torture.checks import find_faults
from tests.torture.report import render
from tests.torture.run import run
from tests.torture.stage import Plan, missing_models


def parse_plan(arguments: Sequence[str]) -> tuple[list[Plan], Path | None]:
    """Return the runs of a command line and where to keep their logs."""
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description=__doc__)
    defaults = Plan()
    parser.add_argument("--seconds", type=float, default=defaults.seconds)
    parser.add_argument("--seed", type=int, default=defaults.seed)
    parser.add_argument("--guard", choices=("on", "off", "both"), default="on")
    parser.add_argument("--clients", type=int, default=defaults.clients)
    parser.add_argument("--limit", type=parse_quantity, default=defaults.limit_bytes)
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep logs here")
    given = parser.parse_args(arguments)
    plan = replace(
        defaults,
        seconds=given.seconds,
        seed=given.seed,
        clients=given.clients,
        limit_bytes=given.limit,
    )
    guards = {"on": (True,), "off": (False,), "both": (False, True)}[given.guard]
    return [replace(plan, guard=guard) for guard in guards], given.keep


@contextmanager
def scratch(keep: Path | None, name: str) -> Iterator[Path]:
    """Yield a new directory; it stays only where the caller asked for it."""
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="mlxfleet-torture-") as directory:
            yield Path(directory)
    else:
        keep.mkdir(parents=True, exist_ok=True)
        yield Path(tempfile.mkdtemp(prefix=f"{name}-", dir=keep))


def main(arguments: Sequence[str]) -> int:
    """Run, print, judge."""
    plans, keep = parse_plan(arguments)
    # A terminated run still ends its processes and removes its cgroup.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    missing = missing_models(plans[0])
    if missing:
        print(f"cannot run: {missing}", file=sys.stderr)
        return 2
    code = 0
    for plan in plans:
        with scratch(keep, "on" if plan.guard else "off") as directory:
            try:
                record = run(plan, directory)
            except CgroupUnavailableError as fault:
                print(f"cannot run: {fault}", file=sys.stderr)
                return 2
        faults = find_faults(record)
        print(render(record, faults), flush=True)
        print(flush=True)
        code = max(code, int(bool(faults)))
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
