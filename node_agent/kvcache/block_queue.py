"""Blocks on their way to the disk, bounded by bytes.

Owns the only state that the engine's thread and the writer's thread share. Jobs (short pieces of
upkeep) go before blocks, blocks keep their order: a block follows its parent.
"""

import threading
from collections import deque
from collections.abc import Callable

from node_agent.kvcache.block import Block

Job = Callable[[], None]


class BlockQueue:
    """A queue for one taker."""

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity_bytes = capacity_bytes
        self._changed = threading.Condition()
        self._blocks: deque[Block] = deque()
        self._jobs: deque[Job] = deque()
        self._newest: dict[bytes, Block] = {}
        self._queued_bytes = 0
        self._taken: Block | Job | None = None
        self._shut = False

    @property
    def queued_bytes(self) -> int:
        """Return the bytes of RAM held here, the block being written included."""
        return self._queued_bytes

    def holds(self, digest: bytes, snapshot_mask: int = 0) -> bool:
        """Return whether a block is queued or being written, with all these snapshots."""
        with self._changed:
            block = self._newest.get(digest)
            return block is not None and block.header.snapshot_mask & snapshot_mask == snapshot_mask

    def push(self, block: Block, wait_seconds: float) -> bool:
        """Queue a block, waiting a little for room; False when there is none or it is shut.

        A block larger than the whole queue may enter an empty one.
        """
        size_bytes = block.payload_bytes

        def may_enter() -> bool:
            fits = self._queued_bytes + size_bytes <= self._capacity_bytes
            return self._shut or fits or not self._queued_bytes

        with self._changed:
            if not self._changed.wait_for(may_enter, wait_seconds) or self._shut:
                return False
            self._blocks.append(block)
            self._newest[block.header.digest] = block
            self._queued_bytes += size_bytes
            self._changed.notify_all()
        return True

    def add_job(self, job: Job) -> None:
        """Queue a piece of upkeep; it goes first."""
        with self._changed:
            self._jobs.append(job)
            self._changed.notify_all()

    def take(self, timeout_seconds: float) -> Block | Job | None:
        """Return what is to be done next, None when nothing came; `done` must follow."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._jobs or self._blocks or self._shut, timeout_seconds
            )
            self._taken = (
                self._jobs.popleft()
                if self._jobs
                else self._blocks.popleft()
                if self._blocks
                else None
            )
            return self._taken

    def done(self) -> None:
        """Say that what was taken is finished, one way or the other."""
        with self._changed:
            if isinstance(self._taken, Block):
                self._forget(self._taken)
            self._taken = None
            self._changed.notify_all()

    def drop(self, fingerprint: str | None = None) -> int:
        """Throw away queued blocks of one model, or all; return how many."""
        with self._changed:
            dropped = [x for x in self._blocks if fingerprint in (None, x.header.fingerprint)]
            for block in dropped:
                self._blocks.remove(block)
                self._forget(block)
            self._changed.notify_all()
            return len(dropped)

    def wait_idle(self, timeout_seconds: float) -> bool:
        """Wait until nothing is queued or under way; False when the time was too short."""
        with self._changed:
            return self._changed.wait_for(
                lambda: not (self._blocks or self._jobs or self._taken is not None),
                timeout_seconds,
            )

    def shut(self) -> None:
        """Take nothing more in; what is queued stays to be taken."""
        with self._changed:
            self._shut = True
            self._changed.notify_all()

    @property
    def finished(self) -> bool:
        """Return whether it is shut and empty."""
        with self._changed:
            return self._shut and not self._blocks and not self._jobs

    def _forget(self, block: Block) -> None:
        if self._newest.get(block.header.digest) is block:
            del self._newest[block.header.digest]
        self._queued_bytes -= block.payload_bytes
