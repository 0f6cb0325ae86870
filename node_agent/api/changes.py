"""Wakes every open stream when something on the node changed; holds no state of its own."""

import asyncio


class Changes:
    """A bell: many may wait, anyone on the loop may ring."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.closed = False

    def ring(self) -> None:
        """Wake all who wait now."""
        event, self._event = self._event, asyncio.Event()
        event.set()

    def close(self) -> None:
        """Tell streams to end, so that the server can stop."""
        self.closed = True
        self.ring()

    def next(self) -> asyncio.Event:
        """Return the event of the next ring; take it before reading what you will send."""
        return self._event


async def rung(event: asyncio.Event, timeout_seconds: float) -> bool:
    """Wait for the ring, for so long at most; tell whether it came."""
    try:
        async with asyncio.timeout(timeout_seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True
