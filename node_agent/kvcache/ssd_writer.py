"""Writes blocks to the disk behind the engine's back.

Owns one thread. The engine's thread submits and never waits long: back-pressure is a short wait,
then the block is dropped and counted. The thread also opens the tier, looks after it, and brings
it under a smaller budget.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import structlog

from node_agent.kvcache.block import Block
from node_agent.kvcache.block_queue import BlockQueue
from node_agent.kvcache.ssd_budget import SsdBudget
from node_agent.kvcache.ssd_room import PutOutcome
from node_agent.kvcache.ssd_store import SsdStore

_LOG = structlog.get_logger(__name__)


class SubmitOutcome(StrEnum):
    """What became of a block handed to the writer."""

    ACCEPTED = "accepted"
    ALREADY = "already"
    DROPPED = "dropped"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class WriterSettings:
    """`queue_bytes` are RAM that the queue may hold; `wait_seconds` bounds one submit.

    `probe_seconds` is the pace at which the tier is looked after, `survey_seconds` that of listing
    the directory.
    """

    queue_bytes: int = 256 << 20
    wait_seconds: float = 0.02
    probe_seconds: float = 1.0
    survey_seconds: float = 3600.0


class SsdWriter:
    """The writer's thread. Started by `start`, ended by `close`."""

    def __init__(self, store: SsdStore, settings: WriterSettings) -> None:
        self._store = store
        self._settings = settings
        self._stats = store.link.stats
        self._queue = BlockQueue(settings.queue_bytes)
        self._closing_at: float | None = None
        self._next_probe = 0.0
        self._next_survey = time.monotonic() + settings.survey_seconds
        self._thread = threading.Thread(target=self._run, name="kvcache-writer", daemon=True)

    def start(self) -> None:
        """Begin to write; the tier is opened by the thread, so a slow disk delays nobody."""
        self._thread.start()

    @property
    def queued_bytes(self) -> int:
        """Return the bytes that wait to be written."""
        return self._queue.queued_bytes

    def submit(self, block: Block) -> SubmitOutcome:
        """Hand over a block; its tensors must not change from now on."""
        digest, mask = block.header.digest, block.header.snapshot_mask
        if not self._store.link.may_write() or self._store.link.watch.hanging:
            return SubmitOutcome.OFF
        if self._queue.holds(digest, mask) or self._store.contains(digest, mask):
            self._stats.add(skips=1)
            return SubmitOutcome.ALREADY
        if not self._queue.push(block, self._settings.wait_seconds):
            self._stats.add(drops=1)
            return SubmitOutcome.DROPPED
        self._stats.add(saves=1)
        return SubmitOutcome.ACCEPTED

    def touch(self, digests: Sequence[bytes]) -> None:
        """Note, a little later, a use of blocks that were served from RAM."""
        self._queue.add_job(lambda: self._store.touch(digests))

    def add_job(self, job: Callable[[], None]) -> None:
        """Run a short piece of work on the writer's thread, before the next block."""
        self._queue.add_job(job)

    def resize(self, budget: SsdBudget) -> None:
        """Set the budget and evict down to it in bounded steps, before any further save."""
        self._store.resize(budget)
        self._queue.add_job(self._trim)

    def wipe(self, fingerprint: str | None = None) -> threading.Event:
        """Delete one model's blocks, or all, queued ones too; the event tells when it is done."""
        done = threading.Event()

        def wipe() -> None:
            self._queue.drop(fingerprint)
            while self._store.wipe(fingerprint):
                pass
            done.set()

        self._queue.add_job(wipe)
        return done

    def flush(self, timeout_seconds: float) -> bool:
        """Wait until all that was handed over is done; False when the time was too short."""
        return self._queue.wait_idle(timeout_seconds)

    def close(self, timeout_seconds: float) -> None:
        """Write what is queued for so long at most, drop the rest, and leave the directory."""
        self._closing_at = time.monotonic() + timeout_seconds
        self._queue.shut()
        if self._thread.is_alive():
            self._thread.join(timeout_seconds + 1.0)

    def _run(self) -> None:
        while not self._queue.finished:
            if self._closing_at is not None and time.monotonic() >= self._closing_at:
                self._stats.add(drops=self._queue.drop())
            self._look_after()
            work = self._queue.take(self._settings.probe_seconds)
            try:
                if isinstance(work, Block):
                    self._save(work)
                elif work is not None:
                    work()
            except Exception:  # noqa: BLE001 - the thread's root: one block is lost, not the tier
                self._stats.add(faults=1)
                _LOG.exception("a block could not be saved")
            finally:
                self._queue.done()
        self._store.link.close()

    def _save(self, block: Block) -> None:
        outcome = self._store.put(block)
        if outcome is PutOutcome.ALREADY:
            self._stats.add(skips=1)
        elif outcome is not PutOutcome.STORED:
            self._stats.add(drops=1)

    def _look_after(self) -> None:
        """Open the tier, see that it is there, and keep it under its budget."""
        now = time.monotonic()
        if now < self._next_probe:
            return
        self._next_probe = now + self._settings.probe_seconds
        was_ready = self._store.link.state.ready
        ready = self._store.link.probe().ready
        if ready and not was_ready:
            self._trim()
        elif ready:
            self._store.trim()
        if ready and now >= self._next_survey:
            self._next_survey = now + self._settings.survey_seconds
            self._store.survey()

    def _trim(self) -> None:
        while self._store.trim():
            pass
