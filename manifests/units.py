"""Kubernetes quantities and durations, kept as the user wrote them.

Owns parsing and formatting of byte counts and time spans. A value remembers its text, so what
was applied is what `get` returns; two values are equal when their meaning is.
"""

import math
import re
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import PydanticCustomError, core_schema

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30

_SUFFIX_BYTES: dict[str, int] = {
    "": 1,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "P": 10**15,
    "E": 10**18,
    "Ki": 1 << 10,
    "Mi": 1 << 20,
    "Gi": 1 << 30,
    "Ti": 1 << 40,
    "Pi": 1 << 50,
    "Ei": 1 << 60,
}
_MAX_BYTES = (1 << 63) - 1
_QUANTITY = re.compile(r"(?P<number>[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?P<suffix>.*)", re.ASCII | re.S)
_EXPONENT = re.compile(r"[eE](?P<sign>[+-]?)(?P<digits>[0-9]{1,3})", re.ASCII)
_DURATION_PART = re.compile(r"(?P<number>[0-9]+(?:\.[0-9]+)?)(?P<unit>ms|s|m|h|d)", re.ASCII)
_LONGEST_TEXT = 40
_LONGEST_SECONDS = 36500 * 86400
_DURATION_WORDS = {
    **dict.fromkeys(("ms", "msec", "msecs", "millisecond", "milliseconds"), "ms"),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), "s"),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), "m"),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), "h"),
    **dict.fromkeys(("d", "day", "days"), "d"),
}
_UNIT_SECONDS = {
    "ms": Fraction(1, 1000),
    "s": Fraction(1),
    "m": Fraction(60),
    "h": Fraction(3600),
    "d": Fraction(86400),
}


def _suggest_suffix(suffix: str) -> str:
    """Name the valid suffix that a mistyped one most likely meant."""
    bare = suffix.strip()
    folded = bare.lower().removesuffix("b").removesuffix("ytes").removesuffix("byte")
    known = {name.lower(): name for name in _SUFFIX_BYTES if name}
    if folded in {"kib", "ki"}:
        return "Ki"
    # "8GB" on a Mac nearly always means the binary unit the machine is sold by.
    if folded in known and not folded.endswith("i"):
        binary = known[folded + "i"]
        decimal = known[folded]
        return f"{binary} (binary) or {decimal} (decimal)"
    return known.get(folded, "")


def parse_quantity(text: str | int) -> int:
    """Return the whole bytes that a Kubernetes quantity stands for; fractions round up.

    Units: suffixes k, M, G, T, P, E are powers of 1000; Ki, Mi, Gi, Ti, Pi, Ei of 1024.
    Raises: ValueError naming the fault and the nearest valid spelling.
    """
    if isinstance(text, int):
        if text < 0:
            raise ValueError(f"must not be negative: {text}")
        if text > _MAX_BYTES:
            raise ValueError("larger than 8Ei - 1 bytes")
        return text
    if len(text) > _LONGEST_TEXT:
        raise ValueError(f"not a quantity: longer than {_LONGEST_TEXT} characters")
    if text.startswith("-"):
        raise ValueError(f"must not be negative: {text!r}")
    match = _QUANTITY.fullmatch(text.removeprefix("+"))
    if match is None:
        raise ValueError(f"not a quantity: {text!r}; write for example 8Gi, 500M or 1073741824")
    number, suffix = Fraction(match["number"].rstrip(".") or "0"), match["suffix"]
    exponent = _EXPONENT.fullmatch(suffix)
    if exponent is not None:
        power = int(exponent["digits"]) * (-1 if exponent["sign"] == "-" else 1)
        total = number * Fraction(10) ** power
    elif suffix in _SUFFIX_BYTES:
        total = number * _SUFFIX_BYTES[suffix]
    elif suffix == "m":
        raise ValueError(f"{text!r} means thousandths of a byte; did you mean {match['number']}Mi?")
    else:
        meant = _suggest_suffix(suffix)
        hint = f"; did you mean {match['number']}{meant}?" if meant else ""
        raise ValueError(
            f"unknown unit {suffix!r} in {text!r}{hint}; units are Ki Mi Gi Ti, k M G T"
        )
    whole = math.ceil(total)
    if whole > _MAX_BYTES:
        raise ValueError(f"{text!r} is larger than 8Ei - 1 bytes")
    return whole


def _suggest_duration(text: str) -> str:
    """Spell a duration such as `5 min` or `2Hours` as this project does, or return nothing."""
    spelled = ""
    for number, word in re.findall(r"([0-9.]+)[ ]*([A-Za-z]+)[ ]*", text, re.ASCII):
        unit = _DURATION_WORDS.get(word.lower())
        if unit is None:
            return ""
        spelled += number + unit
    bare = re.sub(r"[0-9.A-Za-z ]", "", text, flags=re.ASCII)
    return spelled if not bare and spelled != text else ""


