"""Every refusal comes before any byte and before any engine has seen the request (B10, B43)."""

import asyncio
import json
from typing import Any

import pytest

from manifests.errors import Code, Refusal, Retryable
from manifests.kinds.model import EngineType
from tests.support.asgi_server import raw_request
from tests.support.scripted_pool import say

ROUTES = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"prompt": [70] * 2000},
}
NEVER = Refusal(
    Code.PREFILL_MEMORY_EXCEEDED, "Too big.", Retryable.NO, estimated_bytes=9, limit_bytes=5
)


async def raw_answer(agent: Any, path: str, body: dict[str, Any]) -> bytes:
    """Return every byte that came back, from the first one on."""
    reader, writer = await raw_request(
        agent.port, "POST", path, json.dumps(body).encode(), "Connection: close\r\n"
    )
    async with asyncio.timeout(10):
        answer = await reader.read()
    writer.close()
    return answer


@pytest.mark.parametrize("engine_type", ["batched", "speculative"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", sorted(ROUTES))
async def test_memory_refusals_are_the_first_bytes_and_no_engine_saw_the_request(
    start_agent: Any, path: str, stream: bool, engine_type: str
) -> None:
    agent = await start_agent(say([[70]]), spec={"engineType": EngineType(engine_type)})
    agent.admission.refusal = NEVER
    body = {"model": "tiny", "stream": stream, **ROUTES[path]}
    answer = await raw_answer(agent, path, body)
    head, _, content = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 413 ")
    assert b"content-type: application/json" in head
    assert json.loads(content)["error"]["code"] == "prefill_memory_exceeded"
    assert len(agent.admission.asked) == 1
    assert agent.pool.commands == []
    assert not agent.pool.leases
    assert not agent.admission.held


@pytest.mark.parametrize("stream", [False, True])
async def test_a_context_error_comes_before_memory_is_asked_about(
    start_agent: Any, stream: bool
) -> None:
    agent = await start_agent(say([[70]]))
    agent.admission.refusal = NEVER
    body = {"model": "tiny", "prompt": [70] * 5000, "stream": stream}
    answer = await raw_answer(agent, "/v1/completions", body)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"context_length_exceeded" in answer
    assert agent.admission.asked == []
    assert agent.pool.commands == []


async def test_all_rows_are_asked_for_with_the_longest_prompt_and_the_largest_output(
    start_agent: Any,
) -> None:
    agent = await start_agent(say([[70]]))
    prompts = [[70] * 300, [70] * 100]
    body = {"model": "tiny", "prompt": prompts, "n": 2, "max_tokens": 50}
    assert (await raw_answer(agent, "/v1/completions", body)).startswith(b"HTTP/1.1 200 ")
    [asked] = agent.admission.asked
    assert (asked.prompt_tokens, asked.max_tokens, asked.rows) == (300, 50, 4)
