"""What a gateway asks of an agent beside a request: which model, and what a stream costs."""

from typing import Any

import pytest

from manifests.wire.gateway import MODEL_HEADER, USAGE_HEADER, parse_usage_comment
from tests.support.scripted_pool import say

BODY = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "stream": True}


async def lines_of(agent: Any, **headers: str) -> list[bytes]:
    answer = await agent.http.post("/v1/chat/completions", json=BODY, headers=headers)
    assert answer.status_code == 200, answer.text
    return list(answer.content.split(b"\n"))


def counts(lines: list[bytes]) -> list[tuple[int, int]]:
    return [found for line in lines if (found := parse_usage_comment(line)) is not None]


async def test_the_gateways_word_for_the_model_counts_and_the_name_stays_in_the_answer(
    start_agent: Any,
) -> None:
    agent = await start_agent(say([[70], [71]]))
    body = {**BODY, "model": "a-route", "stream": False}
    assert (await agent.http.post("/v1/chat/completions", json=body)).status_code == 404
    headers = {MODEL_HEADER: "tiny"}
    answer = await agent.http.post("/v1/chat/completions", json=body, headers=headers)
    assert (answer.status_code, answer.json()["model"]) == (200, "a-route")
    headers = {MODEL_HEADER: "gone"}
    missing = await agent.http.post("/v1/chat/completions", json={**BODY}, headers=headers)
    assert missing.status_code == 404


@pytest.mark.parametrize("wanted", ["each", "end", "", "nonsense"])
async def test_a_stream_says_what_it_has_cost_only_when_asked(
    start_agent: Any, wanted: str
) -> None:
    agent = await start_agent(say([[70], [71], [72]]))
    lines = await lines_of(agent, **({USAGE_HEADER: wanted} if wanted else {}))
    told = counts(lines)
    prompt = len(agent.pool.commands[0].prompt)
    if wanted not in {"each", "end"}:
        assert told == []
        return
    assert told[-1] == (prompt, 3)
    assert told == sorted(told)
    assert (len(told) > 3) == (wanted == "each")
    # The last one stands before the end mark and in its event, so that nobody can miss it.
    done = lines.index(b"data: [DONE]")
    assert parse_usage_comment(lines[done - 1]) == (prompt, 3)
