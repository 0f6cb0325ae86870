"""Starting one engine process and holding on to it.

Owns the child's socket, environment, log file and signals. It signals only through the process
object of the child it started, never by a stored pid, so a reused pid is never hit.
"""

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from node_agent.engine.messages import Command, Event
from node_agent.pool.engine_log import open_log
from node_agent.pool.link import EngineLink

LAST_WORDS_SECONDS = 1.0

_CODE_ROOT = Path(__file__).resolve().parents[2]
# An engine needs no credentials, so it gets none.
_SECRET_ENDINGS = ("TOKEN", "KEY", "SECRET", "PASSWORD", "CREDENTIALS")
# glibc raises its own bar for giving memory back with every large buffer that is freed, so an
# engine kept up to 32 MiB blocks for good: after prompts of 6,000 tokens a tiny model rested at
# 134 MiB; with a fixed bar at 62 MiB, as before them. What lies under these bars is given back
# after a rest (engine/heap.py): with bars at 1 MiB and 128 KiB each pass over 8 tokens faulted 500
# pages in anew, 10 of 130 ms. Of arenas but the main one the free top is only given back above the
# bar, never when asked: with one for each thread a tiny model rested at 92 MB after 40 prompts,
# with a single one at 75. By default all of the top goes back once it exceeds the bar: at times the
# memory of a prompt's row went with it, and the next prompt, though all but its ending was cached,
# faulted up to 6,000 pages in anew. With the pad a bar's worth stays: no faults, and the first
# token after 132 ms where it took 144 to 159. Source: SmolLM2-135M, mlx 0.32.4, glibc 2.36, Linux
# CPU, 2026-11-29; mallopt(3).
_LINUX_MALLOC = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": "4194304",
    "MALLOC_TRIM_THRESHOLD_": "16777216",
    "MALLOC_TOP_PAD_": "16777216",
}


@dataclass(frozen=True, slots=True)
class Launcher:
    """How engine processes are started; `--fd N` is added to the command.

    `preload` is a library put first on Linux (a fast BLAS; None keeps MLX's own).
    """

    command: tuple[str, ...] = (sys.executable, "-m", "node_agent.engine")
    preload: Path | None = None
    environment: Mapping[str, str] = field(default_factory=dict)


def plan_environment(launcher: Launcher, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the child's environment. Pure."""
    environment = {
        name: value
        for name, value in inherited.items()
        if not name.upper().endswith(_SECRET_ENDINGS)
    }
    path = [str(_CODE_ROOT), *filter(None, [inherited.get("PYTHONPATH")])]
    environment |= {
        "PYTHONPATH": os.pathsep.join(path),
        "PYTHONHASHSEED": "0",
        "PYTHONUNBUFFERED": "1",
        # The agent resolves models; an engine never goes to the network.
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    if sys.platform == "linux":
        environment = _LINUX_MALLOC | environment
    if launcher.preload is not None and sys.platform == "linux":
        before = filter(None, [inherited.get("LD_PRELOAD")])
        environment["LD_PRELOAD"] = ":".join([str(launcher.preload), *before])
    return environment | dict(launcher.environment)


def describe_exit(returncode: int) -> str:
    """Return an exit status in words. Pure."""
    if returncode >= 0:
        return f"exit code {returncode}"
    number = -returncode
    with contextlib.suppress(ValueError):
        return f"killed by signal {number} ({signal.Signals(number).name})"
    return f"killed by signal {number}"


class EngineProcess:
    """One running child and the link to it."""

    def __init__(self, process: asyncio.subprocess.Process, link: EngineLink) -> None:
        self._process, self._link = process, link

    @property
    def pid(self) -> int:
        """The child's pid, for display only."""
        return self._process.pid

    def send(self, command: Command) -> None:
        """Send a command over the link."""
        self._link.send(command)

    def listen(self) -> None:
        """Begin to hand on what the child says."""
        self._link.listen()

    def terminate(self) -> None:
        """Send SIGTERM if it still runs."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()

    def kill(self) -> None:
        """Send SIGKILL if it still runs."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def wait(self) -> str:
        """Wait for the child's end and its last words on the link; return how it ended."""
        returncode = await self._process.wait()
        # The socket may still hold what the child said before it left, such as LoadFailed.
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._link.lost.wait(), LAST_WORDS_SECONDS)
        self._link.close()
        return describe_exit(returncode)


async def spawn(
    launcher: Launcher,
    log_file: Path,
    on_event: Callable[[Event], None],
    on_lost: Callable[[str], None],
) -> EngineProcess:
    """Start an engine in a session of its own; it is heard from `listen` on.

    Raises: OSError when it cannot be started.
    """
    ours, theirs = socket.socketpair()
    # Whatever goes wrong below, a child that did start sees its socket close and ends.
    with contextlib.ExitStack() as on_fault, theirs:
        on_fault.callback(ours.close)
        log_fd = open_log(log_file)
        try:
            process = await asyncio.create_subprocess_exec(
                *launcher.command,
                "--fd",
                str(theirs.fileno()),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log_fd,
                stderr=log_fd,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                env=plan_environment(launcher, os.environ),
            )
        finally:
            os.close(log_fd)
        on_fault.pop_all()
    ours.setblocking(False)
    loop = asyncio.get_running_loop()
    _, link = await loop.create_unix_connection(lambda: EngineLink(on_event, on_lost), sock=ours)
    return EngineProcess(process, link)
