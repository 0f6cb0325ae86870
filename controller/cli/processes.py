"""Child processes of `mlxctl up`: start, watch, restart, stop in order."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from controller.cli.exits import CliError

_RESTART_SECONDS = (1.0, 2.0, 5.0, 10.0, 30.0)
_STABLE_SECONDS = 60.0
_STOP_SECONDS = 40.0


@dataclass(slots=True)
class Child:
    """One child: what to run, where its output goes, and how often it came back."""

    name: str
    command: Sequence[str]
    log: Path
    process: subprocess.Popen[bytes] | None = None
    restarts: int = 0
    started: float = 0.0
    restart_at: float | None = field(default=None)

    def start(self) -> None:
        """Start it in a session of its own, so that Ctrl-C reaches it through us only."""
        self.log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *self.command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
        self.started, self.restart_at = time.monotonic(), None

    def exit_code(self) -> int | None:
        """Return its exit code, or None while it runs."""
        return None if self.process is None else self.process.poll()

    def last_lines(self, count: int = 12) -> str:
        """Return the end of its output."""
        try:
            lines = self.log.read_text(errors="replace").splitlines()
        except OSError:
            return ""
        return "\n".join(lines[-count:])

    def tend(self, now: float) -> str | None:
        """Restart it when it has ended and its pause is over; what happened, or None."""
        code = self.exit_code()
        if code is None:
            return None
        if self.restart_at is None:
            if now - self.started >= _STABLE_SECONDS:
                self.restarts = 0
            pause = _RESTART_SECONDS[min(self.restarts, len(_RESTART_SECONDS) - 1)]
            self.restart_at = now + pause
            return f"{self.name} {exit_words(code)}; starting it again in {pause:.0f} s"
        if now >= self.restart_at:
            self.restarts += 1
            self.start()
        return None

    def signal(self, number: int) -> None:
        """Send a signal if it still runs."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)

    def wait(self, seconds: float) -> None:
        """Wait for its end, and kill it when it does not come."""
        if self.process is None:
            return
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def exit_words(code: int) -> str:
    """Return how a process ended, in words. Pure."""
    if code >= 0:
        return f"exited with code {code}"
    return f"was ended by {signal.Signals(-code).name}"


def stop_all(children: Sequence[Child]) -> None:
    """Stop the agents first, while the controller still takes their last report."""
    for child in reversed(children[1:]):
        child.signal(signal.SIGTERM)
    for child in children[1:]:
        child.wait(_STOP_SECONDS)
    for child in children[:1]:
        child.signal(signal.SIGTERM)
        child.wait(_STOP_SECONDS)


def require_running(child: Child) -> None:
    """Raise CliError with the child's own last words when it ended during start-up."""
    code = child.exit_code()
    if code is not None:
        raise CliError(f"{child.name} {exit_words(code)}", hint=child.last_lines())
