"""The engine process: asyncio on the inherited socket, MLX on a thread of its own.

Owns the socket, the heartbeat and the way out. It never imports MLX itself: the MLX thread
does, after Hello is sent. When the agent's end of the socket closes, the process ends at once,
whatever the MLX thread is doing, so an agent that was killed leaves no engine behind.
"""

import asyncio
import contextlib
import importlib
import os
import resource
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from types import ModuleType
from typing import cast

import msgspec

from manifests.errors import Code
from node_agent.engine.framing import FrameDecoder, FrameError, frame
from node_agent.engine.mailbox import Board, Mailbox, StepGauges
from node_agent.engine.messages import (
    Command,
    Event,
    Failed,
    Generate,
    Heartbeat,
    Hello,
    LoadFailed,
    Shutdown,
    decode_command,
    encode,
)

HEARTBEAT_SECONDS = 1.0
FLUSH_SECONDS = 2.0
EXIT_FAULT = 1
EXIT_PROTOCOL = 4
EXIT_AGENT_GONE = 5

_RUNTIME_MODULE = "node_agent.engine.runtime"


class EngineSocket(asyncio.Protocol):
    """The engine's end of the socket."""

    def __init__(self, mailbox: Mailbox, board: Board) -> None:
        self._mailbox, self._board = mailbox, board
        self._decoder = FrameDecoder()
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._exit_code: int | None = None
        self.ended: asyncio.Future[int] = self._loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say hello, then let MLX be imported."""
        # A cast, as uvloop's transports do not inherit from asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        self.write([Hello(pid=os.getpid())])
        threading.Thread(target=self._run_mlx, name="mlx", daemon=True).start()
        self._beat()

    def data_received(self, data: bytes) -> None:
        """Pass commands on to the MLX thread."""
        try:
            for body in self._decoder.feed(data):
                self._accept(decode_command(body))
        except (FrameError, msgspec.MsgspecError) as fault:
            _say(f"the agent broke the protocol: {fault}")
            os._exit(EXIT_PROTOCOL)

    def connection_lost(self, _exc: Exception | None) -> None:
        """End the process: cleanly when we closed the socket, at once when the agent did."""
        if self._exit_code is None:
            os._exit(EXIT_AGENT_GONE)
        self.ended.set_result(self._exit_code)

    def write(self, events: Sequence[Event]) -> None:
        """Send events in one write; nothing follows the last words."""
        if self._transport is not None and self._exit_code is None:
            self._transport.write(b"".join(frame(encode(event)) for event in events))

    def ask_shutdown(self) -> None:
        """End after the step that runs now."""
        self._mailbox.put(Shutdown())

    def _accept(self, command: Command) -> None:
        if self._mailbox.put(command) or not isinstance(command, Generate):
            return
        message = "too many requests are queued in this engine"
        self.write(
            [Failed(request_id=command.request_id, code=Code.QUEUE_FULL.value, message=message)]
        )

    def _beat(self) -> None:
        step, memory = self._board.step, self._board.read_memory()
        rows = step.rows
        started = step.started_seconds
        self.write(
            [
                Heartbeat(
                    steps=step.steps,
                    step_seconds=0.0 if started is None else time.monotonic() - started,
                    running=rows.running,
                    waiting=rows.waiting,
                    active_bytes=memory.active_bytes,
                    cache_bytes=memory.cache_bytes,
                    peak_bytes=memory.peak_bytes,
                    prefilling=rows.prefilling,
                    held=rows.held,
                    prefill_turn=rows.prefill_turn,
                    over_budget_bytes=rows.over_budget_bytes,
                    drafted_tokens=rows.drafted_tokens,
                    accepted_tokens=rows.accepted_tokens,
                )
            ]
        )
        self._loop.call_later(HEARTBEAT_SECONDS, self._beat)

    def _run_mlx(self) -> None:
        code = EXIT_FAULT
        # An import that never ends must not look like an engine with nothing to do.
        self._board.step = StepGauges(started_seconds=time.monotonic())
        try:
            runtime = import_keeping_file_limit(_RUNTIME_MODULE)
            code = runtime.run(self._mailbox, self._board, self._emit)
        except ImportError as fault:
            traceback.print_exc()
            self._emit([LoadFailed(message=f"MLX cannot be imported: {fault}")])
        except Exception:  # noqa: BLE001 - root of the thread, should its own root fail
            traceback.print_exc()
        finally:
            self._loop.call_soon_threadsafe(self._finish, code)

    def _emit(self, events: Sequence[Event]) -> None:
        self._loop.call_soon_threadsafe(self.write, events)

    def _finish(self, code: int) -> None:
        """Flush what was written and end with `code`, even when the agent does not read."""
        if self._transport is None or self._exit_code is not None:
            return
        self._exit_code = code
        self._loop.call_later(FLUSH_SECONDS, self._transport.abort)
        # Half open until the agent closes too: were it to write to a closed socket, it would be
        # told of that and never read our last words.
        self._transport.write_eof()


def import_keeping_file_limit(module: str) -> ModuleType:
    """Import a module and undo what its imports did to the limit on open files.

    `import mlx_lm` sets it to (2048, 4096). Where raising the hard limit again is not allowed,
    the soft limit goes back as far as it can.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    imported = importlib.import_module(module)
    _, lowered = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    except (ValueError, OSError):
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, lowered), lowered))
    return imported


async def serve(fd: int) -> int:
    """Run the engine on an inherited socket until it ends; return the exit code."""
    loop = asyncio.get_running_loop()
    mailbox, board = Mailbox(), Board()
    # A compiler that MLX starts must not hold the socket open after this process died.
    os.set_inheritable(fd, False)
    _, protocol = await loop.create_unix_connection(
        lambda: EngineSocket(mailbox, board), sock=socket.socket(fileno=fd)
    )
    loop.add_signal_handler(signal.SIGTERM, protocol.ask_shutdown)
    # The agent decides when an engine stops; a Ctrl-C in its terminal is the agent's to handle.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return await protocol.ended


def _say(message: str) -> None:
    sys.stderr.write(message + "\n")
    sys.stderr.flush()
