"""The queue between what changed and who repairs it.

Owns the order and timing of keys: each key is handed out once at a time, however often it was
added; a key added while it is being worked on comes again afterwards. It must not know what a
key means. Called by `runtime.loop`.
"""

import asyncio
import heapq
import random
import time
from collections import deque
from collections.abc import Callable


class WorkQueue:
    """Keys waiting for work. All methods belong to one event loop. Units: seconds."""

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
        least_seconds: float = 0.1,
        most_seconds: float = 60.0,
    ) -> None:
        """Back a key off from `least_seconds` to `most_seconds`, doubling with each failure."""
        self._clock, self._jitter = clock, jitter
        self._least_seconds, self._most_seconds = least_seconds, most_seconds
        self._ready: deque[str] = deque()
        self._queued: set[str] = set()
        self._working: set[str] = set()
        self._due: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []
        self._failures: dict[str, int] = {}
        self._wake = asyncio.Event()

    def __len__(self) -> int:
        return len(self._queued) + len(self._due)

    def add(self, key: str) -> None:
        """Hand the key out as soon as possible."""
        self._due.pop(key, None)
        if key in self._queued:
            return
        self._queued.add(key)
        if key not in self._working:
            self._ready.append(key)
            self._wake.set()

    def add_after(self, key: str, seconds: float) -> None:
        """Hand the key out after a wait, or sooner if it is already due sooner."""
        if seconds <= 0:
            self.add(key)
            return
        due = self._clock() + seconds
        if key in self._queued or self._due.get(key, float("inf")) <= due:
            return
        self._due[key] = due
        heapq.heappush(self._heap, (due, key))
        self._wake.set()

    def retry(self, key: str) -> float:
        """Count a failure of the key and hand it out after its backoff; returns the wait."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        ceiling = min(self._most_seconds, self._least_seconds * 2.0 ** min(failures, 30))
        wait = ceiling * (0.5 + 0.5 * self._jitter())
        self.add_after(key, wait)
        return float(wait)

    def forget(self, key: str) -> None:
        """Clear the key's failures."""
        self._failures.pop(key, None)

    async def get(self) -> str:
        """Return the next key, waiting for one; the caller owes `done`."""
        while True:
            self._promote()
            if self._ready:
                key = self._ready.popleft()
                self._queued.discard(key)
                self._working.add(key)
                return key
            self._wake.clear()
            try:
                async with asyncio.timeout(self._wait_seconds()):
                    await self._wake.wait()
            except TimeoutError:
                continue

    def done(self, key: str) -> None:
        """Say that work on the key ended; it is handed out again if it was added meanwhile."""
        self._working.discard(key)
        if key in self._queued:
            self._ready.append(key)
            self._wake.set()

    def _promote(self) -> None:
        now = self._clock()
        while self._heap and self._heap[0][0] <= now:
            due, key = heapq.heappop(self._heap)
            if self._due.get(key) == due:
                self.add(key)

    def _wait_seconds(self) -> float | None:
        return max(0.0, self._heap[0][0] - self._clock()) if self._heap else None
