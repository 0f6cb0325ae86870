"""What an unload gave back: the footprint before, nothing after, and wired memory on macOS.

Owns the figures of the last unload of one engine. Whether memory stays stranded is judged by
the memory side, over a longer time. Units: bytes, seconds.
"""

from node_agent.pool.memory_side import MemorySide

# The kernel unwires the pages of a process a moment after its end.
WIRED_SETTLE_SECONDS = 2.0


class ReturnedMemory:
    """The account of one engine's last unload; None until it is known."""

    def __init__(self, engine: str, memory: MemorySide) -> None:
        self._engine, self._memory = engine, memory
        self._footprint_bytes = 0
        self._wired_before_bytes: int | None = None
        self._gone_at: float | None = None
        self._open = False
        self.freed_bytes: int | None = None
        self.unwired_bytes: int | None = None

    def begin(self, held_bytes: int) -> None:
        """Note what there is before the unload; `held_bytes` is what the engine said last."""
        measured = self._memory.footprint_bytes(self._engine)
        self._footprint_bytes = max(measured or 0, held_bytes)
        self._wired_before_bytes = self._memory.wired_bytes()
        self._gone_at, self._open = None, True
        self.freed_bytes = self.unwired_bytes = None

    def look(self, now: float) -> bool:
        """Take stock, given that the process is gone; return whether a figure is new.

        The system takes all memory of a process back at its end, so the footprint is what was
        freed. Wired memory is the machine's: others' growth meanwhile makes the figure smaller.
        """
        if not self._open:
            return False
        if self._gone_at is None:
            self._gone_at = now
            self.freed_bytes = self._footprint_bytes
            self._open = self._wired_before_bytes is not None
            return True
        if now - self._gone_at < WIRED_SETTLE_SECONDS:
            return False
        after = self._memory.wired_bytes()
        if after is not None and self._wired_before_bytes is not None:
            self.unwired_bytes = self._wired_before_bytes - after
        self._open = False
        return True
