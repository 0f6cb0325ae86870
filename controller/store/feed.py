"""Watches over a table: wakes readers after each commit; every reader keeps its own place.

There are no queues: a slow reader costs nothing, and one that falls out of the kept history
is told so. Belongs to one event loop. Used by both backends.
"""

import asyncio
from collections.abc import AsyncIterator

from controller.store.base import Change
from controller.store.table import Table, to_change

_BATCH = 64


class Feed:
    """Tells readers of one table that it has moved on."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._moved = asyncio.Event()
        self._closed = False

    def wake(self) -> None:
        """Let every reader look at the table again."""
        self._moved.set()
        self._moved = asyncio.Event()

    def close(self) -> None:
        """End every watch."""
        self._closed = True
        self.wake()

    async def watch(self, prefix: str, after_revision: int) -> AsyncIterator[Change]:
        """Yield every change under `prefix` after a revision until the feed closes.

        Raises: CompactedError, FutureRevisionError.
        """
        place = after_revision
        while not self._closed:
            moved = self._moved
            steps = self._table.steps_after(place, _BATCH)
            for step in steps:
                place = step.revision
                if step.key.startswith(prefix):
                    yield to_change(step)
            if not steps:
                await moved.wait()
