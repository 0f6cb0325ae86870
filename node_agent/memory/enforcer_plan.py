"""What to do about memory pressure: one sighting in, actions and the next state out.

Pure. Called by the enforcer at each poll. The order of measures, mildest first:

1. soft: admission is paused (the arbiter still lets one request run when none does), the hot
   cache shrinks, and idle unpinned engines are evicted, least recently used first, until the
   use falls under the soft mark.
2. hard: every engine gives its cached buffers back, the hot cache is emptied, idle unpinned
   engines go, even one that was just loaded. If that does not help, the newest prefill of an
   unpinned engine is aborted; with no prefill left, and after a longer wait, the newest request
   of the least recently used busy unpinned engine. One victim at a time.
3. emergency: all prefills at once, pinned engines included; if that does not help, all requests
   of one busy engine at a time, unpinned ones first. Models stay loaded.

A request or a model is only ever given up when every reading of a whole window was over the
mark, and each abort begins a new window, so a reading that has not settled kills nothing.
Levels are entered at once and left only by a margin or after a time, so they do not flap, and
nothing that is latched lasts. Units: bytes; seconds of the agent's monotonic clock.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from manifests.kinds.node import PressureLevel
from manifests.units import format_bytes
from node_agent.memory.limits import Watermarks, classify_pressure

_ORDER = tuple(PressureLevel)


@dataclass(frozen=True, slots=True)
class EnforcerRules:
    """How patient the enforcer is.

    A level is left once the use was under its mark by `leave_margin_ratio` for `calm_polls`
    readings, or merely under it for `linger_seconds`. The margin is twice the jitter of 5% that
    must not flap.
    """

    leave_margin_ratio: float = 0.10
    calm_polls: int = 3
    linger_seconds: float = 15.0
    confirm_seconds: float = 1.0
    confirm_samples: int = 3
    busy_defer_seconds: float = 5.0
    reclaim_every_seconds: float = 2.0
    minimum_stay_seconds: float = 10.0
    resample_seconds: float = 0.25
    busy_poll_seconds: float = 1.0
    idle_poll_seconds: float = 5.0


@dataclass(frozen=True, slots=True)
class RowNow:
    """One request on an engine; `began_at` orders requests across engines.

    `prefilling` until its first token; `fed` once a part of its prompt is in, so that ending it
    frees something for sure.
    """

    request_id: str
    began_at: float
    prefilling: bool = False
    fed: bool = False


@dataclass(frozen=True, slots=True)
class EngineNow:
    """One engine as the enforcer sees it.

    `idle_seconds` is None while it has requests or is not ready; `leaving` means on its way
    out, its bytes will come back by themselves.
    """

    name: str
    held_bytes: int
    pinned: bool = False
    ready: bool = True
    leaving: bool = False
    leases: int = 0
    idle_seconds: float | None = None
    ready_seconds: float = 0.0
    rows: tuple[RowNow, ...] = ()

    @property
    def can_leave(self) -> bool:
        """Whether evicting it harms no request and nobody's wish."""
        idle = self.idle_seconds is not None and not self.rows and self.leases == 0
        return self.ready and idle and not self.pinned and not self.leaving


@dataclass(frozen=True, slots=True)
class Sighting:
    """One look at the node: the short high-water mark, the newest reading, and who holds what."""

    used_bytes: int
    newest_bytes: int
    marks: Watermarks
    engines: tuple[EngineNow, ...] = ()
    hot_cache_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Streak:
    """Readings in a row that were at or over a mark."""

    samples: int = 0
    since: float = 0.0

    def next(self, over: bool, now: float) -> "Streak":
        """Return the streak after one more reading."""
        if not over:
            return Streak()
        return Streak(self.samples + 1, self.since if self.samples else now)

    def lasts(self, seconds: float, samples: int, now: float) -> bool:
        """Whether it is long enough to be believed."""
        return self.samples >= samples and now - self.since >= seconds


@dataclass(frozen=True, slots=True)
class EnforcerState:
    """What is remembered between polls."""

    level: PressureLevel = PressureLevel.OK
    calm_polls: int = 0
    below_since: float | None = None
    soft: Streak = Streak()
    hard: Streak = Streak()
    emergency: Streak = Streak()
    reclaimed_at: float | None = None


@dataclass(frozen=True, slots=True)
class Evict:
    """Unload an idle engine; `urgent` even one that a request has just brought back."""

    engine: str
    reason: str
    urgent: bool = False


@dataclass(frozen=True, slots=True)
class ReclaimCache:
    """Let an engine give MLX's cached buffers back."""

    engine: str


