"""Whether a key's limits and budget let a request in, and what its client is told; pure.

Called by `quotas`, which keeps the state.
"""

import math
from dataclasses import dataclass

from controller.gateway.http.asgi import RawHeader
from controller.gateway.keys.rate_window import EMPTY, Standing, Window, standing, wait_seconds
from manifests.errors import Code, Refusal, Retryable
from manifests.kinds.api_key import ApiKey, Budget, Limits
from manifests.kinds.key_usage import period_bounds
from manifests.times import format_time

_BUSY_RETRY_SECONDS = 1


@dataclass(frozen=True, slots=True)
class Taken:
    """What one key has in use. Units: tokens.

    `budget_tokens` are those used in the budget's period and those reserved by running requests.
    """

    requests: Window = EMPTY
    tokens: Window = EMPTY
    running: int = 0
    budget_tokens: int = 0


def judge_uncounted(key: ApiKey, taken: Taken, now: float, epoch: float) -> Refusal | None:
    """Return why no request of a key may start now, whatever it would cost, or None.

    `now` is of the windows' clock, `epoch` in epoch seconds.
    """
    budget = key.spec.budget
    if budget is not None and taken.budget_tokens >= budget.tokens:
        return _refuse_budget(budget, 0, epoch, "")
    return _judge_requests(key.spec.limits, taken, now)


def judge_limits(limits: Limits, taken: Taken, cost_tokens: int, now: float) -> Refusal | None:
    """Return why a request may not start now, or None. `now` is of the windows' clock."""
    refusal = _judge_requests(limits, taken, now)
    if refusal is None and limits.tokens_per_minute is not None:
        return _judge_tokens(limits.tokens_per_minute, taken.tokens, cost_tokens, now)
    return refusal


def _judge_requests(limits: Limits, taken: Taken, now: float) -> Refusal | None:
    most = limits.concurrent_requests
    if most is not None and taken.running >= most:
        message = f"Limit reached: {most} requests at the same time."
        return _later(message, "Wait for one to end.", _BUSY_RETRY_SECONDS)
    if limits.requests_per_minute is not None:
        wait = wait_seconds(taken.requests, limits.requests_per_minute, now, 1)
        if wait:
            message = f"Limit reached: {limits.requests_per_minute} requests per minute."
            return _later(message, "Send fewer.", wait)
    return None


def _judge_tokens(limit: int, tokens: Window, cost_tokens: int, now: float) -> Refusal | None:
    wait = wait_seconds(tokens, limit, now, cost_tokens)
    need = f"this request may take up to {cost_tokens}"
    if wait is None:
        return Refusal(
            Code.RATE_LIMIT_EXCEEDED,
            f"Too large for the limit of {limit} tokens per minute: {need}.",
            hint="Shorten the prompt or lower max_tokens.",
        )
    if not wait:
        return None
    left = standing(tokens, limit, now).remaining
    message = f"Limit reached: {limit} tokens per minute, {left} are left and {need}."
    return _later(message, "Send less, or lower max_tokens.", wait)


def judge_budget(key: ApiKey, taken: Taken, cost_tokens: int, now: float) -> Refusal | None:
    """Return why a key's budget does not allow a request, or None. `now` is epoch seconds."""
    budget = key.spec.budget
    if budget is None or taken.budget_tokens + cost_tokens <= budget.tokens:
        return None
    left = max(0, budget.tokens - taken.budget_tokens)
    return _refuse_budget(budget, left, now, f", and this request may take up to {cost_tokens}")


def _refuse_budget(budget: Budget, left: int, now: float, need: str) -> Refusal:
    anew = format_time(period_bounds(budget.period, now)[1])
    return Refusal(
        Code.INSUFFICIENT_QUOTA,
        f"The budget of {budget.tokens} tokens a {budget.period} has {left} left{need}.",
        hint=f"It begins anew at {anew}." + (" Lower max_tokens." if left else ""),
    )


def plan_limit_headers(limits: Limits, taken: Taken, now: float) -> tuple[RawHeader, ...]:
    """Return OpenAI's rate limit headers for the limits that are set."""
    headers: list[RawHeader] = []
    if limits.requests_per_minute is not None:
        headers += _headers("requests", standing(taken.requests, limits.requests_per_minute, now))
    if limits.tokens_per_minute is not None:
        headers += _headers("tokens", standing(taken.tokens, limits.tokens_per_minute, now))
    return tuple(headers)


def format_reset(seconds: float) -> str:
    """Return a wait as OpenAI writes it: `850ms`, `7s`, `1m1s`."""
    if 0 < seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    minutes, rest = divmod(math.ceil(seconds), 60)
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"


def _headers(what: str, at: Standing) -> list[RawHeader]:
    values = {
        "limit": str(at.limit),
        "remaining": str(at.remaining),
        "reset": format_reset(at.reset_seconds),
    }
    return [
        (f"x-ratelimit-{name}-{what}".encode("ascii"), value.encode("ascii"))
        for name, value in values.items()
    ]


def _later(message: str, hint: str, seconds: float) -> Refusal:
    return Refusal(
        Code.RATE_LIMIT_EXCEEDED,
        message,
        Retryable.LATER,
        hint=hint,
        retry_after_seconds=max(1, math.ceil(seconds)),
    )
