"""Bodies of the API are read strictly (B75, B84, B87)."""

import json
import time

import pytest

from manifests.reading.strict_json import parse_json_strict


def refusal(body: bytes | str) -> str:
    with pytest.raises(ValueError, match=r".") as refused:
        parse_json_strict(body.encode() if isinstance(body, str) else body)
    assert not isinstance(refused.value, json.JSONDecodeError | UnicodeError)
    return str(refused.value)


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"a": [1, -1, 1.5, True, None, "é😀", {"b": {}}]},
        {"big": (1 << 63) - 1, "many": list(range(50_000)), "text": '[{,}]\\"' * 60_000},
    ],
)
def test_ordinary_json_is_read_as_the_standard_library_reads_it(value: dict[str, object]) -> None:
    assert parse_json_strict(json.dumps(value).encode()) == value
    assert parse_json_strict(json.dumps(value, ensure_ascii=False).encode()) == value


def test_a_byte_order_mark_is_ignored() -> None:
    assert parse_json_strict(b'\xef\xbb\xbf{"a": 1}') == {"a": 1}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ('{"a": 1, "a": 1}', "the key 'a' stands twice in the object"),
        ('{"spec": {"x": [{"b": 1, "c": 2, "b": 3}]}}', "the key 'b' stands twice in spec.x[0]"),
        ('{"a": NaN}', "NaN is not a JSON number"),
        ('{"a": -Infinity}', "-Infinity is not a JSON number"),
        ('{"a": 1e999}', "1e999 is too large a number"),
        ('{"a": 9223372036854775808}', "9223372036854775808 is larger than a 64-bit integer"),
        ('{"a": ' + "9" * 5000 + "}", "is larger than a 64-bit integer"),
        ('{"a": "\\ud800"}', "half of a surrogate pair"),
        ('{"\\uDC00": 1}', "half of a surrogate pair"),
        ("[]", "the body must be a JSON object"),
        ("null", "the body must be a JSON object"),
        ("", "the body is not JSON: Expecting value at line 1 column 1"),
        ('{"a": 1,}', "the body is not JSON"),
        ('{"a": 1} x', "the body is not JSON: Extra data at line 1 column 10"),
        ("a: 1", "the body is not JSON"),
        (b'{"a": "\xff"}', "the body is not UTF-8 text: byte 7 is wrong"),
        ("[" * 100_000, "nested more than 100 levels deep"),
        ('{"a":' * 101 + "1" + "}" * 101, "nested more than 100 levels deep"),
        ("[" + "{}," * 1_000_000 + "{}]", "holds more than 100000 values"),
        (b"{" + b" " * (4 << 20) + b"}", "at most 4194304 are allowed"),
    ],
)
def test_a_body_that_is_not_strict_json_is_refused_in_plain_words(
    body: bytes | str, message: str
) -> None:
    assert message in refusal(body)


def test_brackets_within_text_are_no_nesting() -> None:
    value = {"a": "[" * 1000, "b": '"{' * 1000, "c": "," * 200_000}
    assert parse_json_strict(json.dumps(value).encode()) == value


def test_a_hundred_levels_are_allowed() -> None:
    body = '{"a":' * 100 + "1" + "}" * 100
    assert parse_json_strict(body.encode()) == json.loads(body)


@pytest.mark.parametrize(
    "body",
    [
        "{" + ",".join(f'"k{index}": 1' for index in range(99_000)) + ', "k98999": 2}',
        '{"a": "' + "\\\\" * 2_000_000 + '"}',
        '{"a": "' + "[" * 4_000_000,
    ],
)
def test_hostile_bodies_are_judged_within_a_second(body: str) -> None:
    began = time.process_time()
    try:
        parse_json_strict(body.encode())
    except ValueError as fault:
        assert str(fault)
    # A second on an idle machine; the rest is room for a busy one.
    assert time.process_time() - began < 5
