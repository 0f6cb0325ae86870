"""What every key has in use and has used: windows, running requests, usage not yet reported.

Owns those counters for this gateway. What is reserved at a request's entry is settled by what it
really cost, and given back on every way out. Belongs to one event loop; called by `door` and by
`usage_writer`.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from controller.gateway.http.asgi import RawHeader
from controller.gateway.http.sse import Usage
from controller.gateway.keys.limits import (
    Taken,
    judge_budget,
    judge_limits,
    judge_uncounted,
    plan_limit_headers,
)
from controller.gateway.keys.rate_window import EMPTY, Window, amend, take
from manifests.errors import Refusal
from manifests.kinds.api_key import ApiKey, KeyUsage
from manifests.kinds.key_usage import NOTHING_USED, Span, UsageDelta, current_span, used_in


@dataclass(slots=True)
class _Meter:
    """One key's counters. `sending` is usage whose report is under way."""

    name: str
    requests: Window = EMPTY
    tokens: Window = EMPTY
    running: int = 0
    reserved_tokens: int = 0
    pending: UsageDelta = NOTHING_USED
    sending: UsageDelta = NOTHING_USED
    written: KeyUsage = field(default_factory=KeyUsage)

    def used_in(self, span: Span) -> int:
        """Return the budget tokens of a period that no report has told yet."""
        both = self.pending, self.sending
        return sum(one.budget_tokens for one in both if one.span == span)


@dataclass(frozen=True, slots=True)
class Ticket:
    """One request that was let in: what it holds until it is settled."""

    uid: str
    key: ApiKey
    cost_tokens: int
    taken_seconds: float


@dataclass(frozen=True, slots=True)
class Report:
    """Usage of one key to be added to its status."""

    uid: str
    name: str
    delta: UsageDelta


class Quotas:
    """Counters of all keys, by uid."""

    def __init__(self, clock: Callable[[], float], epoch: Callable[[], float]) -> None:
        """`clock` is monotonic and drives the windows; `epoch` tells expiry and periods."""
        self._clock, self._epoch = clock, epoch
        self._meters: dict[str, _Meter] = {}

    def refuse_uncounted(self, key: ApiKey) -> Refusal | None:
        """Return why no request of a key may start now, whatever it costs; takes nothing."""
        epoch = self._epoch()
        return judge_uncounted(key, self._taken(key, self._meter(key), epoch), self._clock(), epoch)

    def admit(self, key: ApiKey, cost_tokens: int) -> Ticket | Refusal:
        """Take a place and the tokens a request may cost, or say why not. Nothing is half taken."""
        meter, now, epoch = self._meter(key), self._clock(), self._epoch()
        taken = self._taken(key, meter, epoch)
        refusal = judge_budget(key, taken, cost_tokens, epoch) or judge_limits(
            key.spec.limits, taken, cost_tokens, now
        )
        if refusal is not None:
            return refusal
        meter.requests = take(meter.requests, now, 1)
        meter.tokens = take(meter.tokens, now, cost_tokens)
        meter.running += 1
        meter.reserved_tokens += cost_tokens
        return Ticket(_uid(key), key, cost_tokens, now)

    def settle(self, ticket: Ticket, usage: Usage) -> None:
        """Give a request's place back and count what it really cost. Call it once."""
        meter, epoch = self._meter(ticket.key), self._epoch()
        real_tokens = usage.prompt_tokens + usage.completion_tokens
        meter.running -= 1
        meter.reserved_tokens -= ticket.cost_tokens
        meter.tokens = amend(meter.tokens, ticket.taken_seconds, real_tokens - ticket.cost_tokens)
        meter.pending = meter.pending.plus(
            UsageDelta(
                1,
                usage.prompt_tokens,
                usage.completion_tokens,
                epoch,
                real_tokens,
                current_span(ticket.key.spec, epoch),
            )
        )

    def limit_headers(self, key: ApiKey) -> tuple[RawHeader, ...]:
        """Return how a key stands, as OpenAI's headers."""
        meter = self._meter(key)
        taken = Taken(meter.requests, meter.tokens)
        return plan_limit_headers(key.spec.limits, taken, self._clock())

    def begin_reports(self) -> tuple[Report, ...]:
        """Return what is to be reported; each must come back to `reported` or `failed`."""
        reports = []
        for uid, meter in self._meters.items():
            if meter.pending.requests and not meter.sending.requests:
                meter.sending, meter.pending = meter.pending, NOTHING_USED
                reports.append(Report(uid, meter.name, meter.sending))
        return tuple(reports)

    def reported(self, report: Report, written: KeyUsage) -> None:
        """Note that a report is in the key's status, which now says `written`."""
        if meter := self._meters.get(report.uid):
            meter.sending, meter.written = NOTHING_USED, written

    def failed(self, report: Report) -> None:
        """Take a report back, to be made again with what comes."""
        if meter := self._meters.get(report.uid):
            meter.sending, meter.pending = NOTHING_USED, report.delta.plus(meter.pending)

    def forget_gone(self, uids: Collection[str]) -> None:
        """Forget the keys that are no longer declared, once nothing of theirs runs."""
        for uid, meter in tuple(self._meters.items()):
            if uid not in uids and not meter.running:
                del self._meters[uid]

    @property
    def running(self) -> Mapping[str, int]:
        """Requests being served, by key name."""
        return {meter.name: meter.running for meter in self._meters.values()}

    def _meter(self, key: ApiKey) -> _Meter:
        uid = _uid(key)
        meter = self._meters.get(uid)
        if meter is None:
            meter = self._meters[uid] = _Meter(str(key.metadata.name))
        return meter

    def _taken(self, key: ApiKey, meter: _Meter, epoch: float) -> Taken:
        span = current_span(key.spec, epoch)
        # The newer of what was seen and what was written; within a period it only grows.
        told = max(used_in(key.status.usage, span), used_in(meter.written, span))
        used = told + meter.used_in(span) + meter.reserved_tokens
        return Taken(meter.requests, meter.tokens, meter.running, used)


def _uid(key: ApiKey) -> str:
    return key.metadata.uid or str(key.metadata.name)
