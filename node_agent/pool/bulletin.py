"""Telling the rest of the agent that something in the pool changed, or was measured.

Owns the callbacks and those who wait for the next change. Changes are told once for many in one
turn of the loop; what an engine measured or asks for is told at once. Called by the pool.
"""

import asyncio
from collections.abc import Callable

from node_agent.engine.messages import Ask, ChunkMeasured


class Bulletin:
    """News of the pool, on its loop."""

    def __init__(self) -> None:
        self._on_change: list[Callable[[], None]] = []
        self._on_measured: list[Callable[[str, ChunkMeasured | Ask], None]] = []
        self._pending = False
        self._next = asyncio.Event()

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call back after any change; those who came first are told first."""
        self._on_change.append(callback)

    def on_measured(self, callback: Callable[[str, ChunkMeasured | Ask], None]) -> None:
        """Call back with an engine's name and what it measured or asks for."""
        self._on_measured.append(callback)

    def note_change(self) -> None:
        """Tell everybody in the next turn of the loop."""
        if not self._pending:
            self._pending = True
            asyncio.get_running_loop().call_soon(self._tell)

    def note_measured(self, engine: str, event: ChunkMeasured | Ask) -> None:
        """Tell at once."""
        for callback in self._on_measured:
            callback(engine, event)

    def ring(self) -> None:
        """Wake all who wait now; a ring with nobody waiting is not kept."""
        passed, self._next = self._next, asyncio.Event()
        passed.set()

    async def wait(self) -> None:
        """Wait for the next ring; none that comes from now on is missed."""
        await self._next.wait()

    def _tell(self) -> None:
        self._pending = False
        for callback in self._on_change:
            callback()
        self.ring()
