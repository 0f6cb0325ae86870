"""The threads that read blocks from the disk while the engine's thread decodes.

Owns the threads. Reading and proving a block hold no lock that the engine's thread needs: both
leave the interpreter to others.
"""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol, TypeVar

from node_agent.kvcache.daemon_threads import DaemonThreads

# What one core reads and proves is less than an SSD gives; more threads take cores from the model.
READER_THREADS = 2
# So long may a reader take over the block it is at when the engine ends; a disk may hang.
CLOSE_SECONDS = 5.0

Result = TypeVar("Result")


class Readers(Protocol):
    """Who reads."""

    @property
    def closing(self) -> bool:
        """Whether to give up between two blocks."""
        ...

    def submit(self, job: Callable[[], Result]) -> Future[Result]:
        """Have a job done."""
        ...


class ReaderThreads:
    """Readers beside the engine's thread."""

    def __init__(self, threads: int = READER_THREADS) -> None:
        self._threads = DaemonThreads(threads, "kvcache-reader")
        self._closing = False

    @property
    def closing(self) -> bool:
        """Whether to give up between two blocks."""
        return self._closing

    def submit(self, job: Callable[[], Result]) -> Future[Result]:
        """Have a job done when its turn comes."""
        return self._threads.submit(job)

    def close(self, wait_seconds: float = CLOSE_SECONDS) -> None:
        """End the threads once each has read the block it is at, if it does in time."""
        self._closing = True
        self._threads.close(wait_seconds)


class InlineReader:
    """Reads at once, on the caller's thread."""

    closing = False

    def submit(self, job: Callable[[], Result]) -> Future[Result]:
        """Do a job now."""
        done: Future[Result] = Future()
        done.set_result(job())
        return done
