"""What an agent tells beside a stream, and how it goes on with one that began elsewhere."""

import json
from typing import Any

import httpx
import pytest

from manifests.errors import Code
from manifests.wire.continuation import (
    CONTINUE_PATH,
    TELL,
    TELL_HEADER,
    Continuation,
    ToldRow,
    pack,
)
from tests.support.scripted_pool import say
from tests.support.stream_client import Heard

CHAT = "/v1/chat/completions"
HEADERS = {TELL_HEADER: TELL}
BODY: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "hi"}],
    "stream": True,
    "stream_options": {"include_usage": True},
    "max_tokens": 6,
}


async def post(agent: Any, path: str, content: bytes) -> httpx.Response:
    answer: httpx.Response = await agent.http.post(path, content=content, headers=HEADERS)
    return answer


def told_lines(text: str) -> list[str]:
    return [line for line in text.split("\n") if line[:2] in {":@", ":+", ":=", ":."}]


def head_of(text: str, *rows: ToldRow | None, **changes: Any) -> Continuation:
    """Return a continuation of a stream that an agent has begun."""
    id_, created, fingerprint, _ = told_lines(text)[0][2:].split(" ")
    head = Continuation(path=CHAT, id=id_, created=int(created), fingerprint=fingerprint, rows=rows)
    return head.model_copy(update=changes)


def heard(text: str) -> Heard:
    client = Heard()
    for line in text.split("\n"):
        client.take(line)
    return client


async def test_tokens_are_told_only_when_asked_and_not_beside_logprobs(start_agent: Any) -> None:
    agent = await start_agent(say([[70], [71, 72]], endless=True))
    body = json.dumps(BODY).encode()
    plain = await agent.http.post(CHAT, content=body)
    assert not told_lines(plain.text)
    told = told_lines((await post(agent, CHAT, body)).text)
    assert told[0].startswith(":@chatcmpl-")
    assert told[0].endswith(" 1")
    assert [line for line in told[1:] if not line.endswith(" ")] == [
        ":+0 70", ":+0 71,72", ":+0 70", ":+0 71,72", ":.0",
    ]  # fmt: skip
    with_logprobs = json.dumps({**BODY, "logprobs": True}).encode()
    assert not told_lines((await post(agent, CHAT, with_logprobs)).text)


async def test_the_rest_of_a_stream_has_its_name_its_usage_and_no_second_role(
    start_agent: Any,
) -> None:
    agent = await start_agent(say([[70]], endless=True))
    body = json.dumps({**BODY, "n": 3}).encode()
    whole = await post(agent, CHAT, body)
    undisturbed = heard(whole.text)
    head = head_of(
        whole.text,
        ToldRow(ids=(70, 70)),
        ToldRow(ids=(70,) * 6, reason="length"),
        ToldRow(ids=(70,) * 6, ended=True),
    )
    before, agent.pool.streams[:] = agent.samples(), []
    rest = await post(agent, CONTINUE_PATH, pack(head, body))
    assert rest.status_code == 200
    client = heard(rest.text)
    assert client.names == undisturbed.names
    assert client.texts[0] == undisturbed.texts[0][2:]
    assert client.texts[1] == ""
    assert client.reasons == {0: ["length"], 1: ["length"]}
    assert client.roles == {0: 0, 1: 0}
    assert client.usages[0]["prompt_tokens"] == undisturbed.usages[0]["prompt_tokens"]
    assert client.usages[0]["completion_tokens"] == 18
    [command] = agent.pool.commands
    assert (command.said_tokens, command.max_tokens) == (2, 4)
    assert command.prompt[-2:] == [70, 70]
    # What another node generated is not counted here.
    grown = {name: value - before.get(name, 0) for name, value in agent.samples().items()}
    [generated] = [
        value
        for (name, labels), value in grown.items()
        if "tiny" in labels and "generated" in name and name.endswith("_total")
    ]
    assert generated == 4


async def test_a_stream_with_nothing_left_to_say_is_only_closed(start_agent: Any) -> None:
    agent = await start_agent(say([[70]], endless=True))
    body = json.dumps(BODY).encode()
    whole = await post(agent, CHAT, body)
    agent.pool.streams.clear()
    for row in (ToldRow(ids=(70,) * 6), ToldRow(ids=(70,) * 6, ended=True)):
        rest = await post(agent, CONTINUE_PATH, pack(head_of(whole.text, row), body))
        client = heard(rest.text)
        assert client.dones == 1
        assert client.usages[0]["completion_tokens"] == 6
        assert client.reasons == ({} if row.ended else {0: ["length"]})
    assert not agent.pool.commands
    assert not agent.pool.leases
    assert not agent.admission.held


@pytest.mark.parametrize(
    ("changes", "fields", "code"),
    [
        ({"fingerprint": "fp_other"}, {}, Code.ENGINE_NOT_READY),
        ({"rows": (ToldRow(ids=(10**6,)),)}, {}, Code.INVALID_VALUE),
        ({"rows": (ToldRow(ids=(-1,)),)}, {}, Code.INVALID_VALUE),
        ({"rows": ()}, {}, Code.INVALID_VALUE),
        ({"path": "/v1/models"}, {}, Code.INVALID_VALUE),
        ({}, {"stream": False, "stream_options": None}, Code.INVALID_VALUE),
        ({}, {"logprobs": True}, Code.INVALID_VALUE),
        ({}, {"temperature": "hot"}, Code.INVALID_VALUE),
    ],
)
async def test_what_cannot_be_continued_exactly_is_refused(
    start_agent: Any, changes: dict[str, Any], fields: dict[str, Any], code: Code
) -> None:
    agent = await start_agent(say([[70]], endless=True))
    whole = await post(agent, CHAT, json.dumps(BODY).encode())
    head = head_of(whole.text, ToldRow(ids=(70,)), **changes)
    refused = await post(agent, CONTINUE_PATH, pack(head, json.dumps({**BODY, **fields}).encode()))
    assert refused.json()["error"]["code"] == code.value
    elsewhere = refused.json()["error"]["retryable"] == "elsewhere"
    assert elsewhere is (code is Code.ENGINE_NOT_READY)
    assert not agent.pool.leases
    garbage = await post(agent, CONTINUE_PATH, b"SECRET")
    assert garbage.status_code == 400
    assert "SECRET" not in garbage.text