@dataclass(frozen=True, slots=True)
class AbortRow:
    """End one request for the node's sake; `message` is for its client."""

    engine: str
    request_id: str
    message: str


@dataclass(frozen=True, slots=True)
class ShrinkHotCache:
    """Bring the hot KV cache down to a size."""

    target_bytes: int


Action = Evict | ReclaimCache | AbortRow | ShrinkHotCache


@dataclass(frozen=True, slots=True)
class Enforcement:
    """The next state, what to do now, and when to look again."""

    state: EnforcerState
    actions: tuple[Action, ...]
    poll_seconds: float

    @property
    def paused(self) -> bool:
        """Whether new requests must wait."""
        return self.state.level is not PressureLevel.OK


DEFAULT_RULES = EnforcerRules()


def plan_enforcement(
    state: EnforcerState, seen: Sighting, now: float, rules: EnforcerRules = DEFAULT_RULES
) -> Enforcement:
    """Return what to do about one sighting."""
    state = _count(_settle_level(state, seen, now, rules), seen, now)
    actions: list[Action] = []
    if _at_least(state.level, PressureLevel.HARD) and _reclaim_due(state, now, rules):
        actions += [ReclaimCache(item.name) for item in seen.engines if _runs(item)]
        state = replace(state, reclaimed_at=now)
    actions += _shrink(state.level, seen)
    if state.level is not PressureLevel.OK and _confirmed(state.soft, now, rules):
        actions += plan_evictions(state.level, seen, rules)
    aborts = _plan_aborts(state, seen, now, rules)
    if aborts:
        # What they held takes a moment to come back: believe only readings from now on.
        state = replace(state, hard=Streak(), emergency=Streak())
    return Enforcement(state, (*actions, *aborts), _poll_seconds(state, seen, now, rules))


def _settle_level(
    state: EnforcerState, seen: Sighting, now: float, rules: EnforcerRules
) -> EnforcerState:
    """Enter a level at once; leave it by a margin, or after a time under its mark."""
    raw = classify_pressure(seen.used_bytes, seen.marks)
    if _at_least(raw, state.level):
        return replace(state, level=raw, calm_polls=0, below_since=None)
    with_margin = classify_pressure(
        seen.used_bytes, _lower(seen.marks, 1.0 - rules.leave_margin_ratio)
    )
    calm_polls = 0 if _at_least(with_margin, state.level) else state.calm_polls + 1
    below_since = now if state.below_since is None else state.below_since
    if calm_polls >= rules.calm_polls:
        return replace(state, level=with_margin, calm_polls=0, below_since=None)
    if now - below_since >= rules.linger_seconds:
        return replace(state, level=raw, calm_polls=0, below_since=None)
    return replace(state, calm_polls=calm_polls, below_since=below_since)


def _lower(marks: Watermarks, ratio: float) -> Watermarks:
    return Watermarks(
        soft_bytes=int(marks.soft_bytes * ratio),
        hard_bytes=int(marks.hard_bytes * ratio),
        emergency_bytes=int(marks.emergency_bytes * ratio),
    )


def _at_least(level: PressureLevel, other: PressureLevel) -> bool:
    return _ORDER.index(level) >= _ORDER.index(other)


def _count(state: EnforcerState, seen: Sighting, now: float) -> EnforcerState:
    """Count readings over each mark; the newest ones, not the high-water mark."""
    newest, marks = seen.newest_bytes, seen.marks
    return replace(
        state,
        soft=state.soft.next(0 < newest >= marks.soft_bytes, now),
        hard=state.hard.next(0 < newest >= marks.hard_bytes, now),
        emergency=state.emergency.next(0 < newest >= marks.emergency_bytes, now),
    )


def _confirmed(streak: Streak, now: float, rules: EnforcerRules) -> bool:
    return streak.lasts(rules.confirm_seconds, rules.confirm_samples, now)


def _reclaim_due(state: EnforcerState, now: float, rules: EnforcerRules) -> bool:
    last = state.reclaimed_at
    return last is None or now - last >= rules.reclaim_every_seconds


def _runs(engine: EngineNow) -> bool:
    return engine.ready and not engine.leaving


def _shrink(level: PressureLevel, seen: Sighting) -> list[Action]:
    """Return the order to the hot cache: what is over the soft mark at soft, all of it above."""
    if level is PressureLevel.OK or seen.hot_cache_bytes <= 0:
        return []
    over = max(0, seen.newest_bytes - seen.marks.soft_bytes)
    kept = max(0, seen.hot_cache_bytes - over) if level is PressureLevel.SOFT else 0
    return [ShrinkHotCache(kept)] if kept < seen.hot_cache_bytes else []