def parse_duration(text: str) -> float:
    """Return the seconds that a duration such as `90s`, `5m` or `1h30m` stands for.

    Raises: ValueError naming the fault and the nearest valid spelling.
    """
    if len(text) > _LONGEST_TEXT:
        raise ValueError(f"not a duration: longer than {_LONGEST_TEXT} characters")
    if text.startswith("-"):
        raise ValueError(f"must not be negative: {text!r}")
    if text == "0":
        return 0.0
    if re.fullmatch(r"[0-9]+", text, re.ASCII):
        raise ValueError(f"a duration needs a unit; did you mean {text}s?")
    total, position = Fraction(0), 0
    for part in _DURATION_PART.finditer(text):
        if part.start() != position:
            break
        total += Fraction(part["number"]) * _UNIT_SECONDS[part["unit"]]
        position = part.end()
    if position != len(text) or not text:
        meant = _suggest_duration(text)
        hint = f"did you mean {meant}?" if meant else "write for example 500ms, 30s, 5m or 1h30m"
        raise ValueError(f"not a duration: {text!r}; {hint}")
    if total > _LONGEST_SECONDS:
        raise ValueError(f"{text!r} is longer than 36500d")
    return float(total)


def format_bytes(count: int) -> str:
    """Return a byte count as people read it: three digits at most and a binary unit."""
    if count < 0:
        return "-" + format_bytes(-count)
    if count < 1000:
        return f"{count} B"
    value, unit = count / 1024, "KiB"
    for candidate in ("MiB", "GiB", "TiB", "PiB", "EiB"):
        # 999.6 would be shown as 1000: a fourth digit.
        if value < 999.5:
            break
        value, unit = value / 1024, candidate
    digits = 0 if value >= 99.95 else (1 if value >= 9.995 else 2)
    return f"{value:.{digits}f} {unit}"


def format_duration(seconds: float) -> str:
    """Return a span as kubectl shows an age: the two largest units at most."""
    whole = max(0, int(seconds))
    if whole < 120:
        return f"{whole}s"
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if minutes < 10 and whole % 60:
        return f"{minutes}m{whole % 60}s"
    if hours < 3:
        return f"{minutes}m"
    if hours < 8 and minutes % 60:
        return f"{hours}h{minutes % 60}m"
    if hours < 48:
        return f"{hours}h"
    if days < 8 and hours % 24:
        return f"{days}d{hours % 24}h"
    if days < 2 * 365:
        return f"{days}d"
    if days < 8 * 365 and days % 365:
        return f"{days // 365}y{days % 365}d"
    return f"{days // 365}y"


@dataclass(frozen=True, slots=True)
class Quantity:
    """A byte count as declared; equal to another when the bytes are equal."""

    text: str | int = field(compare=False)
    bytes: int

    @classmethod
    def parse(cls, text: str | int) -> "Quantity":
        """Parse a quantity, keeping its spelling. Raises ValueError as parse_quantity does."""
        return cls(text=text, bytes=parse_quantity(text))

    def __str__(self) -> str:
        return str(self.text)

    @classmethod
    def __get_pydantic_core_schema__(
        cls, _source: Any, _handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(
            cls._validate,
            serialization=core_schema.plain_serializer_function_ser_schema(
                lambda value: value.text
            ),
        )

    @classmethod
    def __get_pydantic_json_schema__(
        cls, _schema: core_schema.CoreSchema, _handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {"x-kubernetes-int-or-string": True, "description": "bytes, such as 8Gi or 500M"}

    @classmethod
    def _validate(cls, value: Any) -> "Quantity":
        if isinstance(value, cls):
            return value
        if isinstance(value, float):
            raise PydanticCustomError(
                "quantity",
                "{value} is not a number of bytes; write a whole number, or a unit as in 1.5Gi",
                {"value": value},
            )
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise PydanticCustomError("quantity_type", "expected a quantity such as 8Gi")
        try:
            return cls.parse(value)
        except ValueError as fault:
            raise PydanticCustomError("quantity", "{reason}", {"reason": str(fault)}) from fault


@dataclass(frozen=True, slots=True)
class Duration:
    """A time span as declared; equal to another when the seconds are equal."""

    text: str = field(compare=False)
    seconds: float

    @classmethod
    def parse(cls, text: str) -> "Duration":
        """Parse a duration, keeping its spelling. Raises ValueError as parse_duration does."""
        return cls(text=text, seconds=parse_duration(text))

    def __str__(self) -> str:
        return self.text

    @classmethod
    def __get_pydantic_core_schema__(
        cls, _source: Any, _handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(
            cls._validate,
            serialization=core_schema.plain_serializer_function_ser_schema(
                lambda value: value.text
            ),
        )

    @classmethod
    def __get_pydantic_json_schema__(
        cls, _schema: core_schema.CoreSchema, _handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {"type": "string", "description": "a time span, such as 30s, 5m or 1h30m"}

    @classmethod
    def _validate(cls, value: Any) -> "Duration":
        if isinstance(value, cls):
            return value
        if isinstance(value, int | float) and not isinstance(value, bool):
            raise PydanticCustomError(
                "duration", "a duration needs a unit; did you mean {value}s?", {"value": value}
            )
        if not isinstance(value, str):
            raise PydanticCustomError("duration_type", "expected a duration such as 30s")
        try:
            return cls.parse(value)
        except ValueError as fault:
            raise PydanticCustomError("duration", "{reason}", {"reason": str(fault)}) from fault
