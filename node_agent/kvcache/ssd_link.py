"""Keeps the disk tier's session open, and turns faults into a state.

Owns the session, the state and the pace of retries. Nothing that a disk does leaves `guarded` as
an exception: the tier goes off with a reason, one line is logged, and `probe` tries again. Called
by the store; `probe` by the writer's thread.
"""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import structlog

from node_agent.kvcache.ssd_budget import SsdBudget
from node_agent.kvcache.ssd_health import (
    TierFault,
    TierReason,
    TierState,
    fault_from_os,
    has_room_again,
    state_after_fault,
    state_hanging,
    state_proven,
    state_ready,
)
from node_agent.kvcache.ssd_session import Session, open_session
from node_agent.kvcache.ssd_watch import OPEN_SECONDS, UPKEEP_SECONDS, DiskWatch
from node_agent.kvcache.stats import StatsCounter

_LOG = structlog.get_logger(__name__)
_LOG_PAUSE_SECONDS = 60.0
# A full disk counts as well again only with some room to write.
_ROOM_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class SsdSettings:
    """Where the tier is.

    `memory_file` is a file elsewhere, in a directory that is always there; it remembers which
    directories were used, so that an unplugged drive's mount point is never filled instead.
    `durable` flushes each block to the drive before it counts as persisted.
    """

    directory: Path
    memory_file: Path | None = None
    durable: bool = False


class SsdLink:
    """The way to the shared directory; closed until the first `probe`."""

    def __init__(
        self,
        settings: SsdSettings,
        budget: SsdBudget,
        stats: StatsCounter,
        clock: Callable[[], float],
    ) -> None:
        """`clock` gives seconds since the epoch: ages in the index outlive the process."""
        self.settings = settings
        self.budget = budget
        self.stats = stats
        self.clock = clock
        self.watch = DiskWatch()
        self._lock = threading.Lock()
        self._session: Session | None = None
        self._state = TierState()
        self._last_logged: tuple[TierReason, float] | None = None

    @property
    def state(self) -> TierState:
        """The tier's condition."""
        return state_hanging(self._state) if self.watch.hanging else self._state

    @contextmanager
    def guarded(
        self, limit_seconds: float = UPKEEP_SECONDS, size_bytes: int = 0
    ) -> Iterator[Session | None]:
        """Lend the session, None while the tier is off; a fault of the disk ends the body.

        The disk hangs when nothing moves for `limit_seconds`. `size_bytes` is what the body writes.
        """
        session = self._session
        try:
            with self.watch.using(limit_seconds):
                yield session
        except TierFault as fault:
            self._fail(session, fault, size_bytes)
        except OSError as error:
            place = str(self.settings.directory)
            self._fail(session, fault_from_os(error, place), size_bytes)

    def may_write(self) -> bool:
        """Return whether a save may be tried: all is well, or it is time to see if it is again."""
        if self._session is None:
            return False
        return self._state.writable or self.clock() >= self._state.retry_at_seconds

    def proven(self, written_bytes: int) -> None:
        """Note that a block was written: the disk is well for blocks of that size."""
        with self._lock:
            if self._session is not None:
                self._state = state_proven(self._state, written_bytes)

    def tell_hanging(self) -> None:
        """Log that somebody gave up waiting for the disk."""
        self._log(TierFault(TierReason.HANGING, str(self.settings.directory)), self.clock())

    def probe(self) -> TierState:
        """Open the directory if it is time to try; see that an open one is still there."""
        if self._session is None:
            if self.clock() >= self._state.retry_at_seconds:
                with self.watch.using(OPEN_SECONDS):
                    self._open()
            return self._state
        with self.guarded() as session:
            if session is not None:
                with session.directory.blocks():
                    self._see_room(session)
        return self._state

    def close(self) -> None:
        """Leave the directory in good order, so that the next start lists nothing."""
        with self.guarded() as session:
            if session is not None:
                session.close()
        with self._lock:
            self._session = None
            self._state = TierState(TierReason.CLOSED, retry_at_seconds=float("inf"))

    def _open(self) -> None:
        suspect = self._state.reason is TierReason.INDEX
        try:
            session = open_session(self.settings.directory, self.settings.memory_file, suspect)
        except TierFault as fault:
            self._fail(None, fault)
            return
        except OSError as error:
            self._fail(None, fault_from_os(error, str(self.settings.directory)))
            return
        with self._lock:
            self._session = session
            recovered = self._state.failures > 0
            self._state = state_ready(session.directory.private)
        found = asdict(session.found) if session.found is not None else {}
        if any(found.values()):
            _LOG.info("cache index put right", **found)
        if recovered or not self._state.private:
            _LOG.info("disk cache ready", note=self._state.message)

    def _see_room(self, session: Session) -> None:
        """Call a full disk well again when there is room; it must still prove it by a save."""
        full = self._state.reason is TierReason.FULL and not self._state.writable
        if not full or self.clock() < self._state.retry_at_seconds:
            return
        room = min(_ROOM_BYTES, self.budget.size_bytes)
        floor = self.budget.leave_free_bytes + room
        if has_room_again(self._state, session.directory.free_bytes(), floor):
            with self._lock:
                ready = state_ready(self._state.private)
                self._state = replace(ready, failures=self._state.failures)

    def _fail(self, session: Session | None, fault: TierFault, size_bytes: int = 0) -> None:
        free_bytes = 0
        if fault.reason is TierReason.FULL and session is not None:
            with suppress(OSError):
                free_bytes = session.directory.free_bytes()
        with self._lock:
            if session is not self._session:
                return  # a fault of a session that was replaced meanwhile
            now = self.clock()
            fault = _sharpened(fault, self.settings.directory)
            self._state = state_after_fault(self._state, fault, now, (size_bytes, free_bytes))
            if fault.reason is TierReason.BUSY:
                return
            lost = session is not None and fault.reason is not TierReason.FULL
            if lost:
                self._session = None
        self.stats.add(faults=1)
        if lost and session is not None:
            with suppress(OSError):
                session.abandon()
        self._log(fault, now)

    def _log(self, fault: TierFault, now: float) -> None:
        last = self._last_logged
        if last is None or last[0] is not fault.reason or now - last[1] >= _LOG_PAUSE_SECONDS:
            self._last_logged = (fault.reason, now)
            _LOG.warning("disk cache off", reason=str(fault.reason), problem=fault.message)


def _sharpened(fault: TierFault, path: Path) -> TierFault:
    """Say why there was a disk error, where the file system tells; SQLite does not."""
    if fault.reason not in {TierReason.IO_ERROR, TierReason.INDEX}:
        return fault
    try:
        read_only = os.statvfs(path).f_flag & os.ST_RDONLY
    except FileNotFoundError:
        return TierFault(TierReason.ABSENT, f"{path} is gone; {fault.message}")
    except OSError:
        return fault
    if read_only and fault.reason is TierReason.IO_ERROR:
        return TierFault(TierReason.READ_ONLY, f"{path} is read-only; {fault.message}")
    return fault
