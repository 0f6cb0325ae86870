"""Quantities and durations: what they mean, what is refused and with which hint (B85)."""

import pytest
from pydantic import TypeAdapter, ValidationError

from manifests.units import (
    GIB,
    KIB,
    MIB,
    Duration,
    Quantity,
    format_bytes,
    format_duration,
    parse_duration,
    parse_quantity,
)


@pytest.mark.parametrize(
    ("text", "expected_bytes"),
    [
        ("8Gi", 8 * GIB),
        ("8G", 8 * 10**9),
        ("8192Mi", 8 * GIB),
        ("8589934592", 8 * GIB),
        (8589934592, 8 * GIB),
        ("1.5Gi", 3 * GIB // 2),
        ("2.85Gi", 3060164199),
        (".5Gi", GIB // 2),
        ("1.", 1),
        ("1.Gi", GIB),
        ("0.1", 1),
        ("1e3", 1000),
        ("129e6", 129_000_000),
        ("1e-3", 1),
        ("1E3", 1000),
        ("1E", 10**18),
        ("1Ei", 1 << 60),
        ("+1Gi", GIB),
        ("1k", 1000),
        ("1Ki", KIB),
        ("1.5T", 15 * 10**11),
        ("0", 0),
        (0, 0),
        ("9223372036854775807", (1 << 63) - 1),
    ],
)
def test_a_quantity_means_the_bytes_of_its_unit_with_fractions_rounded_up(
    text: str | int, expected_bytes: int
) -> None:
    assert parse_quantity(text) == expected_bytes


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("8GB", "did you mean 8Gi (binary) or G (decimal)?"),
        ("8g", "did you mean 8Gi (binary) or G (decimal)?"),
        ("8K", "did you mean 8Ki (binary) or k (decimal)?"),
        ("8GiB", "did you mean 8Gi?"),
        ("6gib", "did you mean 6Gi?"),
        ("8gi", "did you mean 8Gi?"),
        ("8 Gi", "did you mean 8Gi?"),
        ("1200mi", "did you mean 1200Mi?"),
        ("64m", "did you mean 64Mi?"),
        ("80%", "units are Ki Mi Gi Ti"),
        ("9Ei", "larger than 8Ei"),
        ("1e30", "larger than 8Ei"),
        ("9223372036854775808", "larger than 8Ei"),
        (1 << 63, "larger than 8Ei"),
        ("-1Gi", "must not be negative"),
        (-1, "must not be negative"),
        ("", "write for example 8Gi"),
        ("Gi", "write for example 8Gi"),
        ("inf", "write for example 8Gi"),
        ("٨Gi", "write for example 8Gi"),
        ("1_000", "unknown unit"),
        ("1,5Gi", "unknown unit"),
        ("8Gi\n", "did you mean 8Gi?"),
        ("9" * 5000, "longer than 40 characters"),
    ],
)
def test_a_wrong_quantity_is_refused_with_a_hint(text: str | int, hint: str) -> None:
    with pytest.raises(ValueError, match=r".*") as refused:
        parse_quantity(text)
    assert hint in str(refused.value)


@pytest.mark.parametrize(
    ("text", "expected_seconds"),
    [
        ("90s", 90),
        ("5m", 300),
        ("1h30m", 5400),
        ("500ms", 0.5),
        ("1.5h", 5400),
        ("2d", 172800),
        ("0", 0),
        ("0s", 0),
        ("1d12h", 129600),
        ("36500d", 36500 * 86400),
    ],
)
def test_a_duration_means_the_seconds_of_its_parts(text: str, expected_seconds: float) -> None:
    assert parse_duration(text) == expected_seconds


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("300", "did you mean 300s?"),
        ("5 m", "did you mean 5m?"),
        ("5min", "did you mean 5m?"),
        ("1 hour 30 minutes", "did you mean 1h30m?"),
        ("5M", "did you mean 5m?"),
        ("", "write for example"),
        ("5", "did you mean 5s?"),
        ("5w", "write for example"),
        ("s", "write for example"),
        ("1h-5m", "write for example"),
        ("-5m", "must not be negative"),
        ("36501d", "longer than 36500d"),
        ("9" * 39 + "d", "longer than 36500d"),
        ("9" * 400 + "d", "longer than 40 characters"),
    ],
)
def test_a_wrong_duration_is_refused_with_a_hint(text: str, hint: str) -> None:
    with pytest.raises(ValueError, match=r".*") as refused:
        parse_duration(text)
    assert hint in str(refused.value)


def test_equal_meanings_are_equal_and_keep_their_spelling() -> None:
    assert Quantity.parse("8Gi") == Quantity.parse("8192Mi")
    assert hash(Quantity.parse("8Gi")) == hash(Quantity.parse("8192Mi"))
    assert Quantity.parse("8Gi") != Quantity.parse("8G")
    assert str(Quantity.parse("8192Mi")) == "8192Mi"
    assert Duration.parse("90s") == Duration.parse("1m30s")
    assert str(Duration.parse("1m30s")) == "1m30s"


def test_a_quantity_goes_through_json_as_it_was_written() -> None:
    adapter = TypeAdapter(Quantity)
    assert adapter.dump_json(adapter.validate_json('"1.5Gi"')) == b'"1.5Gi"'
    assert adapter.dump_json(adapter.validate_json("1024")) == b"1024"
    assert TypeAdapter(Duration).dump_json(Duration.parse("5m")) == b'"5m"'


@pytest.mark.parametrize("body", ["true", "[]", "{}", "null", "1.5", "1e3"])
def test_a_quantity_of_another_json_type_is_refused(body: str) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(Quantity).validate_json(body)


@pytest.mark.parametrize("body", ["true", "[]", "{}", "null", "1.5", "300"])
def test_a_duration_of_another_json_type_is_refused(body: str) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(Duration).validate_json(body)


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "0.98 KiB"),
        (1024, "1.00 KiB"),
        (10 * KIB, "10.0 KiB"),
        (10 * KIB - 1, "10.0 KiB"),
        (100 * KIB - 1, "100 KiB"),
        (999 * KIB, "999 KiB"),
        (1000 * KIB - 1, "0.98 MiB"),
        (1536 * MIB, "1.50 GiB"),
        (48 * GIB, "48.0 GiB"),
        (512 * GIB, "512 GiB"),
        (1 << 62, "4.00 EiB"),
        (-3 * GIB, "-3.00 GiB"),
    ],
)
def test_bytes_are_shown_with_three_digits_and_a_binary_unit(count: int, shown: str) -> None:
    assert format_bytes(count) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (-5, "0s"),
        (0.9, "0s"),
        (119, "119s"),
        (120, "2m"),
        (150, "2m30s"),
        (600, "10m"),
        (10799, "179m"),
        (3 * 3600, "3h"),
        (3 * 3600 + 60, "3h1m"),
        (8 * 3600 + 60, "8h"),
        (48 * 3600, "2d"),
        (51 * 3600, "2d3h"),
        (8 * 86400 + 3600, "8d"),
        (800 * 86400, "2y70d"),
        (3650 * 86400, "10y"),
    ],
)
def test_an_age_is_shown_as_kubectl_shows_it(seconds: float, shown: str) -> None:
    assert format_duration(seconds) == shown
