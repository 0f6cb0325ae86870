"""Notices a disk that neither answers nor fails.

Owns what is under way at the disk and since when. A disk that hangs raises nothing: a read simply
does not come back. So whoever waits for a block looks here, and the tier's state is off as long as
anything hangs and a little longer. Called by the link, which notes every use of the disk; from any
thread.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

# A read that has moved nothing for so long is waited for no longer.
READ_SECONDS = 3.0
# Writing, flushing and upkeep keep no row waiting; a slow drive may be busy for a while.
UPKEEP_SECONDS = 30.0
# Opening may mean to read the header of every block.
OPEN_SECONDS = 120.0
# So long everything must have answered before the disk is trusted again.
CALM_SECONDS = 5.0


@dataclass(slots=True)
class _Use:
    moved_seconds: float
    limit_seconds: float


def is_hanging(stuck: bool, answered_seconds: float | None, now: float) -> bool:
    """Return whether a disk is to be left alone. Pure.

    `answered_seconds` is when something came back last that had been stuck: a disk that answers
    now and then only is not tried at each answer.
    """
    return stuck or (answered_seconds is not None and now - answered_seconds < CALM_SECONDS)


class DiskWatch:
    """What is under way at one disk."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._uses: dict[int, list[_Use]] = {}
        self._answered_seconds: float | None = None

    @contextmanager
    def using(self, limit_seconds: float) -> Iterator[None]:
        """Note a use of the disk by this thread, which hangs when nothing moves for so long."""
        use, thread = _Use(self._clock(), limit_seconds), threading.get_ident()
        with self._lock:
            self._uses.setdefault(thread, []).append(use)
        try:
            yield
        finally:
            with self._lock:
                self._moved(use)
                self._uses[thread].remove(use)
                if not self._uses[thread]:
                    del self._uses[thread]

    def progress(self) -> None:
        """Note that the disk did something for this thread."""
        with self._lock:
            for use in self._uses.get(threading.get_ident(), ()):
                self._moved(use)

    @property
    def hanging(self) -> bool:
        """Whether the disk is to be left alone."""
        now = self._clock()
        with self._lock:
            uses = [use for of_thread in self._uses.values() for use in of_thread]
            stuck = any(now - use.moved_seconds >= use.limit_seconds for use in uses)
            return is_hanging(stuck, self._answered_seconds, now)

    def _moved(self, use: _Use) -> None:
        now = self._clock()
        if now - use.moved_seconds >= use.limit_seconds:
            self._answered_seconds = now
        use.moved_seconds = now
