"""The event loop's side of one tokenizer process: start, ask, see it die, end it.

Owns the child and the frames; knows nothing of what is asked. The agent's text models and the
gateway's tokenizers are built on it. The event loop never runs a tokenizer.
"""

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import cast

from manifests.prompt.messages import (
    HEADER_BYTES,
    TextCommand,
    TextRefused,
    TextReply,
    TokenizerReady,
    decode_text_reply,
    frame,
)

_EXIT_SECONDS = 5.0

# A tokenizer is read from the model's directory alone, and quietly.
WORKER_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "TOKENIZERS_PARALLELISM": "false",
    "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
}


class ProcessLostError(Exception):
    """The process ended, or could not load; the message says why, for a log."""


class TokenizerLink:
    """A running tokenizer process; all methods belong to one event loop."""

    def __init__(
        self, transport: asyncio.SubprocessTransport, frames: "_Frames", ready: TokenizerReady
    ) -> None:
        """Take over a process that has said it is ready."""
        self._transport, self._frames, self.ready = transport, frames, ready
        self._waiting: dict[int, asyncio.Future[TextReply]] = {}
        self._next_number = 0
        frames.on_reply, frames.on_end = self._take, self._fail_all

    @classmethod
    async def start(cls, directory: Path, *, ids_only: bool = False) -> "TokenizerLink":
        """Start the process and wait until it is loaded. Raises ProcessLostError."""
        loop = asyncio.get_running_loop()
        first: asyncio.Future[TextReply | None] = loop.create_future()
        command = [sys.executable, "-m", "manifests.prompt.worker", str(directory)]
        transport, frames = await loop.subprocess_exec(
            lambda: _Frames(first),
            *(command + ["--ids-only"] * ids_only),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=None,
            env=os.environ | WORKER_ENVIRONMENT,
        )
        try:
            reply = await first
        except asyncio.CancelledError:
            await _end(transport, frames)
            raise
        if isinstance(reply, TokenizerReady):
            return cls(transport, frames, reply)
        await _end(transport, frames)
        reason = reply.message if isinstance(reply, TextRefused) else "the process ended"
        raise ProcessLostError(reason)

    @property
    def alive(self) -> bool:
        """Whether it still answers."""
        return not self._frames.ended

    @property
    def waiting(self) -> int:
        """How many commands have no reply yet."""
        return len(self._waiting)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._transport.get_pid()

    async def ask(self, build: Callable[[int], TextCommand]) -> TextReply:
        """Send the command that `build` makes of a number. Raises ProcessLostError.

        What is asked in one turn of the loop goes to the process in one write.
        """
        if self._frames.ended:
            raise ProcessLostError("the process ended")
        number, self._next_number = self._next_number, self._next_number + 1
        future: asyncio.Future[TextReply] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        try:
            self._frames.send(frame(build(number)))
            return await future
        finally:
            # Nobody reads it any more.
            del self._waiting[number]

    def kill(self) -> None:
        """End it at once; what waits for it fails."""
        with contextlib.suppress(ProcessLookupError):
            self._transport.kill()

    async def close(self) -> None:
        """End it, by force if need be; what waits for it fails at once."""
        self._fail_all()
        await _end(self._transport, self._frames)

    def _take(self, reply: TextReply) -> None:
        if isinstance(reply, TokenizerReady):
            return
        future = self._waiting.get(reply.number)
        if future is not None and not future.done():
            future.set_result(reply)

    def _fail_all(self) -> None:
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(ProcessLostError("the process ended"))


class _Frames(asyncio.SubprocessProtocol):
    """Cuts what the process writes into replies; the first one goes to `first`."""

    def __init__(self, first: "asyncio.Future[TextReply | None]") -> None:
        self._first = first
        self._transport: asyncio.SubprocessTransport | None = None
        self._pending = bytearray()
        self._unsent: list[bytes] = []
        self._full = self._flushing = False
        self._exited = asyncio.Event()
        self._lost = asyncio.Event()
        self.ended = False
        self.on_reply: Callable[[TextReply], None] = lambda _reply: None
        self.on_end: Callable[[], None] = lambda: None

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """Take what came, whole replies only."""
        if fd != 1:
            return
        pending = self._pending
        pending += data
        at = 0
        while len(pending) >= at + HEADER_BYTES:
            start = at + HEADER_BYTES
            end = start + int.from_bytes(pending[at:start], "big")
            if len(pending) < end:
                break
            self._reply(decode_text_reply(pending[start:end]))
            at = end
        del pending[:at]

    def pipe_connection_lost(self, fd: int, _exc: Exception | None) -> None:
        """No reply can come any more."""
        if fd == 1:
            self._end()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport, to send and to release it at the end."""
        # uvloop's transports are no subclass.
        self._transport = cast(asyncio.SubprocessTransport, transport)

    def process_exited(self) -> None:
        """The child was waited for; what it wrote last may still come."""
        self._exited.set()

    def connection_lost(self, _exc: Exception | None) -> None:
        """The child and its pipes are gone."""
        if self._transport is not None:
            self._transport.close()
        self._lost.set()

    def pause_writing(self) -> None:
        """The pipe is full."""
        self._full = True

    def resume_writing(self) -> None:
        """The pipe has room."""
        self._full = False
        self._flush()

    def send(self, data: bytes) -> None:
        """Send bytes soon, and once there is room; what is sent to a lost process is lost."""
        self._unsent.append(data)
        if not self._flushing:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        if self._full or not self._unsent:
            return
        unsent, self._unsent = self._unsent, []
        assert self._transport is not None  # noqa: S101 - it was made before anybody could send
        # uvloop's pipes have the methods of asyncio's and none of its base classes.
        pipe = cast("asyncio.WriteTransport | None", self._transport.get_pipe_transport(0))
        if self.ended or pipe is None or pipe.is_closing():
            self.on_end()
            return
        pipe.write(unsent[0] if len(unsent) == 1 else b"".join(unsent))

    async def wait_exit(self) -> None:
        """Return once the child was waited for."""
        await self._exited.wait()

    async def wait_lost(self) -> None:
        """Return once its pipes are closed too."""
        await self._lost.wait()

    def _reply(self, reply: TextReply) -> None:
        if not self._first.done():
            self._first.set_result(reply)
        else:
            self.on_reply(reply)

    def _end(self) -> None:
        if not self.ended:
            self.ended = True
            if not self._first.done():
                self._first.set_result(None)
            self.on_end()


async def _end(transport: asyncio.SubprocessTransport, frames: _Frames) -> None:
    """Close the input, which ends the process; kill it when it does not go."""
    frames.ended = True
    pipe = transport.get_pipe_transport(0)
    if pipe is not None:
        pipe.close()
    try:
        async with asyncio.timeout(_EXIT_SECONDS):
            await frames.wait_exit()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            transport.kill()
        await frames.wait_exit()
    finally:
        transport.close()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_EXIT_SECONDS):
            await frames.wait_lost()
