"""Asks the index without waiting long for it.

Owns one thread and the time a question may take. The engine's thread asks, between two steps of
running streams: whatever the disk or another process does to the index, it goes on after some tens
of milliseconds, 100 at the worst. A question that came too late is as good as a miss.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from node_agent.kvcache.daemon_threads import DaemonThreads
from node_agent.kvcache.ssd_health import TierFault, TierReason
from node_agent.kvcache.ssd_link import SsdLink
from node_agent.kvcache.ssd_session import Session
from node_agent.kvcache.ssd_watch import READ_SECONDS

# Locks of others are waited for no longer than LOOK_BUSY_SECONDS; this is for a disk that hangs,
# and felt once: while an answer is overdue nobody waits. A busy machine must not be taken for one.
LOOKUP_SECONDS = 0.1
# Until the thread runs at all: a busy machine's doing, not the disk's.
_START_SECONDS = 1.0

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Answered(Generic[Result]):
    """An answer that came in time."""

    value: Result


# There is no index now: an answer, and no late one.
_OFF: Answered[Any] = Answered(None)


class Lookups:
    """One question at a time."""

    def __init__(self, seconds: float = LOOKUP_SECONDS) -> None:
        self._seconds = seconds
        self._threads = DaemonThreads(1, "kvcache-lookup")
        self._free = threading.Lock()
        self._asked_seconds = 0.0

    def ask(self, question: Callable[[], Result]) -> Answered[Result] | None:
        """Return the answer, None when it takes too long.

        While an earlier question is overdue nothing is asked: the answer is None at once.
        """
        left_seconds = self._asked_seconds + self._seconds - time.monotonic()
        if not self._free.acquire(timeout=max(0.0, left_seconds)):
            return None
        self._asked_seconds = time.monotonic()
        started = threading.Event()
        answer = self._threads.submit(partial(self._answer, question, started))
        if not started.wait(_START_SECONDS) and answer.cancel():
            self._free.release()
            return None
        try:
            return Answered(answer.result(self._seconds))
        except TimeoutError:
            return None

    def _answer(self, question: Callable[[], Result], started: threading.Event) -> Result:
        self._asked_seconds = time.monotonic()
        started.set()
        try:
            return question()
        finally:
            self._free.release()


class IndexLooks:
    """Questions to the index behind a link."""

    def __init__(self, link: SsdLink, lookups: Lookups) -> None:
        self._link, self._lookups = link, lookups

    def look(self, question: Callable[[Session], Result], late: Result, off: Result) -> Result:
        """Return what the index says, `off` while there is none, `late` when it takes too long."""
        found: Answered[Result] | None = None
        if not self._link.watch.hanging:
            answer = self._lookups.ask(partial(self._ask, question))
            found = None if answer is None else answer.value
        if found is None:
            self._link.stats.add(late_lookups=1)
            return late
        return off if found is _OFF else found.value

    def find(self, question: Callable[[Session], tuple[Result, ...]]) -> tuple[Result, ...] | None:
        """Return what is there; None when the index is slow to answer and may yet.

        Nothing is there while there is no index, and while the disk hangs.
        """
        nothing: tuple[Result, ...] = ()
        found = self.look(question, None, nothing)
        return nothing if found is None and self._link.watch.hanging else found

    def _ask(self, question: Callable[[Session], Result]) -> Answered[Result] | None:
        with self._link.guarded(READ_SECONDS) as session:
            if session is None:
                return _OFF
            try:
                return Answered(question(session))
            except TierFault as fault:
                if fault.reason is TierReason.BUSY:
                    return None
                raise
        return _OFF
