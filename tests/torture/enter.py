"""Moves into a cgroup, then becomes a module: `python -m tests.torture.enter PROCS MODULE ARG ...`.

The process is inside before it allocates anything, so its whole life is under the limit.
"""

import os
import sys
from pathlib import Path

if __name__ == "__main__":
    procs, *command = sys.argv[1:]
    Path(procs).write_text(str(os.getpid()))
    os.execv(sys.executable, [sys.executable, "-m", *command])
