"""Giving freed heap memory back to the system, where the allocator would keep it.

glibc gives back only what is free at the top of its heap. Blocks that are kept in RAM lie between
those that were dropped, so without this an engine that gave up its hot tier went on holding it: of
135 MiB given up, 52 came back by themselves. Elsewhere the allocator does it alone.

What was just freed is what the next request takes, and a page that was given back costs a fault
on its way in: building a cache of 62 MB took 61 to 76 ms when the one before it had been given
back at once, and 25 when it was still there. So it goes back after a rest, and at once when asked.
Source: SmolLM2-135M, blocks of 256 tokens, mlx 0.32.4, Linux CPU, glibc 2.36, 2026-11-29.
"""

import ctypes
import sys
import time
from collections.abc import Callable

# Shorter than the agent takes to believe what an engine holds at rest (memory/reading.py: 0.65 s).
REST_SECONDS = 0.5


class Heap:
    """The freed memory of a process; belongs to the thread that frees most of it."""

    def __init__(
        self, trim: Callable[[], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`trim` gives back what is free."""
        self._trim, self._clock = trim, clock
        self._used_seconds: float | None = None

    def note_use(self) -> None:
        """Note that there may be something to give back, and that it may be wanted again soon."""
        self._used_seconds = self._clock()

    def rest(self) -> None:
        """Give back what nobody has used for a while."""
        if self._used_seconds is not None and self._clock() - self._used_seconds >= REST_SECONDS:
            self.give_back()

    def give_back(self) -> None:
        """Give back what is free now."""
        self._used_seconds = None
        self._trim()


def find_trim() -> Callable[[], None]:
    """Return what gives freed memory back; it does nothing where there is nothing to do."""
    if sys.platform != "linux":
        return _do_nothing
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return _do_nothing  # another C library
    trim.argtypes, trim.restype = [ctypes.c_size_t], ctypes.c_int

    def give_back() -> None:
        trim(0)

    return give_back


def _do_nothing() -> None:
    return
