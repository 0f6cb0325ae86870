"""The enforcer: carries out what `enforcer_plan` decides, after each sample of memory.

Owns the level in force and nothing else: bytes are the arbiter's, processes the pool's. It also
makes room when the arbiter asks. The monitor calls `act` after each sample and waits as long as
it says. Units: bytes; seconds of the agent's monotonic clock.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from manifests.errors import Code, Retryable
from manifests.kinds.engine import EnginePhase
from manifests.kinds.node import PressureLevel
from node_agent.engine.messages import Abort, Command, Reclaim
from node_agent.memory.enforcer_plan import (
    AbortRow,
    Action,
    Enforcement,
    EnforcerRules,
    EnforcerState,
    EngineNow,
    Evict,
    ReclaimCache,
    RowNow,
    ShrinkHotCache,
    Sighting,
    plan_enforcement,
)
from node_agent.memory.limits import Watermarks
from node_agent.memory.room_plan import RoomPlan, plan_room
from node_agent.pool.base import EngineView

_LOG = structlog.get_logger(__name__)

_LEAVING = frozenset({EnginePhase.DRAINING, EnginePhase.STOPPED})


class EnforcedPool(Protocol):
    """What the enforcer needs of the pool."""

    def views(self) -> tuple[EngineView, ...]:
        """Return every engine."""
        ...

    def unload(self, name: str, reason: str, *, urgent: bool = False) -> bool:
        """Evict an idle engine; False when it is not."""
        ...

    def send(self, name: str, command: Command) -> bool:
        """Pass a command to a running engine."""
        ...


class PressuredArbiter(Protocol):
    """What the enforcer needs of the arbiter."""

    def watermarks(self) -> Watermarks | None:
        """Return where pressure begins, or None before the first sample."""
        ...

    def used_bytes(self) -> int:
        """Return the short high-water mark of what engines hold."""
        ...

    def engine_footprint_bytes(self, engine: str) -> int:
        """Return the newest measurement of one engine."""
        ...

    def set_paused(self, paused: bool) -> None:
        """Hold new requests in line, one excepted when none runs."""
        ...


class HotCache(Protocol):
    """The prefix caches in RAM; `CacheKeeper` on a node that has them."""

    def size_bytes(self) -> int:
        """Return what they hold."""
        ...

    def coming_bytes(self) -> int:
        """Return what they were told to give up and no sample may show yet."""
        ...

    def shrink(self, target_bytes: int) -> None:
        """Drop the coldest blocks down to a size."""
        ...


class NoHotCache:
    """A node without a hot cache."""

    def size_bytes(self) -> int:
        """Return 0."""
        return 0

    def coming_bytes(self) -> int:
        """Return 0."""
        return 0

    def shrink(self, target_bytes: int) -> None:
        """Do nothing."""


@dataclass(frozen=True, slots=True)
class EnforcerHooks:
    """Whom the enforcer tells; `clock` returns seconds.

    `acted` gets each measure that was really taken; `level_changed` the level before and after.
    """

    acted: Callable[[Action], None] = lambda _: None
    level_changed: Callable[[PressureLevel, PressureLevel], None] = lambda _, __: None
    clock: Callable[[], float] = time.monotonic
    hot_cache: HotCache = field(default_factory=NoHotCache)


class Enforcer:
    """Turns pressure into measures."""

    def __init__(
        self,
        pool: EnforcedPool,
        arbiter: PressuredArbiter,
        hooks: EnforcerHooks | None = None,
        rules: EnforcerRules | None = None,
    ) -> None:
        self._pool, self._arbiter = pool, arbiter
        self._hooks, self._rules = hooks or EnforcerHooks(), rules or EnforcerRules()
        self._state = EnforcerState()
        self._missing_since: float | None = None
        self._ready_since: dict[tuple[str, int], float] = {}
        self._poll_seconds = self._rules.busy_poll_seconds

    @property
    def level(self) -> PressureLevel:
        """The level in force."""
        return self._state.level

    @property
    def poll_seconds(self) -> float:
        """How long to wait until the next sample, unless something happens."""
        return self._poll_seconds

    def act(self) -> None:
        """Judge the newest sample and do what it asks for. Mutates: the level, the engines."""
        marks = self._arbiter.watermarks()
        if marks is None:
            return
        self._missing_since = None
        plan = plan_enforcement(self._state, self._look(marks), self._hooks.clock(), self._rules)
        self._poll_seconds = plan.poll_seconds
        self._enter(plan.state)
        self._carry_out(plan)

    def miss(self) -> None:
        """Note that there was no sample; a level without readings does not outlive its time.

        Mutates: the level.
        """
        now = self._hooks.clock()
        if self._missing_since is None:
            self._missing_since = now
        elif now - self._missing_since >= self._rules.linger_seconds:
            self._enter(EnforcerState())

    def make_room(self, engine: str, need_bytes: int, headroom_bytes: int) -> RoomPlan:
        """Shrink hot caches, then evict idle engines, so that a demand of `engine` fits.

        Returns what will come back: look at the ledger again after the next samples. Mutates: the
        hot caches and the evicted engines.
        """
        cache = self._hooks.hot_cache
        hot_bytes, coming_bytes = cache.size_bytes(), cache.coming_bytes()
        room = plan_room(
            need_bytes, headroom_bytes + hot_bytes + coming_bytes, self._engines(), keep=engine
        )
        missing_bytes = need_bytes - headroom_bytes - coming_bytes - room.coming_bytes
        if room.enough and missing_bytes > 0 and hot_bytes > 0:
            # Blocks are cheaper to lose than a model; most are on the disk as well.
            shrink = ShrinkHotCache(max(0, hot_bytes - missing_bytes))
            cache.shrink(shrink.target_bytes)
            self._hooks.acted(shrink)
        for name in room.evict:
            self._evict(Evict(name, f"to make room for {engine}"))
        return room

    def _enter(self, state: EnforcerState) -> None:
        before, self._state = self._state.level, state
        self._arbiter.set_paused(state.level is not PressureLevel.OK)
        if state.level is not before:
            _LOG.info("memory pressure changed", pressure=state.level.value)
            self._hooks.level_changed(before, state.level)

    def _carry_out(self, plan: Enforcement) -> None:
        for action in plan.actions:
            match action:
                case Evict():
                    self._evict(action)
                case ReclaimCache(engine=engine):
                    if self._pool.send(engine, Reclaim()):
                        self._hooks.acted(action)
                case AbortRow():
                    self._abort(action)
                case ShrinkHotCache(target_bytes=target_bytes):
                    self._hooks.hot_cache.shrink(target_bytes)
                    self._hooks.acted(action)

    def _evict(self, action: Evict) -> None:
        if self._pool.unload(action.engine, action.reason, urgent=action.urgent):
            _LOG.info("engine evicted", engine=action.engine, reason=action.reason)
            self._hooks.acted(action)

    def _abort(self, action: AbortRow) -> None:
        # `later`: the request is sound; another node may take it now, this one soon.
        command = Abort(
            request_id=action.request_id,
            code=Code.PREFILL_MEMORY_EXCEEDED.value,
            message=action.message,
            retryable=Retryable.LATER.value,
        )
        if self._pool.send(action.engine, command):
            _LOG.warning("request aborted", engine=action.engine, request=action.request_id)
            self._hooks.acted(action)
            # Its cache goes to MLX's pool of free buffers; only this gives it to the system.
            self._pool.send(action.engine, Reclaim())

    def _look(self, marks: Watermarks) -> Sighting:
        engines = self._engines()
        return Sighting(
            used_bytes=self._arbiter.used_bytes(),
            newest_bytes=sum(item.held_bytes for item in engines),
            marks=marks,
            engines=engines,
            hot_cache_bytes=self._hooks.hot_cache.size_bytes(),
        )

    def _engines(self) -> tuple[EngineNow, ...]:
        now, views = self._hooks.clock(), self._pool.views()
        ready = {
            (view.want.name, view.pid)
            for view in views
            if view.pid is not None and view.phase is EnginePhase.READY
        }
        self._ready_since = {key: self._ready_since.get(key, now) for key in ready}
        return tuple(
            describe_engine(
                view,
                self._arbiter.engine_footprint_bytes(view.want.name),
                now - self._ready_since.get((view.want.name, view.pid), now),
            )
            for view in views
            if view.pid is not None
        )


def describe_engine(view: EngineView, held_bytes: int, ready_seconds: float) -> EngineNow:
    """Return one engine as the plan sees it. Pure."""
    ready = view.phase is EnginePhase.READY
    return EngineNow(
        name=view.want.name,
        held_bytes=held_bytes,
        pinned=view.want.spec.keep.pinned,
        ready=ready,
        leaving=view.phase in _LEAVING,
        leases=view.leases,
        idle_seconds=view.idle_seconds if ready else None,
        ready_seconds=ready_seconds,
        rows=tuple(
            RowNow(row.request_id, row.began_at, row.prefilling, row.fed) for row in view.rows
        ),
    )
