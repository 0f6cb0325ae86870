"""One connection to an agent: sends a request, waits for its answer, notices when none comes.

Owns the socket and the timer that watches it. The pool gives links out, one request at a time;
`upstream` says what a fault means.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import cast

from controller.gateway.sending.answer_reader import AnswerReader

_CHECK_SECONDS = 0.5
# A look that comes later than this shows that the process itself stood still.
_LATE_SECONDS = 1.0
# A larger body goes in pieces, so that the loop turns between them and the pipe sets the pace.
_PIECE_BYTES = 256 * 1024
# More than this of an answer waits in the kernel, not here.
_UNREAD_BYTES_MAX = 256 * 1024


class Fault(StrEnum):
    """How a request on a link can fail."""

    CLOSED = "closed"
    GARBLED = "garbled"
    SILENT = "silent"
    GONE = "gone"


class LinkError(Exception):
    """The answer will not come to its end. `heard` says whether any of it had come."""

    def __init__(self, fault: Fault, *, heard: bool) -> None:
        super().__init__(fault.value)
        self.fault, self.heard = fault, heard


@dataclass(frozen=True, slots=True)
class Patience:
    """When to give an answer up. Units: seconds.

    After `silence_seconds` without a byte; when `is_gone`, which is told for how long the answer
    has been silent; and before its head when `is_dead`.
    """

    silence_seconds: float
    is_dead: Callable[[], bool] = lambda: False
    is_gone: Callable[[float], bool] = lambda _silent_seconds: False


class _News:
    """What one task waits for: anything that happens on its link."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None

    async def wait(self) -> None:
        """Return after the next event."""
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def tell(self) -> None:
        """Wake who waits."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Link(asyncio.Protocol):
    """One connection; all methods belong to one event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.reader = AnswerReader()
        self.reused = self.closed = False
        self._transport: asyncio.Transport | None = None
        self._patience = Patience(0.0)
        self._timer: asyncio.TimerHandle | None = None
        self._heard_seconds = self._due_seconds = 0.0
        self._news = _News()
        self._fault: Fault | None = None
        self._busy = self._heard = self._full = self._held_up = False
        self._sent = True

    async def exchange(self, head: bytes, body: bytes, patience: Patience) -> None:
        """Send a request and return once the head of its answer is there. Raises: LinkError.

        An answer may come before all of a large body is sent: the rest is then not sent.
        """
        self._patience, self._busy, self._heard = patience, True, False
        self.reader.begin()
        self._heard_seconds = self._loop.time()
        self._look_after(min(_CHECK_SECONDS, patience.silence_seconds))
        if self._transport is None or self.closed:
            raise LinkError(Fault.CLOSED, heard=False)
        if len(body) <= _PIECE_BYTES:
            self._transport.write(head + body)
        else:
            await self._send_pieces(self._transport, head, body)
        while not self.reader.has_head:
            self._raise_if_failed()
            await self._news.wait()

    async def read(self) -> bytes:
        """Return what has come of the body, as soon as any has; empty at its end.

        Raises: LinkError, once all that came before was returned.
        """
        reader = self.reader
        while not (reader.waiting_bytes or reader.ended):
            self._raise_if_failed()
            await self._news.wait()
        if self._held_up and self._transport is not None:
            self._held_up, self._heard_seconds = False, self._loop.time()
            self._transport.resume_reading()
        return reader.take()

    def finish(self) -> bool:
        """End the request, wherever it is; return whether the link can take another.

        One that cannot is closed.
        """
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        reader = self.reader
        usable = reader.ended and reader.reusable and self._sent and not self.closed
        self._busy, self.reused = False, True
        if not usable or self._held_up:
            self.close()
        return not self.closed

    def close(self) -> None:
        """Close at once; what waits fails."""
        self.closed = True
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the way to send."""
        # uvloop's transports are no subclass.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Take what came."""
        if not self._busy:
            # Nobody asked for anything.
            self.close()
            return
        self._heard, self._heard_seconds = True, self._loop.time()
        self.reader.feed(data)
        if self.reader.waiting_bytes > _UNREAD_BYTES_MAX and not self._held_up:
            assert self._transport is not None  # noqa: S101 - it has brought the data
            self._held_up = True
            self._transport.pause_reading()
        self._news.tell()

    def connection_lost(self, _fault: Exception | None) -> None:
        """Nothing comes any more."""
        self.closed = True
        self.reader.end_input()
        self._news.tell()

    def pause_writing(self) -> None:
        """The socket takes no more."""
        self._full = True

    def resume_writing(self) -> None:
        """The socket takes more."""
        self._full = False
        self._news.tell()

    async def _send_pieces(self, transport: asyncio.Transport, head: bytes, body: bytes) -> None:
        view, self._sent = memoryview(body), False
        transport.write(head)
        for start in range(0, len(body), _PIECE_BYTES):
            while self._full and not self.reader.has_head:
                self._raise_if_failed()
                await self._news.wait()
            self._raise_if_failed()
            if self.reader.has_head:
                return
            self._heard_seconds = self._loop.time()
            transport.write(view[start : start + _PIECE_BYTES])
        self._sent = True

    def _raise_if_failed(self) -> None:
        fault = self._fault
        if fault is None and self.reader.fault:
            fault = Fault.CLOSED if self.closed else Fault.GARBLED
        if fault is None and self.closed and not self.reader.ended:
            fault = Fault.CLOSED
        if fault is not None:
            raise LinkError(fault, heard=self._heard)

    def _look_after(self, seconds: float) -> None:
        self._due_seconds = self._loop.time() + seconds
        self._timer = self._loop.call_later(seconds, self._check)

    def _check(self) -> None:
        """Give up an answer that is silent for too long, else look again soon."""
        patience, now = self._patience, self._loop.time()
        if self._held_up or now - self._due_seconds > _LATE_SECONDS:
            # It is we who do not listen, or did not run: what came meanwhile is still unread.
            self._heard_seconds = now
        silent_seconds = now - self._heard_seconds
        left_seconds = patience.silence_seconds - silent_seconds
        if left_seconds <= 0 or patience.is_gone(silent_seconds):
            self._fault = Fault.SILENT
        elif not self.reader.has_head and patience.is_dead():
            self._fault = Fault.GONE
        if self._fault is None:
            self._look_after(min(_CHECK_SECONDS, left_seconds))
            return
        # The body ends here and not by cancelling its reader, which may be writing to the client:
        # nobody could tell then what the client has.
        self.close()
        self._news.tell()
