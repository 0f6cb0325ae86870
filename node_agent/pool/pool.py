"""The engines of this machine: what the rest of the agent sees of them and asks of them.

Everything happens on the event loop it was made on, so a decision and its effect are never
apart. The sync, the memory side and serving call it through `base.Pool`.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from manifests.errors import Refusal
from node_agent.engine.messages import (
    Abort,
    Answer,
    Ask,
    CacheLimits,
    ChunkMeasured,
    Command,
    Limits,
    Reclaim,
)
from node_agent.pool.base import EngineView, EngineWant
from node_agent.pool.bulletin import Bulletin
from node_agent.pool.cache_side import CacheSide
from node_agent.pool.engine_log import log_file
from node_agent.pool.leasing import PoolLease, bring_back, take_lease
from node_agent.pool.lifecycle import GuardChanged, Reason
from node_agent.pool.memory_side import MemorySide
from node_agent.pool.roster import Roster
from node_agent.pool.run import SlotTools
from node_agent.pool.settings import PoolSettings
from node_agent.sources.base import SourceResolver

# Longer between two ticks means that the agent was stopped or starved, not the engines.
_BLIND_SECONDS = 2.0


class EnginePool:
    """The engines of this machine."""

    def __init__(
        self,
        settings: PoolSettings,
        resolver: SourceResolver,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        memory: MemorySide | None = None,
        cache: CacheSide | None = None,
    ) -> None:
        """Prepare; without a memory side every load is granted, without a cache side none."""
        self._settings, self._clock = settings, clock
        self._bulletin = Bulletin()
        self._roster = Roster(
            SlotTools(
                settings=settings,
                resolver=resolver,
                clock=clock,
                wall_clock=wall_clock,
                changed=self._bulletin.note_change,
                measured=self._bulletin.note_measured,
                memory=memory or MemorySide(),
                cache=cache or CacheSide(),
            )
        )
        self._bulletin.on_change(self._roster.converge)
        self._closing = False
        self._ticker: asyncio.Task[None] | None = None
        self._ticked_at = clock()

    def set_wanted(self, wanted: Mapping[str, EngineWant]) -> None:
        """Replace the wanted set; the pool converges on it. Ignored once closing."""
        if self._closing:
            return
        self._roster.want(wanted)
        if self._ticker is None:
            self._ticked_at = self._clock()
            self._ticker = asyncio.get_running_loop().create_task(self._keep_ticking())

    def views(self) -> tuple[EngineView, ...]:
        """Return every engine, wanted or still stopping, sorted by name."""
        return self._roster.views()

    def lease(self, model: str) -> PoolLease | Refusal:
        """Take the least busy accepting engine that serves a public model name, atomically."""
        return take_lease(self._roster, model)

    async def lease_ready(self, model: str, *, wait_seconds: float) -> PoolLease | Refusal:
        """Like `lease`, but bring an evicted engine back and wait for it, within the time.

        All who wait share one load. Ends at once when nothing comes back by waiting.
        """
        deadline = self._clock() + wait_seconds
        while True:
            taken = take_lease(self._roster, model)
            if isinstance(taken, PoolLease) or not bring_back(self._roster, model):
                return taken
            if self._clock() >= deadline:
                return take_lease(self._roster, model)
            await self._bulletin.wait()

    def unload(self, name: str, reason: str, *, urgent: bool = False) -> bool:
        """Evict an idle engine, in one step; False when it may not go now."""
        slot = self._roster.get(name)
        return slot is not None and slot.unload(Reason.EVICTED, reason, urgent=urgent)

    def send(self, name: str, command: Command) -> bool:
        """Pass Limits, CacheLimits, Abort, Reclaim or Answer to an engine; False without one.

        Raises: TypeError for other commands, which belong to the pool itself.
        """
        if not isinstance(command, Limits | CacheLimits | Abort | Reclaim | Answer):
            raise TypeError(f"{type(command).__name__} is not the memory side's to send")
        slot = self._roster.get(name)
        return slot is not None and slot.send(command)

    def retry_refused(self) -> None:
        """Ask again at once for every load that was refused for memory."""
        for slot in self._roster:
            slot.handle(GuardChanged())

    def on_memory_event(self, callback: Callable[[str, ChunkMeasured | Ask], None]) -> None:
        """Call back with an engine's name and what it measured or asks for, at once."""
        self._bulletin.on_measured(callback)

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call back on the loop after any view changed; once for many changes in one turn."""
        self._bulletin.on_change(callback)

    def log_path(self, name: str) -> Path | None:
        """Return the file with an engine's output, or None when never started here."""
        path = log_file(self._settings.log_directory, name)
        # A name from a URL must not lead out of the directory.
        inside = path.parent == self._settings.log_directory and path.name == f"{name}.log"
        return path if inside and path.is_file() else None

    def tick(self) -> None:
        """Let every slot look at the clock, and drop and start what is due."""
        now = self._clock()
        blind, self._ticked_at = now - self._ticked_at > _BLIND_SECONDS, now
        for slot in self._roster:
            slot.tick(was_blind=blind)
        self._roster.converge()
        # Who waits for an engine looks at the clock too.
        self._bulletin.ring()

    async def close(self, grace_seconds: float) -> None:
        """Stop every engine: drain up to the grace, shutdown, wait, TERM, wait, KILL."""
        self._closing = True
        self._roster.dismiss(grace_seconds)
        if self._ticker is None:
            return
        timings = self._settings.timings
        patience_seconds = (
            grace_seconds + timings.shutdown_wait_seconds + timings.terminate_wait_seconds + 5
        )
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._roster.empty.wait(), patience_seconds)
        self._ticker.cancel()

    async def _keep_ticking(self) -> None:
        while True:
            await asyncio.sleep(self._settings.tick_seconds)
            self.tick()
