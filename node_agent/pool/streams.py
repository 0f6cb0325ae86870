"""The rows in flight on one engine, and the streams their readers hold.

Owns the promise that every request ends with exactly one Finished or Failed. Lives on the
event loop; the pool calls it.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable

from manifests.errors import Code, Retryable
from node_agent.engine.messages import Event, Failed, Finished, PrefillProgress, Tokens
from node_agent.pool.base import RowView

RowEvent = PrefillProgress | Tokens | Finished | Failed


class RowStream:
    """The events of one row, for one reader."""

    def __init__(
        self,
        request_id: str,
        cancel: Callable[[str], None],
        began_at: float = 0.0,
        prompt_tokens: int = 0,
    ) -> None:
        self.request_id = request_id
        self.left_tokens = prompt_tokens
        self.started = False
        self._began_at, self._fed, self._speaks = began_at, False, False
        self._cancel = cancel
        self._events: deque[RowEvent] = deque()
        self._arrived = asyncio.Event()
        self._ended = False

    @property
    def ended(self) -> bool:
        """Whether the last event has arrived."""
        return self._ended

    @property
    def view(self) -> RowView:
        """The row as it is now."""
        return RowView(self.request_id, self._began_at, not self._speaks, self._fed)

    def put(self, event: RowEvent) -> None:
        """Add an event; what comes after the end is dropped."""
        if self._ended:
            return
        self.started = True
        self._fed = self._fed or isinstance(event, PrefillProgress)
        self._speaks = self._speaks or isinstance(event, Tokens)
        if isinstance(event, PrefillProgress):
            self.left_tokens = max(0, event.total_tokens - event.done_tokens)
        elif isinstance(event, Tokens):
            self.left_tokens = 0
        self._ended = isinstance(event, Finished | Failed)
        self._events.append(event)
        self._arrived.set()

    def cancel(self) -> None:
        """Ask the engine to stop the row; harmless after its end."""
        if not self._ended:
            self._cancel(self.request_id)

    async def __aiter__(self) -> AsyncIterator[Event]:
        """Yield PrefillProgress, Tokens, then one Finished or Failed."""
        while True:
            while self._events:
                event = self._events.popleft()
                yield event
                if isinstance(event, Finished | Failed):
                    return
            self._arrived.clear()
            await self._arrived.wait()


class StreamTable:
    """The rows in flight on one engine, by request id."""

    def __init__(self) -> None:
        self._streams: dict[str, RowStream] = {}
        self._running = 0

    def __len__(self) -> int:
        return len(self._streams)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._streams

    @property
    def running(self) -> int:
        """How many rows the engine has begun."""
        return self._running

    @property
    def waiting(self) -> int:
        """How many it has not begun."""
        return len(self._streams) - self._running

    @property
    def rows(self) -> tuple[RowView, ...]:
        """Every row in flight, in the order they were sent."""
        return tuple(stream.view for stream in self._streams.values())

    @property
    def prompt_tokens_left(self) -> int:
        """Prompt tokens that are not fed yet, as far as is known: cached ones count until then."""
        return sum(stream.left_tokens for stream in self._streams.values())

    def add(self, stream: RowStream) -> None:
        """Expect events for a row."""
        self._streams[stream.request_id] = stream

    def deliver(self, event: RowEvent) -> bool:
        """Hand an event to its row; return whether the counts changed."""
        stream = self._streams.get(event.request_id)
        if stream is None:
            return False
        ends = isinstance(event, Finished | Failed)
        begins = not stream.started and not ends
        # A row that ends without having begun never counted as running.
        self._running += int(begins) - int(ends and stream.started)
        if ends:
            del self._streams[event.request_id]
        stream.put(event)
        return begins or ends

    def fail_all(self, code: Code, message: str) -> None:
        """End every row at once; another copy may serve it."""
        streams, self._streams, self._running = self._streams, {}, 0
        for stream in streams.values():
            stream.put(failed(stream.request_id, code, message))


def failed(
    request_id: str, code: Code, message: str, retryable: Retryable = Retryable.ELSEWHERE
) -> Failed:
    """Return the end of a row that gets no answer."""
    return Failed(
        request_id=request_id, code=code.value, message=message, retryable=retryable.value
    )
