"""pydantic's verdicts in plain words: what was seen, what is expected, what to write.

Owns the wording of every type and range error. Called by manifests.reading.validate only.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from pydantic_core import ErrorDetails

from manifests.kinds.meta import NAME_PATTERN
from manifests.kinds.scheme import Kind
from manifests.reading.field_errors import ErrorCode, FieldError, Path, format_path
from manifests.reading.suggest import advise, nearest, suggest_field

# What the user wrote at a path when it reads as something other than text; None if unknown.
Written = Callable[[Path], str | None]

NAME_RULE = (
    "allowed are lower-case letters, digits, '-' and '.', with a letter or digit at each end"
)
_LONGEST_SHOWN = 60
_EXPECTED = {
    "string_type": "text",
    "int_type": "an integer",
    "float_type": "a number",
    "bool_type": "true or false",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "list_type": "a list",
    "tuple_type": "a list",
}
_BOUNDS = {
    "greater_than_equal": ("at least", "ge"),
    "greater_than": ("greater than", "gt"),
    "less_than_equal": ("at most", "le"),
    "less_than": ("less than", "lt"),
}
_BOOLEAN_WORDS = {
    **dict.fromkeys(("true", "yes", "on", "y", "1"), "true"),
    **dict.fromkeys(("false", "no", "off", "n", "0"), "false"),
}


def describe(value: Any) -> str:
    """Name the type of a JSON value as people do."""
    if value is None:
        return "nothing (null)"
    names: list[tuple[type, str]] = [
        (bool, "a boolean"),
        (int, "an integer"),
        (float, "a decimal number"),
        (str, "text"),
        (list, "a list"),
        (tuple, "a list"),
        (Mapping, "a mapping"),
    ]
    return next((name for kind, name in names if isinstance(value, kind)), "an unknown type")


def show(value: Any) -> str:
    """Return a value as JSON, cut when long."""
    text = json.dumps(value, default=str)
    return text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 3] + "..."


def suggest_name(text: str) -> str:
    """Return the nearest valid object name, or an empty string."""
    plain = re.sub(r"[^a-z0-9.-]+", "-", text.lower()).strip("-.")[:253]
    return f"did you mean {plain}?" if plain and re.fullmatch(NAME_PATTERN, plain) else ""


def translate(
    detail: ErrorDetails, kind: Kind, raw: Mapping[str, Any], said: Written
) -> FieldError:
    """Return one of pydantic's errors as a FieldError in plain words."""
    path: Path = detail["loc"]
    error, context = detail["type"], detail.get("ctx", {})
    value = value_at(raw, path)
    if error == "extra_forbidden" and (advice := advise(kind, path)):
        # Not merely unknown: that could be waved through, and a copy kept in an annotation.
        return FieldError.at(path, "must not be written here", advice, ErrorCode.FORBIDDEN)
    if error == "extra_forbidden":
        hint = suggest_field(kind, path[:-1], str(path[-1]))
        return FieldError.at(path, "unknown field", hint, ErrorCode.UNKNOWN)
    if error == "missing":
        hint = f"add {format_path(path)}"
        return FieldError.at(path, "required but missing", hint, ErrorCode.REQUIRED)
    if error in {"enum", "literal_error"}:
        return _choice(path, value, context.get("expected", ""), said)
    if error in _BOUNDS:
        words, key = _BOUNDS[error]
        return FieldError.at(path, f"must be {words} {_number(context[key])}, got {show(value)}")
    if error == "string_pattern_mismatch" and context.get("pattern") == NAME_PATTERN:
        return FieldError.at(
            path, f"{show(value)} is not a valid name: {NAME_RULE}", suggest_name(str(value))
        )
    if error == "string_too_short":
        return FieldError.at(path, "must not be empty")
    if error == "string_too_long":
        return FieldError.at(
            path, f"has {len(value)} characters; at most {context['max_length']} are allowed"
        )
    if error in {"quantity", "duration", "value_error"}:
        message, _, hint = detail["msg"].removeprefix("Value error, ").partition("; ")
        return FieldError.at(path, message, hint)
    if error in {"quantity_type", "duration_type"}:
        return FieldError.at(
            path, f"{detail['msg']}, got {describe(value)}", "", ErrorCode.TYPE_INVALID
        )
    expected = _expected(error)
    if expected is None:
        return FieldError.at(path, detail["msg"])
    return wrong_type(path, value, expected, said)


def wrong_type(path: Path, value: Any, expected: str, said: Written) -> FieldError:
    """Return the error for a value of another type than `expected`, with the fix."""
    hint = _retype(value, expected, said(path))
    return FieldError.at(
        path, f"expected {expected}, got {describe(value)}", hint, ErrorCode.TYPE_INVALID
    )


def value_at(raw: Any, path: Path) -> Any:
    """Return the value at a path, or None where the path leads nowhere."""
    for step in path:
        if isinstance(raw, Mapping):
            raw = raw.get(step)
        elif isinstance(raw, list | tuple) and isinstance(step, int) and step < len(raw):
            raw = raw[step]
        else:
            return None
    return raw


def _expected(error: str) -> str | None:
    if error in _EXPECTED:
        return _EXPECTED[error]
    # int_parsing, float_parsing, bool_parsing, int_from_float: lax forms of the same fault.
    return next(
        (text for name, text in _EXPECTED.items() if error.startswith(name.removesuffix("type"))),
        None,
    )


def _choice(path: Path, value: Any, expected: str, said: Written) -> FieldError:
    options = re.findall(r"'([^']*)'", expected)
    listed = ", ".join(options[:-1]) + f" or {options[-1]}" if len(options) > 1 else expected
    if not isinstance(value, str):
        return wrong_type(path, value, f"one of {listed}", said)
    near = nearest(value, options)
    hint = f"did you mean {near}?" if near else ""
    message = f"{show(value)} is not supported: write {listed}"
    return FieldError.at(path, message, hint, ErrorCode.NOT_SUPPORTED)


def _retype(value: Any, expected: str, written: str | None) -> str:
    """Say how to write a value so that it has the expected type."""
    if expected == "text" or expected.startswith("one of"):
        return _retype_as_text(value, written)
    if value is None:
        return "write a value or remove the field"
    if expected == "a list" and not isinstance(value, Mapping):
        return f"write [{written or show(value)}]"
    if expected == "true or false":
        word = _BOOLEAN_WORDS.get(str(value).strip().lower())
        return f"write {word}" if word else ""
    if expected in {"an integer", "a number"} and isinstance(value, str):
        number = value.strip()
        if re.fullmatch(r"[+-]?[0-9]{1,18}", number, re.ASCII):
            return f"remove the quotes: {int(number)}"
        if expected == "a number" and re.fullmatch(r"[+-]?[0-9]+\.[0-9]+", number, re.ASCII):
            return f"remove the quotes: {number}"
    if expected == "an integer" and isinstance(value, float):
        whole = value.is_integer() and abs(value) < 1e15
        return f"write {int(value)}" if whole else "write a whole number"
    return ""


def _retype_as_text(value: Any, written: str | None) -> str:
    if value is None and not written:
        return 'write a value ("" for empty text) or remove the field'
    if value is None or isinstance(value, bool | int | float):
        return f'quote it: "{written or show(value)}"'
    return ""


def _number(bound: float) -> str:
    return str(int(bound)) if float(bound).is_integer() else str(bound)
