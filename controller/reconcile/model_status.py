"""What a Model's status says after a pass, and what of it is news.

Pure. Called by `reconcile.model`.
"""

from dataclasses import dataclass

from controller.placement.fleet import FleetView
from controller.reconcile.model_plan import EngineGroups, EnginePlan, EngineView, Wanted
from manifests.kinds.engine import MODEL_LABEL, Engine, EnginePhase
from manifests.kinds.meta import Condition, ConditionStatus, find_condition, set_condition
from manifests.kinds.model import Model, ModelStatus
from manifests.sizing.estimate import estimate_bytes_per_token
from manifests.times import parse_time
from manifests.wire.report import Inspection


@dataclass(frozen=True, slots=True)
class News:
    """A transition worth an Event."""

    reason: str
    message: str
    warning: bool = False


@dataclass(frozen=True, slots=True)
class Moment:
    """Now, both as seconds since the epoch and as it is written."""

    epoch_seconds: float
    text: str


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Everything that a status is made from."""

    wanted: Wanted
    groups: EngineGroups
    plan: EnginePlan
    fleet: FleetView
    engines: tuple[Engine, ...]


def plan_status(model: Model, facts: ModelFacts, now: Moment) -> ModelStatus:
    """Return the status that the facts amount to."""
    groups = facts.groups
    live = (*groups.current, *groups.outdated)
    conditions = model.status.conditions
    for condition in (_placed(facts), _ready(model, facts, now)):
        stamped = condition.model_copy(update={"observed_generation": model.metadata.generation})
        conditions = set_condition(conditions, stamped, now.text)
    status = ModelStatus(
        observed_generation=model.metadata.generation or 0,
        replicas=len(live),
        ready_replicas=groups.count_ready(live),
        updated_replicas=len(groups.current),
        selector=f"{MODEL_LABEL}={model.metadata.name}",
        conditions=conditions,
        **_known_weights(model),
    )
    known = facts.fleet.shapes.get(facts.wanted.request.source)
    return status if known is None else status.model_copy(update=_weights(model, known))


def plan_news(before: ModelStatus, after: ModelStatus) -> tuple[News, ...]:
    """Return the conditions that changed status or reason, as news."""
    news: list[News] = []
    for condition in after.conditions:
        known = find_condition(before.conditions, condition.type)
        if known is not None and (known.status, known.reason) == (
            condition.status,
            condition.reason,
        ):
            continue
        if condition.reason in {"Progressing", "ScaledToZero"}:
            continue
        warning = condition.status is not ConditionStatus.TRUE
        if condition.type == "Placed" and warning:
            news.append(News("Unplaceable", condition.message, warning=True))
        elif condition.type == "Ready" and condition.reason != "Unplaceable":
            news.append(News(condition.reason, condition.message, warning))
    return tuple(news)


def progress_left_seconds(model: Model, facts: ModelFacts, now: Moment) -> float | None:
    """Return the seconds until a copy that is not ready counts as stuck; None when none waits."""
    deadline_seconds = model.spec.rollout.progress_deadline.seconds
    waiting = {
        engine.name for engine in facts.groups.current if engine.name not in facts.groups.ready
    }
    started = [
        parse_time(engine.metadata.creation_timestamp or "")
        for engine in facts.engines
        if engine.metadata.name in waiting
    ]
    known = [moment for moment in started if moment is not None]
    if not known:
        return None
    return max(0.0, min(known) + deadline_seconds - now.epoch_seconds)


def _placed(facts: ModelFacts) -> Condition:
    wanted, placed = facts.wanted.replicas, len(facts.groups.current) + len(facts.plan.creates)
    if wanted == 0:
        return _condition("Placed", ConditionStatus.TRUE, "ScaledToZero", "no copy is wanted")
    if placed >= wanted:
        message = f"every copy has a node ({wanted} wanted)"
        return _condition("Placed", ConditionStatus.TRUE, "Placed", message)
    short = f"{placed} of {wanted} copies have a node"
    refused = facts.plan.refused
    if refused is not None and facts.plan.stuck:
        message = f"{short}: {refused.message}"
        return _condition("Placed", ConditionStatus.FALSE, refused.reason, message)
    parts = (short, facts.plan.waiting, *sorted({stop.why for stop in facts.plan.deletes}))
    message = "; ".join(part for part in parts if part)
    return _condition("Placed", ConditionStatus.FALSE, "Progressing", message)


def _ready(model: Model, facts: ModelFacts, now: Moment) -> Condition:
    wanted, groups = facts.wanted.replicas, facts.groups
    ready = groups.count_ready(groups.current)
    serving = ready + groups.count_ready(groups.outdated)
    if wanted == 0:
        return _condition("Ready", ConditionStatus.FALSE, "ScaledToZero", "no copy is wanted")
    if ready >= wanted:
        asleep = sum(1 for engine in groups.current if engine.wakes)
        note = f"; {asleep} unloaded while idle, back at the next request" if asleep else ""
        message = f"{wanted} copies are ready{note}"
        return _condition("Ready", ConditionStatus.TRUE, "Ready", message)
    message = f"{ready} of {wanted} wanted copies are ready"
    if serving > ready:
        message += f"; {serving - ready} of the previous revision still serve"
    failed = _failed(groups.current, facts.engines)
    if failed is not None:
        why = failed.status.message or failed.status.reason or "no reason given"
        message += f"; {failed.metadata.name} on {failed.spec.node} failed: {why}"
        return _condition("Ready", ConditionStatus.FALSE, "EngineFailed", message)
    if facts.plan.refused is not None and facts.plan.stuck:
        message += f"; {facts.plan.refused.message}"
        return _condition("Ready", ConditionStatus.FALSE, "Unplaceable", message)
    if progress_left_seconds(model, facts, now) == 0:
        deadline = model.spec.rollout.progress_deadline
        message += f"; not ready within rollout.progressDeadline ({deadline})"
        return _condition("Ready", ConditionStatus.FALSE, "ProgressDeadlineExceeded", message)
    return _condition("Ready", ConditionStatus.FALSE, "Progressing", message)


def _failed(current: tuple[EngineView, ...], engines: tuple[Engine, ...]) -> Engine | None:
    names = {engine.name for engine in current if engine.phase is EnginePhase.FAILED}
    return next((engine for engine in engines if engine.metadata.name in names), None)


def _weights(model: Model, known: Inspection) -> dict[str, object]:
    limit = model.spec.context.max_tokens
    context_tokens = known.shape.context_tokens
    return {
        "fingerprint": known.fingerprint,
        "weights_bytes": known.weights_bytes,
        "kv_bytes_per_token": estimate_bytes_per_token(known.shape),
        "context_tokens": min(limit, context_tokens) if limit else context_tokens,
    }


def _known_weights(model: Model) -> dict[str, object]:
    """What an earlier pass learned, unless the manifest has changed since."""
    status = model.status
    if status.observed_generation != model.metadata.generation:
        return {}
    return {
        "fingerprint": status.fingerprint,
        "weights_bytes": status.weights_bytes,
        "kv_bytes_per_token": status.kv_bytes_per_token,
        "context_tokens": status.context_tokens,
    }


def _condition(type_: str, status: ConditionStatus, reason: str, message: str) -> Condition:
    return Condition(type=type_, status=status, reason=reason, message=message)
