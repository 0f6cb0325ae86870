"""The agent's end of the socket to one engine.

Owns framing and typing; it hands events to its owner and knows nothing of requests.
"""

import asyncio
from collections.abc import Callable
from typing import cast

import msgspec

from node_agent.engine.framing import FrameDecoder, FrameError, frame
from node_agent.engine.messages import Command, Event, decode_event, encode


class EngineLink(asyncio.Protocol):
    """Typed messages over one socket; `on_lost` is called once, with the reason."""

    def __init__(self, on_event: Callable[[Event], None], on_lost: Callable[[str], None]) -> None:
        self._on_event, self._on_lost = on_event, on_lost
        self._decoder = FrameDecoder()
        self._transport: asyncio.Transport | None = None
        self._fault = ""
        # What came before the owner listened; pausing the transport would not hold it back, as
        # uvloop reads from a new connection whatever `connection_made` asked for.
        self._early: list[bytes] | None = []
        self.lost = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        # A cast, as uvloop's transports do not inherit from asyncio's.
        self._transport = cast(asyncio.Transport, transport)

    def listen(self) -> None:
        """Begin to hand on events, once the owner is ready to act on them.

        Until then they are kept: an answer to Hello would have no process to go to.
        """
        early, self._early = self._early, None
        for data in early or ():
            self.data_received(data)
        if early is not None and self.lost.is_set():
            self._tell_lost()

    def data_received(self, data: bytes) -> None:
        """Hand on every complete event; a broken protocol closes the link."""
        if self._early is not None:
            self._early.append(data)
            return
        try:
            for body in self._decoder.feed(data):
                self._on_event(decode_event(body))
        except (FrameError, msgspec.MsgspecError) as fault:
            self._fault = f"the engine broke the protocol: {fault}"
            self.close()

    def connection_lost(self, _exc: Exception | None) -> None:
        """Tell the owner, if it listens."""
        self._transport = None
        self.lost.set()
        if self._early is None:
            self._tell_lost()

    def send(self, command: Command) -> None:
        """Send a command; after the link is lost it is dropped, as its answer has been given.

        Raises: FrameError when the command is too large for a frame.
        """
        if self._transport is not None:
            self._transport.write(frame(encode(command)))

    def close(self) -> None:
        """Close the socket; the engine then ends at once."""
        if self._transport is not None:
            self._transport.close()

    def _tell_lost(self) -> None:
        self._on_lost(self._fault or "the engine closed its socket")
