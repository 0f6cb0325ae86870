"""A few threads for jobs that may never come back, because they wait for a disk.

Owns the threads. They are daemons: one that hangs keeps no process from ending, and one that has
had nothing to do for a while ends. Called by the readers and by the lookups.
"""

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

_IDLE_SECONDS = 5.0

Result = TypeVar("Result")


class DaemonThreads:
    """So many threads at most, each doing one job at a time, in the order of arrival."""

    def __init__(self, threads: int, name: str) -> None:
        self._limit, self._name = threads, name
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._alive: set[threading.Thread] = set()

    def submit(self, job: Callable[[], Result]) -> "Future[Result]":
        """Have a job done when its turn comes; it may be cancelled until then."""
        future: Future[Result] = Future()
        with self._lock:
            self._jobs.put(lambda: _carry_out(job, future))
            if len(self._alive) < self._limit:
                thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._alive.add(thread)
                thread.start()
        return future

    def close(self, wait_seconds: float) -> None:
        """End the threads, waiting so long in all for the jobs they are at; no job may follow."""
        with self._lock:
            alive = tuple(self._alive)
        for _ in alive:
            self._jobs.put(None)
        until_seconds = time.monotonic() + wait_seconds
        for thread in alive:
            thread.join(max(0.0, until_seconds - time.monotonic()))

    def _run(self) -> None:
        while True:
            try:
                work = self._jobs.get(timeout=_IDLE_SECONDS)
            except queue.Empty:
                with self._lock:
                    if not self._jobs.empty():
                        continue
                    self._alive.discard(threading.current_thread())
                    return
            if work is None:
                return
            work()
            # What it holds must not stay as long as the thread waits for the next.
            del work


def _carry_out(job: Callable[[], Result], future: "Future[Result]") -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = job()
    except BaseException as fault:  # noqa: BLE001 - the thread's root: it is the asker's fault to see
        future.set_exception(fault)
    else:
        future.set_result(result)
