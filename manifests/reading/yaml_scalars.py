"""What an unquoted YAML scalar means, and which ones mean too many things to accept.

The rules are those of the YAML 1.2 core schema, with two additions that keep text from turning
into something else unseen. The words yes, no, on and off are booleans, as kubectl and PyYAML
read them, so a text field refuses them. Forms that YAML 1.1 and 1.2 read differently (0755,
1:10, 1_000, 0b1, dates) and numbers JSON cannot carry (.nan, .inf) are faults wherever they
stand: quoted they are text, and a number has an unambiguous spelling.
"""

import math
import re
from dataclasses import dataclass

Scalar = str | int | float | bool | None

_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_BOOLEANS = {
    form: truth
    for truth, words in ((True, ("true", "yes", "on")), (False, ("false", "no", "off")))
    for word in words
    for form in (word, word.capitalize(), word.upper())
}
_DECIMAL = re.compile(r"[-+]?(0|[1-9][0-9]*)", re.ASCII)
_OTHER_BASE = re.compile(r"[-+]?0(x[0-9a-fA-F]+|o[0-7]+)", re.ASCII)
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?", re.ASCII)
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", re.ASCII)
_LEADING_ZERO = re.compile(r"[-+]?0[0-9_]+(\.[0-9_]*)?([eE][-+]?[0-9]+)?", re.ASCII)
_UNDERSCORES = re.compile(r"[-+]?[0-9][0-9]*_[0-9_]*(\.[0-9_]*)?([eE][-+]?[0-9]+)?", re.ASCII)
_BINARY = re.compile(r"[-+]?0b[01_]+", re.ASCII)
_BASE_60 = re.compile(r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?", re.ASCII)
_DATE = re.compile(
    r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}"
    r"([Tt \t]+[0-9]{1,2}:[0-9]{2}:[0-9]{2}(\.[0-9]*)?([ \t]*(Z|[-+][0-9]{1,2}(:?[0-9]{2})?))?)?",
    re.ASCII,
)
_MAX_INTEGER = (1 << 63) - 1
_LONGEST_NUMBER = 400


@dataclass(frozen=True, slots=True)
class Reading:
    """The value of an unquoted scalar; `fault` says why it is refused, `hint` what to write."""

    value: Scalar
    fault: str = ""
    hint: str = ""


def read_plain(text: str) -> Reading:
    """Return what an unquoted scalar means. A refused one keeps its text as the value."""
    if text in _NULLS:
        return Reading(None)
    if text in _BOOLEANS:
        return Reading(_BOOLEANS[text])
    # Only these characters begin a number or a date.
    if text[0] not in "0123456789+-.":
        return Reading(text)
    if len(text) > _LONGEST_NUMBER:
        return _read_long(text)
    if _DECIMAL.fullmatch(text):
        return _bounded(text, int(text))
    if _OTHER_BASE.fullmatch(text):
        return _bounded(text, int(text, 0))
    if _FLOAT.fullmatch(text):
        number = float(text)
        if math.isfinite(number):
            return Reading(number)
        return Reading(text, f"{text} is too large a number", _quote(text))
    if _NOT_FINITE.fullmatch(text):
        return Reading(text, f"{text} is not a finite number", _quote(text))
    return _read_ambiguous(text)


def _read_long(text: str) -> Reading:
    if re.fullmatch(r"[-+.0-9_eE]+", text, re.ASCII):
        return Reading(text, "too long a number", "quote it if it is text")
    return Reading(text)


def _bounded(text: str, number: int) -> Reading:
    if abs(number) > _MAX_INTEGER:
        return Reading(text, f"{text} is larger than a 64-bit integer", _quote(text))
    return Reading(number)


def _read_ambiguous(text: str) -> Reading:
    if _DATE.fullmatch(text):
        return Reading(text, f"{text} reads as a date to some", f'quote it: "{text}"')
    if _BASE_60.fullmatch(text):
        return Reading(text, f"{text} reads as a number in base 60 to some", f'quote it: "{text}"')
    if _LEADING_ZERO.fullmatch(text):
        bare = re.sub(r"^([-+]?)0+(?=[0-9])", r"\1", text.replace("_", ""))
        fault = f"{text} reads as octal to some and as {bare} to others"
        return Reading(text, fault, f"write {bare} for the number, or {_quote(text)}")
    if _UNDERSCORES.fullmatch(text):
        bare = text.replace("_", "")
        fault = f"{text} reads as {bare} to some and as text to others"
        return Reading(text, fault, f"write {bare} for the number, or {_quote(text)}")
    if _BINARY.fullmatch(text):
        number = int(text.replace("_", ""), 2)
        fault = f"{text} reads as {number} to some and as text to others"
        return Reading(text, fault, f"write {number} for the number, or {_quote(text)}")
    return Reading(text)


def _quote(text: str) -> str:
    return f'quote it if it is text: "{text}"'
