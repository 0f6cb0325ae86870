"""What the conditions of an ApiKey say: whether it can be used now, and if not, why.

Pure. Called by `reconcile.api_key`.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from manifests.kinds.api_key import ApiKey
from manifests.kinds.key_usage import current_span, period_bounds, used_in
from manifests.kinds.meta import Condition, ConditionStatus, set_condition
from manifests.times import format_time, parse_time

USABLE = "Usable"


@dataclass(frozen=True, slots=True)
class KeyPlan:
    """The conditions to be shown, and when they may change by themselves; None is never."""

    conditions: tuple[Condition, ...]
    until_seconds: float | None


def plan_key(key: ApiKey, others: Iterable[ApiKey], now: float) -> KeyPlan:
    """Return what a key's status is to say. `now` is in seconds since the epoch."""
    reason, message, until = _judge(key, others, now)
    condition = Condition(
        type=USABLE,
        status=ConditionStatus.TRUE if reason == USABLE else ConditionStatus.FALSE,
        reason=reason,
        message=message,
        observed_generation=key.metadata.generation or 0,
    )
    return KeyPlan(set_condition(key.status.conditions, condition, format_time(now)), until)


def _judge(key: ApiKey, others: Iterable[ApiKey], now: float) -> tuple[str, str, float | None]:
    spec, name = key.spec, str(key.metadata.name)
    if spec.disabled:
        return "Disabled", "spec.disabled is true", None
    expires = parse_time(spec.expires) if spec.expires else None
    if expires is not None and now >= expires:
        return "Expired", f"it expired at {spec.expires}", None
    first = min(
        (str(one.metadata.name) for one in others if one.spec.hash == spec.hash), default=name
    )
    if first < name:
        return "SameSecret", f"ApiKey {first} has the same hash and is used instead", expires
    if spec.budget is not None:
        used = used_in(key.status.usage, current_span(spec, now))
        anew = period_bounds(spec.budget.period, now)[1]
        until = anew if expires is None else min(anew, expires)
        if used >= spec.budget.tokens:
            message = f"{used} of {spec.budget.tokens} tokens are used; anew at {format_time(anew)}"
            return "BudgetSpent", message, until
        return USABLE, "", until
    return USABLE, "", expires
