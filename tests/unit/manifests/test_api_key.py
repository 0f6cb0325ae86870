"""The kind ApiKey: what may be declared, and how usage adds up."""

import hashlib
import itertools
from datetime import UTC, datetime
from typing import Any

import pytest

from manifests.kinds.api_key import ApiKeySpec, Budget, KeyUsage, Period, hash_secret, same_hash
from manifests.kinds.key_usage import (
    Span,
    UsageDelta,
    add_usage,
    current_span,
    period_bounds,
    used_in,
)
from manifests.kinds.scheme import dump_object, parse_object, resolve_kind
from manifests.reading.validate import validate_object

API = "mlxfleet.dev/v1alpha1"
HASH = hashlib.sha256(b"mlxf-secret").hexdigest()


def key(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": API,
        "kind": "ApiKey",
        "metadata": {"name": "alice"},
        "spec": {"hash": HASH, **spec},
    }


def faults(**spec: Any) -> dict[str, str]:
    return {error.path: error.text for error in validate_object(key(**spec))}


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


@pytest.mark.parametrize("word", ["ApiKey", "apikeys", "key", "keys", "KEY"])
def test_people_may_call_the_kind_by_short_names(word: str) -> None:
    kind = resolve_kind(word)
    assert kind is not None
    assert kind.name == "ApiKey"


def test_a_secret_is_stored_as_its_hash_only() -> None:
    assert hash_secret("mlxf-secret") == HASH
    assert same_hash(HASH, hash_secret("mlxf-secret"))
    assert not same_hash(HASH, hash_secret("mlxf-Secret"))


def test_defaults_are_stored_and_a_whole_manifest_is_valid() -> None:
    assert faults() == {}
    assert dump_object(parse_object(key()))["spec"] == {
        "hash": HASH,
        "prefix": "",
        "models": [],
        "priority": 0,
        "limits": {},
        "disabled": False,
    }
    whole = {
        "prefix": "mlxf-abc",
        "models": ["qwen*", "llama"],
        "priority": -1000,
        "limits": {"requestsPerMinute": 60, "tokensPerMinute": 100000, "concurrentRequests": 4},
        "budget": {"tokens": 5000000, "period": "week"},
        "expires": "2030-01-31T00:00:00Z",
        "disabled": True,
        "cacheIsolation": "tenant",
    }
    assert faults(**whole) == {}


def test_a_plain_secret_is_refused_with_the_way_out() -> None:
    said = faults(secret="mlxf-secret")
    assert list(said) == ["spec.secret"]
    assert "never stored" in said["spec.secret"]
    assert "mlxctl create key NAME" in said["spec.secret"]
    assert "mlxf-secret" not in said["spec.secret"]


def test_every_error_of_a_key_is_told_at_once() -> None:
    said = faults(
        hash="mlxf-secret",
        prefix="mlxf-abcdef",
        models=[""],
        priority=1001,
        limits={"requestsPerMinute": 0, "rpm": 5},
        budget={"period": "year"},
        expires="tomorrow",
        cacheIsolation="none",
    )
    assert set(said) == {
        "spec.hash",
        "spec.prefix",
        "spec.models[0]",
        "spec.priority",
        "spec.limits.requestsPerMinute",
        "spec.limits.rpm",
        "spec.budget.tokens",
        "spec.budget.period",
        "spec.expires",
        "spec.cacheIsolation",
    }
    assert "64 lower-case hex digits" in said["spec.hash"]
    assert '"2030-01-31T00:00:00Z"' in said["spec.expires"]
    assert "at most 1000" in said["spec.priority"]


@pytest.mark.parametrize(
    ("patterns", "name", "allowed"),
    [
        ([], "anything", True),
        (["llama"], "llama", True),
        (["llama"], "llama-2", False),
        (["llama*", "qwen"], "llama-2", True),
        (["*"], "org/name", True),
        (["Llama"], "llama", False),
    ],
)
def test_models_are_named_by_patterns(patterns: list[str], name: str, allowed: bool) -> None:
    assert ApiKeySpec(hash=HASH, models=patterns).may_use(name) is allowed


@pytest.mark.parametrize(
    ("period", "begins", "ends"),
    [
        (Period.DAY, "2026-11-28T00:00:00", "2026-11-29T00:00:00"),
        (Period.WEEK, "2026-11-23T00:00:00", "2026-11-30T00:00:00"),
        (Period.MONTH, "2026-11-01T00:00:00", "2026-12-01T00:00:00"),
    ],
)
def test_periods_begin_at_midnight_on_monday_and_on_the_first(
    period: Period, begins: str, ends: str
) -> None:
    assert period_bounds(period, at("2026-11-28T13:14:15")) == (at(begins), at(ends))
    assert period_bounds(period, at(begins))[0] == at(begins)
    assert period_bounds(period, at(ends))[0] == at(ends)


def spent(tokens: int, span: Span) -> UsageDelta:
    return UsageDelta(1, tokens, 0, 5.0, tokens, span)


def test_usage_of_several_gateways_adds_up_in_any_order() -> None:
    span = Span("day", "2026-11-28T00:00:00Z")
    deltas = [spent(tokens, span) for tokens in (1, 20, 300)]
    sums = set()
    for order in itertools.permutations(deltas):
        usage = KeyUsage()
        for delta in order:
            usage = add_usage(usage, delta)
        sums.add(usage.model_dump_json())
    assert len(sums) == 1
    assert (usage.requests, usage.prompt_tokens, usage.budget_used) == (3, 321, 321)
    assert add_usage(KeyUsage(), deltas[0].plus(deltas[1]).plus(deltas[2])) == usage


def test_a_new_period_begins_at_nothing_and_a_straggler_does_not_bring_the_old_one_back() -> None:
    old, new = Span("day", "2026-11-27T00:00:00Z"), Span("day", "2026-11-28T00:00:00Z")
    usage = add_usage(add_usage(KeyUsage(), spent(10, old)), spent(3, new))
    assert (usage.budget_used, usage.period_start, usage.prompt_tokens) == (3, new.start, 13)
    assert add_usage(usage, spent(7, old)).budget_used == 3
    assert used_in(usage, old) == 0


def test_another_kind_of_period_begins_to_count_though_it_began_earlier() -> None:
    day, month = Span("day", "2026-11-28T00:00:00Z"), Span("month", "2026-11-01T00:00:00Z")
    usage = add_usage(add_usage(KeyUsage(), spent(10, day)), spent(3, month))
    assert (usage.budget_used, usage.period) == (3, "month")
    assert add_usage(usage, spent(4, month)).budget_used == 7


def test_without_a_budget_nothing_is_counted_against_one() -> None:
    spec = ApiKeySpec(hash=HASH)
    assert current_span(spec, 0.0) == Span()
    usage = add_usage(KeyUsage(), UsageDelta(1, 5, 6, 7.0, 11, Span()))
    assert (usage.prompt_tokens, usage.completion_tokens, usage.period) == (5, 6, "")
    assert current_span(ApiKeySpec(hash=HASH, budget=Budget(tokens=1)), at("2026-11-28")).start == (
        "2026-11-01T00:00:00Z"
    )
