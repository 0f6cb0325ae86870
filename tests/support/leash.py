"""Processes that end with the test process, however that ends: killed too.

`python -m tests.support.leash` is one small process beside each test process. It is told of every
child through a pipe, and kills those that still run once the pipe closes. A parent-death signal
would do less: Linux sends it when the thread ends that started the child.
"""

import atexit
import contextlib
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[2]


def start_held(command: list[str], **options: Any) -> subprocess.Popen[Any]:
    """Start a process, as Popen does, that does not outlive this one."""
    process = subprocess.Popen(command, **options)
    _leash().hold(process.pid)
    return process


class _Leash:
    """This process's end of the pipe."""

    def __init__(self) -> None:
        # A session of its own: what is sent to our process group must not end it.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.leash"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def hold(self, pid: int) -> None:
        """Tell of a child of ours."""
        pipe = self._process.stdin
        assert pipe is not None
        pipe.write(f"{pid} {psutil.Process(pid).create_time()!r}\n".encode())
        pipe.flush()

    def let_go(self) -> None:
        """End whoever is left."""
        self._process.communicate(timeout=20)


@cache
def _leash() -> _Leash:
    leash = _Leash()
    atexit.register(leash.let_go)
    return leash


def main() -> None:
    """Read of children until nobody can tell of more, then kill them."""
    held = [line.split() for line in sys.stdin]
    for pid, created in held:
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(int(pid))
            # Another process may have got the number since.
            if process.create_time() == float(created):
                process.kill()


if __name__ == "__main__":
    main()
