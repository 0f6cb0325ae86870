"""A real engine process on a bare socket, and pools of real engines."""

import asyncio
import ctypes.util
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from node_agent.engine.framing import FrameDecoder, frame
from node_agent.engine.messages import (
    Command,
    Event,
    Failed,
    Finished,
    Generate,
    Load,
    Loaded,
    LoadFailed,
    Shutdown,
    decode_event,
    encode,
)
from node_agent.pool.process import Launcher, plan_environment


def find_preload() -> Path | None:
    """Return a fast BLAS on Linux, if one is installed."""
    name = ctypes.util.find_library("openblas") if sys.platform == "linux" else None
    return None if name is None else Path(name)


class BareEngine:
    """The engine process with nothing between it and the test; reads block with a timeout."""

    def __init__(self, timeout_seconds: float = 60, launcher: Launcher | None = None) -> None:
        self.socket, theirs = socket.socketpair()
        self.socket.settimeout(timeout_seconds)
        launcher = launcher or Launcher(preload=find_preload())
        self.process = subprocess.Popen(
            [*launcher.command, "--fd", str(theirs.fileno())],
            pass_fds=(theirs.fileno(),),
            env=plan_environment(launcher, os.environ),
        )
        theirs.close()
        self.decoder = FrameDecoder()
        self.events = self._read()
        self.seen: list[Event] = []

    def send(self, *commands: Command) -> None:
        """Send commands in one write."""
        self.socket.sendall(b"".join(frame(encode(command)) for command in commands))

    def _read(self) -> Iterator[Event]:
        while chunk := self._receive():
            for body in self.decoder.feed(chunk):
                event = decode_event(body)
                self.seen.append(event)
                yield event
        # The engine waits for our side to close before it leaves.
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)

    def _receive(self) -> bytes:
        try:
            return self.socket.recv(1 << 16)
        except ConnectionResetError:
            # It left without reading our last command; that is an end like any other.
            return b""

    def await_event(self, kind: type[Event]) -> Event:
        """Read up to the next event of a kind."""
        for event in self.events:
            if isinstance(event, kind):
                return event
        raise AssertionError(f"the engine left before a {kind.__name__}")

    def load(self, model: Path, **fields: int) -> Loaded:
        """Load a model. Raises AssertionError when it does not load."""
        self.send(Load(model_path=str(model), **fields))
        return self.await_loaded()

    def await_loaded(self) -> Loaded:
        """Read up to the end of a load. Raises AssertionError when it does not load."""
        for event in self.events:
            if isinstance(event, Loaded):
                return event
            assert not isinstance(event, LoadFailed), event
        raise AssertionError("the engine left while loading")

    def run(self, *commands: Generate) -> dict[str, list[Event]]:
        """Run rows together and return the events of each, by request id."""
        rows: dict[str, list[Event]] = {command.request_id: [] for command in commands}
        left = set(rows)
        self.send(*commands)
        for event in self.events:
            request_id = getattr(event, "request_id", None)
            if request_id not in rows:
                continue
            rows[request_id].append(event)
            if isinstance(event, Finished | Failed):
                left.discard(request_id)
            if not left:
                return rows
        raise AssertionError("the engine left while rows ran")

    def stop(self) -> int:
        """Shut the engine down and return its exit code."""
        with suppress(BrokenPipeError):
            self.send(Shutdown())
        try:
            for _ in self.events:
                pass
            return self.process.wait(20)
        finally:
            self.process.kill()
            self.process.wait(5)
            self.socket.close()


@contextmanager
def bare_engine(model: Path, **fields: int) -> Iterator[BareEngine]:
    """Run an engine with a model loaded, and stop it."""
    engine = BareEngine()
    try:
        engine.load(model, **fields)
        yield engine
    finally:
        engine.stop()


async def await_gone(pid: int, timeout_seconds: float) -> float:
    """Wait for a process that is not our child to be gone; return how long it took."""
    started_seconds = time.monotonic()
    while _runs(pid):
        if time.monotonic() - started_seconds > timeout_seconds:
            raise AssertionError(f"process {pid} still runs after {timeout_seconds} s")
        await asyncio.sleep(0.02)
    return time.monotonic() - started_seconds


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # An orphan whose new parent has not yet reaped it is as good as gone.
    stat = Path(f"/proc/{pid}/stat")
    try:
        return stat.read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return sys.platform != "linux"
