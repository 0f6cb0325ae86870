"""`python -m tests.crash --kills 200 --seed 1`.

Kills engines with -9 under load on one cache directory, and looks for blocks that are trusted and
wrong. Exit code 0: there were none; 1: there were.
"""

import argparse
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.crash.plan import Plan
from tests.crash.report import find_faults, render
from tests.crash.run import Record, run

_TELL_EVERY = 20


def main(arguments: Sequence[str]) -> int:
    """Run, print, judge."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description=__doc__)
    parser.add_argument("--kills", type=int, default=Plan().kills)
    parser.add_argument("--seed", type=int, default=Plan().seed)
    given = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, leave)
    with tempfile.TemporaryDirectory(prefix="mlxfleet-crash-") as directory:
        record = run(Plan(given.kills, given.seed), Path(directory), tell)
    print(render(record), flush=True)
    return int(bool(find_faults(record)))


def leave(*_: object) -> None:
    """End once the round's engines are dead and the directory is removed; hear no second signal."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(143)


def tell(record: Record) -> None:
    """Say how far it is."""
    if record.kills % _TELL_EVERY == 0:
        print(f"{record.kills} kills, {len(record.faults)} faults", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