def plan_evictions(
    level: PressureLevel, seen: Sighting, rules: EnforcerRules = DEFAULT_RULES
) -> list[Action]:
    """Return which idle engines go, least recently used first, until the use is soft no more.

    What is already leaving counts as gone, so that one shortage does not empty the node.
    """
    excess = seen.newest_bytes - seen.marks.soft_bytes
    excess -= sum(item.held_bytes for item in seen.engines if item.leaving)
    urgent = _at_least(level, PressureLevel.HARD)
    stays = 0.0 if urgent else rules.minimum_stay_seconds
    actions: list[Action] = []
    for engine in idle_longest_first(seen.engines, stays):
        if excess < 0:
            break
        actions.append(Evict(engine.name, _why_evicted(seen), urgent))
        excess -= engine.held_bytes
    return actions


def idle_longest_first(
    engines: Iterable[EngineNow], minimum_stay_seconds: float
) -> list[EngineNow]:
    """Return the engines that may be evicted, least recently used first."""
    free = (
        item for item in engines if item.can_leave and item.ready_seconds >= minimum_stay_seconds
    )
    return sorted(free, key=lambda item: (-(item.idle_seconds or 0.0), item.name))


def _why_evicted(seen: Sighting) -> str:
    return (
        f"idle while engines held {format_bytes(seen.newest_bytes)}, at or above the soft mark "
        f"of {format_bytes(seen.marks.soft_bytes)}"
    )


def _plan_aborts(
    state: EnforcerState, seen: Sighting, now: float, rules: EnforcerRules
) -> list[Action]:
    if _confirmed(state.emergency, now, rules):
        return _abort_in_emergency(seen)
    if not _confirmed(state.hard, now, rules):
        return []
    victims = [item for item in seen.engines if not item.pinned]
    prefilling = [(e, r) for e in victims for r in e.rows if r.prefilling]
    if prefilling:
        return [_abort(*max(prefilling, key=_newest), seen, seen.marks.hard_bytes)]
    if not state.hard.lasts(rules.busy_defer_seconds, rules.confirm_samples, now):
        return []
    engine = _least_recent(victims, lambda item: item.rows)
    if engine is None:
        return []
    row = max(engine.rows, key=lambda item: (item.began_at, item.request_id))
    return [_abort(engine, row, seen, seen.marks.hard_bytes)]


def _abort_in_emergency(seen: Sighting) -> list[Action]:
    limit_bytes = seen.marks.emergency_bytes
    prefilling = [(e, r) for e in seen.engines for r in e.rows if r.prefilling]
    if prefilling:
        order = sorted(prefilling, key=_newest, reverse=True)
        return [_abort(engine, row, seen, limit_bytes) for engine, row in order]
    unpinned = [item for item in seen.engines if not item.pinned]
    engine = _least_recent(unpinned, lambda item: item.rows) or _least_recent(
        seen.engines, lambda item: item.rows
    )
    return [] if engine is None else [_abort(engine, row, seen, limit_bytes) for row in engine.rows]


def _newest(pair: tuple[EngineNow, RowNow]) -> tuple[bool, float, str]:
    """Order prefills: those that hold memory for sure, then the newest."""
    row = pair[1]
    return (row.fed, row.began_at, row.request_id)


def _least_recent(
    engines: Iterable[EngineNow], rows: Callable[[EngineNow], tuple[RowNow, ...]]
) -> EngineNow | None:
    """Return the busy engine whose newest request is the oldest."""
    busy = [item for item in engines if rows(item)]
    return min(
        busy, key=lambda item: (max(row.began_at for row in rows(item)), item.name), default=None
    )


def _abort(engine: EngineNow, row: RowNow, seen: Sighting, limit_bytes: int) -> AbortRow:
    doing = "its prompt was being fed" if row.prefilling else "its answer was being generated"
    message = (
        f"The node ran short of memory while {doing}: engines held "
        f"{format_bytes(seen.newest_bytes)}, at or above the limit of "
        f"{format_bytes(limit_bytes)}. The request was stopped to protect the node; "
        "try again shortly."
    )
    return AbortRow(engine.name, row.request_id, message)


def _poll_seconds(state: EnforcerState, seen: Sighting, now: float, rules: EnforcerRules) -> float:
    """Return when to look again: soon while a reading has yet to be believed."""
    believed = _confirmed(state.soft, now, rules)
    over = _at_least(state.level, PressureLevel.HARD) or (state.soft.samples > 0 and not believed)
    if over:
        return rules.resample_seconds
    working = state.level is not PressureLevel.OK or any(
        item.rows or item.leases or item.leaving or not item.ready for item in seen.engines
    )
    return rules.busy_poll_seconds if working else rules.idle_poll_seconds
