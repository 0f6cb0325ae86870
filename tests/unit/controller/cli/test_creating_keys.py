"""The flags of `mlxctl create key`, from values alone."""

import pytest

from controller.cli.creating import KeyFlags, key_object, parse_budget, parse_expiry
from controller.cli.exits import CliError, Exit
from manifests.reading.validate import validate_object

NOW = 1_790_553_600.0  # 2026-09-28T00:00:00Z


def test_every_flag_is_a_field_that_the_kind_takes() -> None:
    flags = KeyFlags(
        models="qwen*, assistant",
        rpm=60,
        tpm=20_000,
        concurrent=4,
        budget="2M/day",
        expires="30d",
        priority=10,
    )
    obj = key_object("alice", "mlxf-secret", flags.spec(NOW))
    assert not validate_object(obj)
    assert {name: obj["spec"][name] for name in ("models", "limits", "budget", "expires")} == {
        "models": ["qwen*", "assistant"],
        "limits": {
            "requestsPerMinute": 60,
            "tokensPerMinute": 20_000,
            "concurrentRequests": 4,
        },
        "budget": {"tokens": 2_000_000, "period": "day"},
        "expires": "2026-10-28T00:00:00Z",
    }


def test_without_flags_nothing_is_limited() -> None:
    assert KeyFlags().spec(NOW) == {"models": [], "priority": 0, "limits": {}}


@pytest.mark.parametrize(
    ("text", "tokens", "period"),
    [("500000", 500_000, "month"), ("1.5M/week", 1_500_000, "week"), ("20k/day", 20_000, "day")],
)
def test_a_budget_is_tokens_and_a_period(text: str, tokens: int, period: str) -> None:
    assert parse_budget(text) == {"tokens": tokens, "period": period}


@pytest.mark.parametrize("text", ["", "0", "-5", "many", "5/", "5/year", "5 a day", "/day"])
def test_a_bad_budget_is_told_what_to_write(text: str) -> None:
    with pytest.raises(CliError) as caught:
        parse_budget(text)
    assert caught.value.code is Exit.USAGE
    assert "2M/day" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("12h", "2026-09-28T12:00:00Z"),
        ("30d", "2026-10-28T00:00:00Z"),
        ("2030-01-31T00:00:00Z", "2030-01-31T00:00:00Z"),
    ],
)
def test_an_expiry_is_a_time_or_how_long_from_now(text: str, moment: str) -> None:
    assert parse_expiry(text, NOW) == moment


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("tomorrow", "not understood"),
        ("2030-01-31", "not understood"),
        ("-5d", "not understood"),
        ("2020-01-31T00:00:00Z", "over already"),
    ],
)
def test_a_bad_expiry_is_told_what_to_write(text: str, fault: str) -> None:
    with pytest.raises(CliError) as caught:
        parse_expiry(text, NOW)
    assert fault in caught.value.message
    assert "30d" in caught.value.hint
