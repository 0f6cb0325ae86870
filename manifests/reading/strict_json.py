"""JSON bodies of the API, read so that nothing passes unseen.

Python's parser keeps the last of two equal keys, reads NaN, and recurses as deep as it is told;
here each of these is an error. Called by the controller's API before validation.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

MAX_BYTES = 4 * 1024 * 1024
MAX_DEPTH = 100
MAX_VALUES = 100_000
_MAX_INTEGER = (1 << 63) - 1
_MAX_DIGITS = 20
_STRUCTURE = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{},]', re.S)


class _Repeated(dict[str, Any]):
    """An object in which a key stands twice."""

    key = ""


def parse_json_strict(body: bytes, max_bytes: int = MAX_BYTES) -> dict[str, Any]:
    """Return the JSON object of a request body.

    Raises: ValueError, in words for the caller, for text that is not JSON in UTF-8, for anything
    but an object, repeated keys, NaN or Infinity, numbers beyond 64 bits, halves of surrogate
    pairs, and bodies that are too large, too deep, or hold too many values.
    """
    if len(body) > max_bytes:
        raise ValueError(f"the body has {len(body)} bytes; at most {max_bytes} are allowed")
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError as fault:
        raise ValueError(f"the body is not UTF-8 text: byte {fault.start} is wrong") from None
    _check_size(text)
    try:
        value = json.loads(
            text,
            object_pairs_hook=_take_pairs,
            parse_constant=_refuse_constant,
            parse_float=_take_float,
            parse_int=_take_int,
        )
    except json.JSONDecodeError as fault:
        place = f"line {fault.lineno} column {fault.colno}"
        raise ValueError(f"the body is not JSON: {fault.msg} at {place}") from None
    if not isinstance(value, dict):
        # The caller's fault, not a wrong type in our code: every fault here is a ValueError.
        raise ValueError("the body must be a JSON object")  # noqa: TRY004
    for path, repeated in _find_repeated(value, ""):
        raise ValueError(f"the key {repeated.key!r} stands twice in {path or 'the object'}")
    if "\\ud" in text.lower():
        _check_characters(value)
    return value


def _check_size(text: str) -> None:
    """Refuse deep or huge structures before anything is built from them."""
    opened = text.count("[") + text.count("{")
    if opened <= MAX_DEPTH and text.count(",") + opened <= MAX_VALUES:
        return
    depth = values = 0
    for token in _STRUCTURE.finditer(text):
        sign = token[0]
        if sign in "[{":
            depth += 1
            values += 1
        elif sign in "]}":
            depth -= 1
        elif sign == ",":
            values += 1
        if depth > MAX_DEPTH:
            raise ValueError(f"the body is nested more than {MAX_DEPTH} levels deep")
        if values > MAX_VALUES:
            raise ValueError(f"the body holds more than {MAX_VALUES} values")


def _take_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) == len(pairs):
        return result
    repeated = _Repeated(result)
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            repeated.key = key
            break
        seen.add(key)
    return repeated


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _take_float(text: str) -> float:
    number = float(text)
    if number in {float("inf"), float("-inf")}:
        raise ValueError(f"{text[:_MAX_DIGITS]} is too large a number")
    return number


def _take_int(text: str) -> int:
    if len(text) > _MAX_DIGITS or abs(int(text)) > _MAX_INTEGER:
        raise ValueError(f"{text[:_MAX_DIGITS]} is larger than a 64-bit integer")
    return int(text)


def _find_repeated(value: Any, path: str) -> Iterator[tuple[str, _Repeated]]:
    if isinstance(value, _Repeated):
        yield path, value
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _find_repeated(item, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _find_repeated(item, f"{path}[{index}]")


def _check_characters(value: dict[str, Any]) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ValueError("the body has half of a surrogate pair, which is no character") from None
