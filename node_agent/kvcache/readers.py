"""The threads that read blocks from the disk while the engine's thread decodes.

Owns the threads. Reading and proving a block hold no lock that the engine's thread needs: both
leave the interpreter to others.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol, TypeVar

# SHA-256 of one core is slower than an SSD; more threads than this take cores from the model.
READER_THREADS = 2

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
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="kvcache-reader")
        self._closing = False

    @property
    def closing(self) -> bool:
        """Whether to give up between two blocks."""
        return self._closing

    def submit(self, job: Callable[[], Result]) -> Future[Result]:
        """Have a job done when its turn comes."""
        return self._pool.submit(job)

    def close(self) -> None:
        """End the threads once each has read the block it is at."""
        self._closing = True
        self._pool.shutdown(cancel_futures=True)


class InlineReader:
    """Reads at once, on the caller's thread."""

    closing = False

    def submit(self, job: Callable[[], Result]) -> Future[Result]:
        """Do a job now."""
        done: Future[Result] = Future()
        done.set_result(job())
        return done
