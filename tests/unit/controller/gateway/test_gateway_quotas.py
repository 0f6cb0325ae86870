"""What keys have in use: taken at the entry, settled at the end, reported to their status."""

import json
from typing import Any

import pytest

from controller.gateway.http.sse import Usage
from controller.gateway.keys.limits import format_reset
from controller.gateway.keys.quotas import Quotas, Ticket
from controller.gateway.keys.usage_writer import UsageWriter
from manifests.errors import Code, Refusal
from manifests.kinds.api_key import ApiKey, KeyUsage, hash_secret
from tests.support.scripted_source import ScriptedSource, api_key

MONDAY = 1_790_553_600.0  # 2026-09-28


class Clocks:
    """Both clocks, moved by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def epoch(self) -> float:
        return MONDAY - 1000 + self.now


@pytest.fixture
def clocks() -> Clocks:
    return Clocks()


@pytest.fixture
def quotas(clocks: Clocks) -> Quotas:
    return Quotas(clocks.monotonic, clocks.epoch)


def key(status: Any = None, **spec: Any) -> ApiKey:
    raw = {
        "kind": "ApiKey",
        "metadata": {"name": "alice", "uid": "uid-alice"},
        "spec": {"hash": hash_secret("s"), **spec},
        "status": status or {},
    }
    return ApiKey.model_validate_json(json.dumps(raw))


def admit(quotas: Quotas, of: ApiKey, cost: int = 10) -> Ticket:
    ticket = quotas.admit(of, cost)
    assert isinstance(ticket, Ticket), ticket
    return ticket


def refuse(quotas: Quotas, of: ApiKey, cost: int = 10) -> Refusal:
    refusal = quotas.admit(of, cost)
    assert isinstance(refusal, Refusal)
    return refusal


def headers(quotas: Quotas, of: ApiKey) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in quotas.limit_headers(of)}


def test_requests_beyond_the_limit_are_told_when_to_come_back(
    quotas: Quotas, clocks: Clocks
) -> None:
    two = key(limits={"requestsPerMinute": 2})
    admit(quotas, two)
    clocks.now += 10
    admit(quotas, two)
    refusal = refuse(quotas, two)
    assert (refusal.code, refusal.http_status) == (Code.RATE_LIMIT_EXCEEDED, 429)
    assert refusal.retry_after_seconds == 51
    assert headers(quotas, two) == {
        "x-ratelimit-limit-requests": "2",
        "x-ratelimit-remaining-requests": "0",
        "x-ratelimit-reset-requests": "1m1s",
    }
    clocks.now += 51
    admit(quotas, two)
    refuse(quotas, two)


def test_tokens_are_reserved_at_the_entry_and_settled_by_what_they_were(quotas: Quotas) -> None:
    hundred = key(limits={"tokensPerMinute": 100})
    ticket = admit(quotas, hundred, 80)
    assert refuse(quotas, hundred, 30).retry_after_seconds == 61
    quotas.settle(ticket, Usage(15, 5))
    assert headers(quotas, hundred)["x-ratelimit-remaining-tokens"] == "80"
    admit(quotas, hundred, 80)


def test_an_answer_longer_than_foreseen_is_paid_by_those_after_it(quotas: Quotas) -> None:
    hundred = key(limits={"tokensPerMinute": 100})
    quotas.settle(admit(quotas, hundred, 50), Usage(30, 300))
    assert headers(quotas, hundred)["x-ratelimit-remaining-tokens"] == "0"
    refuse(quotas, hundred, 1)


def test_a_request_larger_than_the_limit_is_not_told_to_come_back(quotas: Quotas) -> None:
    refusal = refuse(quotas, key(limits={"tokensPerMinute": 100}), 101)
    assert refusal.retry_after_seconds is None
    assert "max_tokens" in refusal.hint


def test_places_are_given_back(quotas: Quotas) -> None:
    one = key(limits={"concurrentRequests": 1})
    ticket = admit(quotas, one)
    assert "at the same time" in refuse(quotas, one).message
    quotas.settle(ticket, Usage())
    admit(quotas, one)


def test_a_refused_request_takes_nothing(quotas: Quotas) -> None:
    both = key(limits={"requestsPerMinute": 5, "tokensPerMinute": 100})
    before = headers(quotas, both)
    refuse(quotas, both, 101)
    assert headers(quotas, both) == before
    assert quotas.begin_reports() == ()


def test_a_budget_counts_what_is_running_used_and_reported_and_begins_anew(
    quotas: Quotas, clocks: Clocks
) -> None:
    daily = key(budget={"tokens": 100, "period": "day"})
    running = admit(quotas, daily, 60)
    refusal = refuse(quotas, daily, 41)
    assert (refusal.code, refusal.http_status) == (Code.INSUFFICIENT_QUOTA, 429)
    assert "2026-09-29T00:00:00Z" in refusal.hint
    quotas.settle(running, Usage(20, 10))
    [report] = quotas.begin_reports()
    refuse(quotas, daily, 71)
    quotas.settle(admit(quotas, daily, 70), Usage(30, 0))
    status = KeyUsage(budget_used=30, period="day", period_start="2026-09-28T00:00:00Z")
    quotas.reported(report, status)
    # What was written counts before the informer has seen it.
    refuse(quotas, daily, 41)
    admit(quotas, daily, 40)
    clocks.now += 24 * 3600
    admit(quotas, daily, 60)


def test_a_new_gateway_goes_on_from_the_status(quotas: Quotas) -> None:
    usage = {"budgetUsed": 95, "period": "week", "periodStart": "2026-09-28T00:00:00Z"}
    weekly = key({"usage": usage}, budget={"tokens": 100, "period": "week"})
    refuse(quotas, weekly, 6)
    admit(quotas, weekly, 5)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (0.25, "250ms"), (6.2, "7s"), (60, "1m0s"), (61, "1m1s")]
)
def test_waits_are_written_as_openai_writes_them(seconds: float, text: str) -> None:
    assert format_reset(seconds) == text


async def test_two_gateways_lose_nothing_though_they_write_at_the_same_time(
    clocks: Clocks,
) -> None:
    source = ScriptedSource()
    source.put("apikeys", api_key("alice", "s", budget={"tokens": 1000, "period": "day"}))
    mine = key(budget={"tokens": 1000, "period": "day"})
    first, second = (Quotas(clocks.monotonic, clocks.epoch) for _ in range(2))
    for quotas, tokens in ((first, 5), (second, 7)):
        quotas.settle(admit(quotas, mine), Usage(tokens, 1))
    other = UsageWriter(source, second, 1.0)
    steps: list[Any] = []

    def interfere() -> None:
        source.before_patch = lambda: None
        # Runs to its end before the first patch is looked at.
        writing = other.write_all()
        with pytest.raises(StopIteration):
            while True:
                writing.send(None)
        steps.append("other wrote")

    source.before_patch = interfere
    await UsageWriter(source, first, 1.0).write_all()
    stored = (await source.get("apikeys", "alice"))["status"]["usage"]
    assert steps == ["other wrote"]
    assert (stored["requests"], stored["promptTokens"], stored["completionTokens"]) == (2, 12, 2)
    assert (stored["budgetUsed"], stored["lastUsed"]) == (14, "2026-09-28T00:00:00Z")
    assert first.begin_reports() == second.begin_reports() == ()


async def test_what_could_not_be_written_is_written_next_time(clocks: Clocks) -> None:
    source, quotas = ScriptedSource(), Quotas(clocks.monotonic, clocks.epoch)
    source.put("apikeys", api_key("alice", "s"))
    writer = UsageWriter(source, quotas, 1.0)
    quotas.settle(admit(quotas, key()), Usage(5, 1))
    source.down = True
    await writer.write_all()
    quotas.settle(admit(quotas, key()), Usage(5, 1))
    source.down = False
    await writer.write_all()
    await writer.write_all()
    stored = (await source.get("apikeys", "alice"))["status"]["usage"]
    assert (stored["requests"], stored["promptTokens"]) == (2, 10)


async def test_a_key_that_became_unreadable_does_not_end_the_writer(clocks: Clocks) -> None:
    source, quotas = ScriptedSource(), Quotas(clocks.monotonic, clocks.epoch)
    source.put("apikeys", api_key("alice", "s", hash="later"))
    quotas.settle(admit(quotas, key()), Usage(5, 1))
    await UsageWriter(source, quotas, 1.0).write_all()
    assert len(quotas.begin_reports()) == 1


async def test_usage_of_a_deleted_key_is_not_given_to_its_successor(clocks: Clocks) -> None:
    source, quotas = ScriptedSource(), Quotas(clocks.monotonic, clocks.epoch)
    successor = api_key("alice", "t")
    successor["metadata"]["uid"] = "another"
    source.put("apikeys", successor)
    quotas.settle(admit(quotas, key()), Usage(5, 1))
    await UsageWriter(source, quotas, 1.0).write_all()
    assert (await source.get("apikeys", "alice"))["status"] == {}
    assert quotas.begin_reports() == ()


def test_what_lets_nothing_in_is_told_before_the_cost_is_known(
    quotas: Quotas, clocks: Clocks
) -> None:
    """Full minutes and places, and spent budgets; never what a small request may still have."""
    fast = key(limits={"requestsPerMinute": 1, "tokensPerMinute": 10})
    assert quotas.refuse_uncounted(fast) is None
    quotas.settle(admit(quotas, fast, 10), Usage(5, 5))
    told = quotas.refuse_uncounted(fast)
    assert told is not None
    assert told == refuse(quotas, fast, 0)
    clocks.now += 62
    assert quotas.refuse_uncounted(fast) is None


def test_a_budget_lets_in_until_it_is_spent(quotas: Quotas) -> None:
    bounded = key(budget={"tokens": 40, "period": "month"})
    first = admit(quotas, bounded, 39)
    assert quotas.refuse_uncounted(bounded) is None
    second = admit(quotas, bounded, 1)
    told = quotas.refuse_uncounted(bounded)
    assert told is not None
    assert told.code is Code.INSUFFICIENT_QUOTA
    assert "has 0 left." in told.message
    for ticket in (first, second):
        quotas.settle(ticket, Usage(1, 1))
    assert quotas.refuse_uncounted(bounded) is None


def test_a_look_takes_nothing(quotas: Quotas) -> None:
    alone = key(limits={"requestsPerMinute": 1, "concurrentRequests": 1})
    for _ in range(5):
        assert quotas.refuse_uncounted(alone) is None
    admit(quotas, alone)
    assert quotas.refuse_uncounted(alone) is not None
