"""What a key has used, as arithmetic: periods of a budget, and usage added to a status.

Pure; times are seconds since the epoch. Called by the gateway, which counts, and by the
reconciler of keys, which says whether a budget is spent.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from manifests.kinds.api_key import ApiKeySpec, KeyUsage, Period
from manifests.times import format_time


class Span(NamedTuple):
    """One period of a budget: which kind, and when it began. Empty without a budget."""

    period: str = ""
    start: str = ""

    def or_later(self, other: "Span") -> "Span":
        """Return the one to count for, where `other` was told last.

        Of one kind the later wins, so a straggler cannot bring back a period that is over; of
        two kinds the one told last, since the budget was changed.
        """
        if not other.period or other.period == self.period:
            return max(self, other)
        return other


NO_SPAN = Span()


@dataclass(frozen=True, slots=True)
class UsageDelta:
    """What was used since the last report. Units: tokens; `last_used` seconds since the epoch.

    `budget_tokens` belong to `span`.
    """

    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    last_used: float = 0.0
    budget_tokens: int = 0
    span: Span = NO_SPAN

    def plus(self, other: "UsageDelta") -> "UsageDelta":
        """Return both together, `other` the newer; budget tokens of a period left are dropped."""
        span = self.span.or_later(other.span)
        return UsageDelta(
            self.requests + other.requests,
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            max(self.last_used, other.last_used),
            sum(one.budget_tokens for one in (self, other) if one.span == span),
            span,
        )


NOTHING_USED = UsageDelta()


def period_bounds(period: Period, now: float) -> tuple[float, float]:
    """Return when the period of a moment began and when the next begins, in UTC."""
    day = datetime.fromtimestamp(now, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    if period is Period.DAY:
        return day.timestamp(), (day + timedelta(days=1)).timestamp()
    if period is Period.WEEK:
        monday = day - timedelta(days=day.weekday())
        return monday.timestamp(), (monday + timedelta(days=7)).timestamp()
    first = day.replace(day=1)
    following = (first + timedelta(days=32)).replace(day=1)
    return first.timestamp(), following.timestamp()


def current_span(spec: ApiKeySpec, now: float) -> Span:
    """Return the budget's period of a moment."""
    if spec.budget is None:
        return NO_SPAN
    start = period_bounds(spec.budget.period, now)[0]
    return Span(spec.budget.period.value, format_time(start))


def used_in(usage: KeyUsage, span: Span) -> int:
    """Return the budget tokens that a status counts for a period."""
    return usage.budget_used if (usage.period, usage.period_start) == span else 0


def add_usage(usage: KeyUsage, delta: UsageDelta) -> KeyUsage:
    """Return a status's usage with what one gateway saw; the order of gateways does not count."""
    seen = format_time(delta.last_used) if delta.last_used else ""
    span = Span(usage.period, usage.period_start).or_later(delta.span)
    budget = used_in(usage, span)
    if delta.span == span:
        budget += delta.budget_tokens
    return KeyUsage(
        requests=usage.requests + delta.requests,
        prompt_tokens=usage.prompt_tokens + delta.prompt_tokens,
        completion_tokens=usage.completion_tokens + delta.completion_tokens,
        last_used=max(usage.last_used, seen),
        budget_used=budget,
        period=span.period,
        period_start=span.start,
    )
