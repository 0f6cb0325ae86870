"""What the declared engines and the pool's views mean: what to run, and what to tell.

Pure: frozen values and `now` in, a plan out; the sync carries it out. Units: seconds since
the epoch for `now`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from manifests.kinds.engine import (
    ENGINE_FINALIZER,
    Engine,
    EngineCache,
    EnginePhase,
    EngineStatus,
    Progress,
)
from manifests.kinds.meta import Condition, ConditionStatus, set_condition
from manifests.kinds.node import AGENT_STOPPED
from manifests.times import format_time
from node_agent.pool.base import EngineView, EngineWant

_REASONS: dict[EnginePhase, str] = {
    EnginePhase.PENDING: "Waiting",
    EnginePhase.DOWNLOADING: "Downloading",
    EnginePhase.LOADING: "LoadingWeights",
    EnginePhase.READY: "EngineReady",
    EnginePhase.DRAINING: "Draining",
    EnginePhase.FAILED: "EngineFailed",
    EnginePhase.STOPPED: "Stopped",
}


@dataclass(frozen=True, slots=True)
class EngineFigures:
    """What the memory side knows of one engine, and of its cache. Units: bytes, tokens."""

    footprint_bytes: int = 0
    kv_bytes_per_token: int = 0
    context_tokens: int = 0
    tokens_fit_now: int = 0
    tokens_fit_ever: int = 0
    cache: EngineCache | None = None


@dataclass(frozen=True, slots=True)
class FinalizerRemoval:
    """A deleted engine whose process is gone: let the object go."""

    name: str
    uid: str
    finalizers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StatusReport:
    """A status to write; it belongs to the object of this uid only."""

    name: str
    uid: str
    status: EngineStatus


@dataclass(frozen=True, slots=True)
class SyncPlan:
    """What to run, which objects to let go, what to report."""

    wanted: Mapping[str, EngineWant] = field(default_factory=dict)
    removals: tuple[FinalizerRemoval, ...] = ()
    reports: tuple[StatusReport, ...] = ()


def plan_wanted(engines: Iterable[Engine], node: str) -> dict[str, EngineWant]:
    """Return what should run here: engines bound to this node that are not being deleted."""
    return {
        engine.metadata.name: EngineWant(
            name=engine.metadata.name,
            uid=engine.metadata.uid or "",
            generation=engine.metadata.generation or 0,
            spec=engine.spec,
        )
        for engine in engines
        if engine.metadata.name is not None
        and engine.metadata.deletion_timestamp is None
        and engine.spec.node == node
    }


def plan_sync(
    engines: Mapping[str, Engine],
    views: Iterable[EngineView],
    figures: Mapping[str, EngineFigures],
    node: str,
    now: float,
) -> SyncPlan:
    """Return the plan for this moment.

    A view speaks for an object only when name and uid agree: an engine deleted and made anew
    under the same name is another engine, and the old process may still be stopping.
    """
    by_name = {view.want.name: view for view in views}
    bound = {name: item for name, item in engines.items() if item.spec.node == node}
    removals: list[FinalizerRemoval] = []
    reports: list[StatusReport] = []
    for name in sorted(bound):
        engine, uid = bound[name], bound[name].metadata.uid or ""
        view = by_name.get(name)
        mine = view if view is not None and view.want.uid == uid else None
        if engine.metadata.deletion_timestamp is not None and mine is None:
            if ENGINE_FINALIZER in engine.metadata.finalizers:
                kept = tuple(f for f in engine.metadata.finalizers if f != ENGINE_FINALIZER)
                removals.append(FinalizerRemoval(name, uid, kept))
            continue
        if mine is not None:
            status = plan_status(engine, mine, figures.get(name, EngineFigures()), now)
            reports.append(StatusReport(name, uid, status))
    return SyncPlan(plan_wanted(bound.values(), node), tuple(removals), tuple(reports))


def plan_status(
    engine: Engine, view: EngineView, figures: EngineFigures, now: float
) -> EngineStatus:
    """Return what to report of one engine, given what its object says now."""
    loading = view.phase in {EnginePhase.DOWNLOADING, EnginePhase.LOADING}
    progress = Progress(done=view.progress_done_bytes, total=view.progress_total_bytes)
    restart, started = view.restart_in_seconds, view.started_epoch_seconds
    stalled = view.phase is EnginePhase.READY and not view.making_progress
    reason = view.reason or ("NoProgress" if stalled else _REASONS[view.phase])
    return EngineStatus(
        observed_generation=view.want.generation,
        phase=view.phase,
        wakes=view.wakes,
        reason=reason,
        message=view.message,
        progress=progress if loading else None,
        pid=view.pid,
        restarts=view.restarts,
        next_restart_time="" if restart is None else _keep_near(engine, now + restart),
        started_time="" if started is None else format_time(started),
        footprint_bytes=figures.footprint_bytes,
        weights_bytes=0 if view.files is None else view.files.weights_bytes,
        kv_bytes_per_token=figures.kv_bytes_per_token,
        context_tokens=figures.context_tokens,
        tokens_fit_now=figures.tokens_fit_now,
        tokens_fit_ever=figures.tokens_fit_ever,
        prefill_tokens_per_second=round(view.prefill_tokens_per_second, 1),
        running=view.running,
        waiting=view.waiting,
        fingerprint="" if view.files is None else view.files.fingerprint,
        cache=figures.cache,
        conditions=_ready_condition(engine, view, reason, now),
    )


def plan_stopped(engines: Mapping[str, Engine], node: str, now: float) -> tuple[StatusReport, ...]:
    """Return the last words about every engine bound here when the agent itself stops."""
    reports: list[StatusReport] = []
    for name, engine in sorted(engines.items()):
        if engine.spec.node != node:
            continue
        ready = Condition(
            type="Ready",
            status=ConditionStatus.FALSE,
            reason=AGENT_STOPPED,
            message="the node's agent was stopped",
        )
        status = engine.status.model_copy(
            update={
                "phase": EnginePhase.STOPPED,
                "wakes": False,
                "reason": AGENT_STOPPED,
                "message": "the node's agent was stopped",
                "progress": None,
                "pid": None,
                "footprint_bytes": 0,
                "tokens_fit_now": 0,
                "cache": None,
                "running": 0,
                "waiting": 0,
                "conditions": set_condition(engine.status.conditions, ready, format_time(now)),
            }
        )
        reports.append(StatusReport(name, engine.metadata.uid or "", status))
    return tuple(reports)


def _keep_near(engine: Engine, epoch_seconds: float) -> str:
    """Return the restart time, the one already reported when it differs by rounding only."""
    text, reported = format_time(epoch_seconds), engine.status.next_restart_time
    near = {format_time(epoch_seconds + shift) for shift in (-1, 0, 1)}
    return reported if reported in near else text


def _ready_condition(
    engine: Engine, view: EngineView, reason: str, now: float
) -> tuple[Condition, ...]:
    ready = Condition(
        type="Ready",
        status=ConditionStatus.TRUE if view.accepting else ConditionStatus.FALSE,
        reason=reason,
        message=view.message,
        observed_generation=view.want.generation,
    )
    return set_condition(engine.status.conditions, ready, format_time(now))


_FIGURES = frozenset(
    {
        "progress",
        "cache",
        "footprint_bytes",
        "tokens_fit_now",
        "tokens_fit_ever",
        "prefill_tokens_per_second",
        "running",
        "waiting",
    }
)


@dataclass(frozen=True, slots=True)
class Sent:
    """The last status written for an object, and when."""

    uid: str
    status: EngineStatus
    at: float


def is_report_due(
    sent: Sent | None, report: StatusReport, now: float, every_seconds: float
) -> bool:
    """Whether to write a status: a transition at once, figures only every so often."""
    if sent is None or sent.uid != report.uid:
        return True
    if sent.status == report.status:
        return False
    before = sent.status.model_dump(exclude=set(_FIGURES))
    if before != report.status.model_dump(exclude=set(_FIGURES)):
        return True
    return now - sent.at >= every_seconds
