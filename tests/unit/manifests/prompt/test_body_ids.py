"""The ids of a whole body in the tokenizer process are those that the agent's own way makes."""

import json
from typing import Any

import pytest

from manifests.prompt.messages import EncodeBody, PackedPrompts, TextRefused
from manifests.prompt.worker import answer
from manifests.wire.prefix_chain import pack_tokens
from node_agent.serving.completion import encode_prompts
from node_agent.serving.dialect import parse_chat, parse_completions
from tests.support.local_text import LocalText
from tests.support.tiny_tokenizers import FAMILIES

TOOL = {"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}
CALL = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": '{"q": "x"}'}}
USER = {"role": "user", "content": "hello  world 👋 日本語 étiquette <tool_call>"}
BODIES: dict[str, dict[str, Any]] = {
    "unicode": {"messages": [USER]},
    "parts": {
        "messages": [{"role": "developer", "content": [{"type": "text", "text": "a"}]}, USER]
    },
    "tools": {"messages": [USER], "tools": [TOOL]},
    "tools unseen": {"messages": [USER], "tools": [TOOL], "tool_choice": "none"},
    "variables": {"messages": [USER], "chat_template_kwargs": {"enable_thinking": False}},
    "calls": {
        "messages": [
            USER,
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "c1", "content": "found"},
        ]
    },
    "text": {"prompt": "hello <s> 👋"},
    "start written out": {"prompt": "<s>hello"},
    "texts": {"prompt": ["a", "hello world", ""]},
    "ids": {"prompt": [5, 6, 7]},
    "lists of ids": {"prompt": [[5], [6, 7]]},
}


def encode(text: LocalText, body: dict[str, Any], **variables: Any) -> PackedPrompts | TextRefused:
    command = EncodeBody(
        number=3,
        chat="messages" in body,
        body=json.dumps(body).encode(),
        variables=json.dumps(variables).encode(),
    )
    reply = answer(text.tokenizer, command)
    assert isinstance(reply, PackedPrompts | TextRefused)
    assert reply.number == 3
    return reply


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", BODIES)
async def test_both_ways_make_the_same_ids(
    texts: dict[str, LocalText], family: str, name: str
) -> None:
    text, body = texts[family], BODIES[name]
    parse = parse_chat if "messages" in body else parse_completions
    declared = {"enable_thinking": True}
    there = await encode_prompts(parse({"model": "m", **body}), text, declared, 4096)
    here = encode(text, body, **declared)
    assert isinstance(here, PackedPrompts)
    assert here.prompts == [pack_tokens(ids) for ids in there]


@pytest.mark.parametrize(
    "body",
    [
        {"messages": "hello"},
        {"messages": [{"role": "king", "content": "x"}]},
        {"messages": [USER], "tools": {}},
        {"messages": [USER], "tool_choice": "required"},
        {"messages": [USER], "chat_template_kwargs": {"tokenize": True}},
        {"prompt": {"a": 1}},
        {"prompt": []},
        {"prompt": [-1]},
    ],
)
def test_what_the_agent_refuses_has_no_ids(texts: dict[str, LocalText], body: Any) -> None:
    assert isinstance(encode(texts["byte_level"], body), TextRefused)


def test_a_chat_for_a_model_without_a_template_has_no_ids(texts: dict[str, LocalText]) -> None:
    text = texts["metaspace"]
    template, text.tokenizer.chat_template = text.tokenizer.chat_template, None
    try:
        assert isinstance(encode(text, BODIES["unicode"]), TextRefused)
    finally:
        text.tokenizer.chat_template = template


def test_an_empty_text_becomes_the_start_token_where_there_is_one(
    texts: dict[str, LocalText],
) -> None:
    text = texts["byte_level"]
    nothing = encode(text, {"prompt": ""})
    assert isinstance(nothing, PackedPrompts)
    assert nothing.prompts == [b""]
    text.tokenizer.bos_token = "<s>"
    try:
        start = encode(text, {"prompt": ""})
    finally:
        text.tokenizer.bos_token = None
    assert isinstance(start, PackedPrompts)
    assert start.prompts == [pack_tokens([1])]
