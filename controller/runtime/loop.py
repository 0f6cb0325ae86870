"""The loop every reconciler runs in.

Owns when a key is worked on: at once after a change, later when the reconciler asks, with
backoff after a fault, and all keys now and then. It must not know what is reconciled.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

import structlog

from controller.runtime.workqueue import WorkQueue
from manifests.wire.status import ApiError

_LOG = structlog.get_logger(__name__)
_CONFLICTS_AT_ONCE = 3


@dataclass(frozen=True, slots=True)
class Result:
    """What one pass left open. `requeue_after_seconds` None means: when something changes."""

    requeue_after_seconds: float | None = None


Reconcile = Callable[[str], Awaitable[Result]]
OnPass = Callable[[str, str, float], None]


class Controller:
    """One reconciler, its queue and its one worker.

    One worker, because two passes of one reconciler would decide from the same free bytes.
    """

    def __init__(
        self,
        name: str,
        reconcile: Reconcile,
        *,
        keys: Callable[[], Iterable[str]] = tuple,
        resync_seconds: float = 300.0,
        queue: WorkQueue | None = None,
    ) -> None:
        """`keys` lists what a periodic resync enqueues."""
        self.name = name
        self.queue = WorkQueue() if queue is None else queue
        self._reconcile, self._keys = reconcile, keys
        self._resync_seconds = resync_seconds
        self.passes = 0
        self.faults = 0
        self.last_pass_seconds = 0.0
        self._on_pass: OnPass | None = None

    def on_pass(self, callback: OnPass) -> None:
        """Tell of every pass: this controller's name, `ok` or `fault`, and its seconds."""
        self._on_pass = callback

    def enqueue(self, key: str) -> None:
        """Work on a key soon."""
        self.queue.add(key)

    def enqueue_all(self) -> None:
        """Work on every key soon."""
        for key in self._keys():
            self.queue.add(key)

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._resync(), name=f"{self.name}-resync")
            group.create_task(self._work(), name=f"{self.name}-work")

    async def _resync(self) -> None:
        while True:
            self.enqueue_all()
            await asyncio.sleep(self._resync_seconds)

    async def _work(self) -> None:
        while True:
            key = await self.queue.get()
            try:
                await self.step(key)
            finally:
                self.queue.done(key)

    async def step(self, key: str) -> None:
        """Work on one key once, and queue it again as the outcome demands."""
        started, faults = time.monotonic(), self.faults
        try:
            result = await self._pass(key)
        except (ApiError, OSError) as fault:
            self._failed(key, fault)
        except Exception as fault:  # noqa: BLE001 - task root: one bad object must not end the loop
            self._failed(key, fault, trace=True)
        else:
            self.queue.forget(key)
            if result.requeue_after_seconds is not None:
                self.queue.add_after(key, result.requeue_after_seconds)
        self.passes += 1
        self.last_pass_seconds = time.monotonic() - started
        if self._on_pass is not None:
            outcome = "ok" if self.faults == faults else "fault"
            self._on_pass(self.name, outcome, self.last_pass_seconds)

    async def _pass(self, key: str) -> Result:
        """Reconcile; someone else's write in between is no fault, so look again at once."""
        for _ in range(_CONFLICTS_AT_ONCE):
            try:
                return await self._reconcile(key)
            except ApiError as fault:
                if fault.code != 409:
                    raise
        return await self._reconcile(key)

    def _failed(self, key: str, fault: Exception, *, trace: bool = False) -> None:
        self.faults += 1
        wait = self.queue.retry(key)
        _LOG.warning(
            "reconcile failed",
            controller=self.name,
            key=key,
            error=f"{type(fault).__name__}: {fault}",
            retry_seconds=round(wait, 2),
            exc_info=trace,
        )
