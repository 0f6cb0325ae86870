from typing import Any

import pytest

from manifests.errors import RequestError
from manifests.prompt.conversation import parse_messages


def call(number: int, arguments: Any = "{}", name: str = "look") -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"id": f"call_{number}", "type": "function", "function": function}


def history(assistant: dict[str, Any], *answers: dict[str, Any]) -> list[dict[str, Any]]:
    start = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    return [*start, {"role": "assistant", **assistant}, *answers]


def answer(number: int, content: Any = "r") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": f"call_{number}", "content": content}


@pytest.mark.parametrize("content", [{}, {"content": None}, {"content": ""}])
def test_a_tool_turn_without_content_is_kept(content: dict[str, Any]) -> None:
    """B03: absent, null and empty content are the same, and the call stays."""
    messages = history(
        {**content, "tool_calls": [call(1)]}, answer(1, [{"type": "text", "text": "r"}])
    )
    parsed = parse_messages(messages)
    assert [item["role"] for item in parsed] == ["system", "user", "assistant", "tool"]
    assert parsed[2]["content"] == ""
    assert parsed[2]["tool_calls"][0]["function"]["name"] == "look"
    assert parsed[3]["content"] == "r"


def test_tool_answers_follow_the_order_of_their_calls() -> None:
    """B03: paired by id, each once."""
    messages = history({"tool_calls": [call(1), call(2)]}, answer(2, "two"), answer(1, "one"))
    assert [item["content"] for item in parse_messages(messages)[3:]] == ["one", "two"]


def test_developer_acts_as_system_and_parts_join_in_order() -> None:
    """B03."""
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": " b"}]
    parsed = parse_messages(
        [{"role": "developer", "content": "d"}, {"role": "user", "content": parts}]
    )
    assert parsed == [{"role": "system", "content": "d"}, {"role": "user", "content": "a b"}]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [('{"city":"Oslo"}', {"city": "Oslo"}), ("{}", {}), ("", {}), (None, {}), ("null", {})],
)
def test_the_template_sees_tool_arguments_as_a_mapping(
    arguments: Any, expected: dict[str, Any]
) -> None:
    """B19."""
    parsed = parse_messages(history({"tool_calls": [call(1, arguments)]}, answer(1)))
    assert parsed[2]["tool_calls"][0]["function"]["arguments"] == expected


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        ({"role": "user"}, "messages"),
        (None, "messages"),
        (["hi"], "messages[0]"),
        ([{"role": "narrator", "content": "x"}], "messages[0].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"role": "assistant", "content": None}], "messages[0].content"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
        (history({"tool_calls": [call(1)]}, answer(9)), "messages[3].tool_call_id"),
        (
            history({"tool_calls": [call(1, "[1]")]}),
            "messages[2].tool_calls[0].function.arguments",
        ),
        (
            history({"tool_calls": [call(1, "{bad")]}),
            "messages[2].tool_calls[0].function.arguments",
        ),
    ],
)
def test_a_malformed_message_is_refused_at_its_place(messages: Any, param: str) -> None:
    """B03: never a crash, and the fault is named."""
    with pytest.raises(RequestError) as refused:
        parse_messages(messages)
    assert refused.value.refusal.param == param
    assert refused.value.refusal.http_status == 400


def test_an_unsupported_part_type_is_named() -> None:
    """B03."""
    with pytest.raises(RequestError) as refused:
        parse_messages([{"role": "user", "content": [{"type": "input_audio"}]}])
    assert "input_audio" in refused.value.refusal.hint
