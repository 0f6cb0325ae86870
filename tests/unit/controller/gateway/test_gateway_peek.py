"""The routing facts of a body, and what it takes to refuse one."""

import json
from typing import Any

import pytest

from controller.gateway.http.peek import Peeked, peek, shown_name
from manifests.errors import Code, Refusal


def body(**fields: Any) -> bytes:
    return json.dumps({"model": "m", **fields}).encode()


def peeked(**fields: Any) -> Peeked:
    result = peek(body(**fields))
    assert isinstance(result, Peeked)
    return result


def refused(raw: bytes) -> Refusal:
    result = peek(raw)
    assert isinstance(result, Refusal)
    return result


def test_only_the_routing_facts_are_read() -> None:
    result = peeked(stream=True, stream_options={"include_usage": True}, tools=[{"x": 1}])
    assert result == Peeked("m", True, True, 0, None)


def test_prompt_tokens_are_estimated_from_the_bytes_of_the_prompt_alone() -> None:
    assert peeked(prompt="x" * 398).prompt_tokens == 100
    assert peeked(messages=[], tools="x" * 4000).prompt_tokens == 1


@pytest.mark.parametrize(
    ("fields", "cap"),
    [
        ({"max_tokens": 7}, 7),
        ({"max_completion_tokens": 7}, 7),
        ({"max_completion_tokens": 7, "max_tokens": 50}, 7),
        ({"max_tokens": None}, None),
        ({"max_tokens": -1}, None),
        ({"max_tokens": "many"}, None),
        ({"max_tokens": True}, None),
    ],
)
def test_the_newer_name_of_the_token_cap_wins(fields: dict[str, Any], cap: int | None) -> None:
    assert peeked(**fields).max_tokens == cap


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"1", b"null", b"\xff\xfe", b'{"a":' * 9999])
def test_what_is_no_json_object_is_refused(raw: bytes) -> None:
    assert refused(raw).code is Code.INVALID_JSON


@pytest.mark.parametrize("model", [None, "", 3, ["m"]])
def test_a_missing_or_odd_model_names_the_field(model: Any) -> None:
    refusal = refused(json.dumps({"model": model}).encode())
    assert (refusal.code, refusal.param) == (Code.INVALID_VALUE, "model")


def test_an_odd_stream_flag_names_the_field() -> None:
    assert refused(body(stream="yes")).param == "stream"
    assert peeked(stream=None).stream is False


def test_a_shown_name_is_short_and_printable() -> None:
    assert len(shown_name("x" * 300)) < 70
    assert shown_name("a\nb\x00") == "a\\nb\\x00"
    assert shown_name("org/name") == "org/name"


@pytest.mark.parametrize(
    ("prompt", "tokens", "exact"),
    [
        ([1, 2, 3], 3, True),
        ([7], 1, True),
        ([], 1, False),
        ("[1, 2]", 2, False),
        (["a", "b"], 3, False),
        ([[1, 2], [3]], 4, False),
    ],
)
def test_only_one_list_of_token_ids_is_counted_exactly(
    prompt: Any, tokens: int, exact: bool
) -> None:
    result = peeked(prompt=prompt)
    assert (result.prompt_tokens, result.exact) == (tokens, exact)
    assert peeked(prompt=[1], n=129).exact is False


def test_a_completion_without_a_cap_has_the_agents_default_and_a_chat_has_none() -> None:
    assert peeked(prompt="hi").max_tokens == 16
    assert peeked(messages=[]).max_tokens is None
    assert peeked(messages=[], max_tokens=10**30).max_tokens == 2**31 - 1


@pytest.mark.parametrize(
    ("fields", "priority"),
    [
        ({}, 0),
        ({"priority": -7}, 7),
        ({"priority": 3, "service_tier": "priority"}, -3),
        ({"service_tier": "priority"}, 1),
        ({"service_tier": "flex"}, -1),
        ({"priority": 10**9}, -1000),
        ({"priority": True}, 0),
        ({"priority": "x", "service_tier": []}, 0),
    ],
)
def test_the_priority_is_the_engines_where_higher_goes_first(
    fields: dict[str, Any], priority: int
) -> None:
    assert peeked(**fields).priority == priority


@pytest.mark.parametrize(
    ("given", "seconds"), [(2, 2.0), (0.5, 0.5), (0, None), ("9", None), (1e300, 86400.0)]
)
def test_a_usable_deadline_is_read(given: Any, seconds: float | None) -> None:
    assert peeked(deadline_seconds=given).deadline_seconds == seconds
