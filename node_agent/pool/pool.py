"""The engines of this machine, converging on the wanted set.

Owns all slots; everything happens on the event loop it was made on, so a decision and its
effect are never apart. The sync, the memory side and serving call it through `base.Pool`.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from manifests.errors import Refusal
from node_agent.pool.base import EngineView, EngineWant
from node_agent.pool.engine_log import log_file
from node_agent.pool.leasing import (
    PoolLease,
    refuse_full,
    refuse_not_ready,
    refuse_unknown,
    serves,
)
from node_agent.pool.lifecycle import Phase, Started, Unwanted
from node_agent.pool.run import SlotTools
from node_agent.pool.settings import PoolSettings
from node_agent.pool.slot import Slot
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
    ) -> None:
        self._settings, self._clock = settings, clock
        self._tools = SlotTools(settings, resolver, clock, wall_clock, self._note_change)
        self._wanted: dict[str, EngineWant] = {}
        self._slots: dict[str, Slot] = {}
        self._callbacks: list[Callable[[], None]] = []
        self._change_pending = False
        self._closing = False
        self._ticker: asyncio.Task[None] | None = None
        self._ticked_at = clock()
        self._empty = asyncio.Event()

    def set_wanted(self, wanted: Mapping[str, EngineWant]) -> None:
        """Replace the wanted set; the pool converges on it. Ignored once closing."""
        if self._closing:
            return
        self._wanted = dict(wanted)
        self._converge()
        if self._ticker is None:
            self._ticked_at = self._clock()
            self._ticker = asyncio.get_running_loop().create_task(self._keep_ticking())

    def views(self) -> tuple[EngineView, ...]:
        """Return every engine, wanted or still stopping, sorted by name."""
        return tuple(self._slots[name].view() for name in sorted(self._slots))

    def lease(self, model: str) -> PoolLease | Refusal:
        """Take the least busy accepting engine that serves a public model name, atomically."""
        views = self.views()
        serving = [view for view in views if serves(view, model)]
        if not serving:
            return refuse_unknown(model, views)
        accepting = [view for view in serving if view.accepting]
        if not accepting:
            return refuse_not_ready(model, serving)
        free = [view for view in accepting if self._has_room(view)]
        if not free:
            return refuse_full(model, accepting)
        view = min(free, key=lambda one: (self._slots[one.want.name].load, one.want.name))
        return PoolLease(self._slots[view.want.name], view)

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call back on the loop after any view changed; once for many changes in one turn."""
        self._callbacks.append(callback)

    def log_path(self, name: str) -> Path | None:
        """Return the file with an engine's output, or None when never started here."""
        path = log_file(self._settings.log_directory, name)
        # A name from a URL must not lead out of the directory.
        inside = path.parent == self._settings.log_directory and path.name == f"{name}.log"
        return path if inside and path.is_file() else None

    def tick(self) -> None:
        """Let every slot look at the clock, and drop and start what is due."""
        now = self._clock()
        if now - self._ticked_at > _BLIND_SECONDS:
            for slot in self._slots.values():
                slot.excuse_silence()
        self._ticked_at = now
        for slot in list(self._slots.values()):
            slot.tick()
        self._converge()

    async def close(self, grace_seconds: float) -> None:
        """Stop every engine: drain up to the grace, shutdown, wait, TERM, wait, KILL."""
        self._closing = True
        self._wanted = {}
        for slot in list(self._slots.values()):
            slot.handle(Unwanted(grace_seconds))
            slot.note_idle()
        self._converge()
        if self._ticker is None:
            return
        timings = self._settings.timings
        patience_seconds = (
            grace_seconds + timings.shutdown_wait_seconds + timings.terminate_wait_seconds + 5
        )
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._empty.wait(), patience_seconds)
        self._ticker.cancel()

    def _has_room(self, view: EngineView) -> bool:
        batching = view.want.spec.batching
        room = batching.max_running + batching.max_waiting
        return self._slots[view.want.name].load < room

    def _converge(self) -> None:
        """Start what is missing, stop what is not wanted, replace what differs."""
        for name, slot in list(self._slots.items()):
            want = self._wanted.get(name)
            if slot.phase is Phase.GONE:
                del self._slots[name]
                self._note_change()
            elif want is None or not _same_engine(want, slot.want):
                if slot.phase not in {Phase.DRAINING, Phase.STOPPING}:
                    slot.handle(Unwanted(self._settings.drain_seconds))
                    slot.note_idle()
                elif slot.phase is Phase.STOPPING:
                    slot.handle(Unwanted(0))
            else:
                slot.want = want
        for name, want in self._wanted.items():
            if name not in self._slots:
                self._slots[name] = Slot(want, self._tools)
                self._slots[name].handle(Started())
                self._note_change()
        if self._slots:
            self._empty.clear()
        else:
            self._empty.set()

    async def _keep_ticking(self) -> None:
        while True:
            await asyncio.sleep(self._settings.tick_seconds)
            self.tick()

    def _note_change(self) -> None:
        if self._change_pending:
            return
        self._change_pending = True
        asyncio.get_running_loop().call_soon(self._tell)

    def _tell(self) -> None:
        self._change_pending = False
        self._converge()
        for callback in self._callbacks:
            callback()


def _same_engine(one: EngineWant, other: EngineWant) -> bool:
    return one.uid == other.uid and one.spec == other.spec
