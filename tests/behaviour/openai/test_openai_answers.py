"""Answers of one agent to the official client, streamed and whole."""

import asyncio
import json
from typing import Any

import httpx
import openai
import pytest

from manifests.errors import Code, Refusal, Retryable
from tests.support.local_text import local_text
from tests.support.scripted_pool import say

HI = [{"role": "user", "content": "hi"}]
SENTENCE = "alpha beta gamma delta"


async def chat(agent: Any, **fields: Any) -> Any:
    return await agent.openai.chat.completions.create(model="tiny", messages=HI, **fields)


async def collect(stream: Any) -> list[Any]:
    return [chunk async for chunk in stream]


def text_of(chunks: list[Any], index: int = 0) -> str:
    choices = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
    return "".join(choice.delta.content or "" for choice in choices)


def reasons_of(chunks: list[Any], index: int = 0) -> list[str | None]:
    choices = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
    return [choice.finish_reason for choice in choices]


def pieces_of(agent_text: Any, text: str) -> list[list[int]]:
    return [[number] for number in agent_text.ids(text)]


@pytest.fixture
def sentence(model_directory: Any) -> list[list[int]]:
    return pieces_of(local_text(model_directory), SENTENCE)


async def test_streamed_and_whole_chat_say_the_same(start_agent: Any, sentence: Any) -> None:
    """B08, B12, B27: one text, one role, one reason, one [DONE]."""
    agent = await start_agent(say(sentence))
    whole = await chat(agent)
    chunks = await collect(await chat(agent, stream=True))
    assert whole.choices[0].message.content == SENTENCE == text_of(chunks)
    assert whole.choices[0].finish_reason == "stop"
    assert reasons_of(chunks) == [None] * (len(chunks) - 1) + ["stop"]
    assert [chunk.choices[0].delta.role for chunk in chunks].count("assistant") == 1
    assert {chunk.id for chunk in chunks} == {chunks[0].id}
    assert {chunk.created for chunk in chunks} == {chunks[0].created}
    assert whole.model == chunks[0].model == "tiny"
    assert whole.system_fingerprint == "fp_0123456789ab"
    assert whole.usage.prompt_tokens == len(agent.pool.commands[0].prompt)
    assert whole.usage.completion_tokens == len(sentence)
    assert whole.usage.prompt_tokens_details.cached_tokens == 2
    # Lease and memory go back a step after the answer.
    async with asyncio.timeout(5):
        await agent.pool.idle.wait()
    assert not agent.admission.held
    assert not agent.pool.leases


@pytest.mark.parametrize("name", ["max_completion_tokens", "max_tokens"])
@pytest.mark.parametrize("stream", [False, True])
async def test_the_cap_ends_an_endless_answer(start_agent: Any, name: str, stream: bool) -> None:
    """B01: seven tokens and `length` under either name."""
    agent = await start_agent(say([[70]], endless=True))
    answer = await chat(agent, stream=stream, **{name: 7})
    if stream:
        chunks = await collect(answer)
        assert (len(text_of(chunks)), reasons_of(chunks)[-1]) == (7, "length")
    else:
        assert answer.usage.completion_tokens == 7
        assert answer.choices[0].finish_reason == "length"
    assert agent.pool.commands[0].max_tokens == 7


async def test_a_stop_string_ends_the_answer_and_the_engines_work(
    start_agent: Any, sentence: Any
) -> None:
    """B13: spanning tokens, same in both modes, and generation is cancelled."""
    agent = await start_agent(say(sentence, endless=True))
    whole = await chat(agent, stop=["a gam"])
    chunks = await collect(await chat(agent, stop=["a gam"], stream=True))
    assert whole.choices[0].message.content == text_of(chunks) == "alpha bet"
    assert whole.choices[0].finish_reason == reasons_of(chunks)[-1] == "stop"
    async with asyncio.timeout(2):
        await agent.pool.idle.wait()
    assert all(stream.cancelled.is_set() for stream in agent.pool.streams)


async def test_several_choices_are_told_apart(start_agent: Any, sentence: Any) -> None:
    """B02, B08, B25: n choices by index, each with a reason and a seed; usage counts all."""
    agent = await start_agent(say(sentence))
    whole = await chat(agent, n=3, seed=1)
    assert [choice.index for choice in whole.choices] == [0, 1, 2]
    assert whole.usage.completion_tokens == 3 * len(sentence)
    assert len({command.sampling.seed for command in agent.pool.commands}) == 3
    chunks = await collect(await chat(agent, n=3, stream=True))
    for index in range(3):
        assert text_of(chunks, index) == SENTENCE
        assert [reason for reason in reasons_of(chunks, index) if reason] == ["stop"]
    assert agent.admission.asked[0].rows == 3


async def test_usage_is_streamed_only_on_request(start_agent: Any, sentence: Any) -> None:
    """B15."""
    agent = await start_agent(say(sentence))
    for options in (None, {"include_usage": False}):
        chunks = await collect(await chat(agent, stream=True, stream_options=options))
        assert all(chunk.choices and chunk.usage is None for chunk in chunks)
    asked = await collect(
        await chat(agent, stream=True, n=2, stream_options={"include_usage": True})
    )
    assert asked[-1].choices == []
    assert asked[-1].usage.completion_tokens == 2 * len(sentence)
    assert all(chunk.choices and chunk.usage is None for chunk in asked[:-1])


async def test_log_probabilities_have_each_endpoints_form(start_agent: Any, sentence: Any) -> None:
    """B04."""
    agent = await start_agent(say(sentence))
    whole = await chat(agent, logprobs=True, top_logprobs=2)
    content = whole.choices[0].logprobs.content
    assert b"".join(bytes(item.bytes) for item in content) == SENTENCE.encode()
    assert [len(item.top_logprobs) for item in content] == [2] * len(sentence)
    chunks = await collect(await chat(agent, logprobs=True, stream=True))
    streamed = [c.choices[0].logprobs for c in chunks if c.choices[0].logprobs]
    assert [i.token for p in streamed for i in p.content] == [i.token for i in content]
    legacy = await agent.openai.completions.create(model="tiny", prompt="x", logprobs=2)
    assert "".join(legacy.choices[0].logprobs.tokens) == SENTENCE
    assert legacy.choices[0].logprobs.text_offset[:2] == [0, len(content[0].token)]


@pytest.mark.parametrize("prompt", ["hi", ["hi", "ho"], [70, 71], [[70], [71, 72]]])
async def test_legacy_prompts_of_every_form_are_answered(
    start_agent: Any, sentence: Any, prompt: Any
) -> None:
    """B05: index = prompt times n plus choice; one id in a stream."""
    agent = await start_agent(say(sentence))
    prompts = prompt if isinstance(prompt[0], list | str) and not isinstance(prompt, str) else [0]
    whole = await agent.openai.completions.create(model="tiny", prompt=prompt, n=2)
    assert [choice.index for choice in whole.choices] == list(range(2 * len(prompts)))
    assert {choice.text for choice in whole.choices} == {SENTENCE}
    sent = [command.prompt for command in agent.pool.commands]
    assert sent[0] == sent[1]
    assert len({tuple(ids) for ids in sent}) == len(prompts)
    stream = await agent.openai.completions.create(model="tiny", prompt=prompt, stream=True)
    chunks = await collect(stream)
    assert len({(chunk.id, chunk.created) for chunk in chunks}) == 1
    assert sum(chunk.choices[0].finish_reason == "stop" for chunk in chunks) == len(prompts)


async def test_the_engine_gets_the_ids_of_the_chat_template(
    start_agent: Any, sentence: Any
) -> None:
    """B19, B23: tools, variables and history are rendered by the model's own template."""
    agent = await start_agent(
        say(sentence), spec={"chatTemplate": {"variables": {"enable_thinking": True}}}
    )
    function = {"name": "look", "arguments": '{"city":"Oslo"}'}
    turns: Any = [
        *HI,
        {
            "role": "assistant",
            "tool_calls": [{"id": "c", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "c", "content": "rain"},
    ]
    tools: Any = [{"type": "function", "function": {"name": "look", "parameters": {}}}]
    await agent.openai.chat.completions.create(
        model="tiny",
        messages=turns,
        tools=tools,
        extra_body={"chat_template_kwargs": {"enable_thinking": False}},
    )
    command = agent.pool.commands[0]
    rendered = agent.text.tokenizer.decode(command.prompt)
    assert "[tool look][thinking False]" in rendered
    assert "[call look city=Oslo]" in rendered
    assert rendered.count("rain") == 1
    assert command.stop_token_ids == agent.text.ready.defaults.eos_token_ids
    await agent.openai.chat.completions.create(
        model="tiny", messages=HI, tools=tools, tool_choice="none"
    )
    assert "[tool" not in agent.text.tokenizer.decode(agent.pool.commands[1].prompt)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_prompt_beyond_the_context_is_refused_before_any_byte(
    start_agent: Any, sentence: Any, stream: bool
) -> None:
    """B10: 400 with both numbers, in both modes; one token less is served."""
    agent = await start_agent(say(sentence))
    with pytest.raises(openai.BadRequestError) as refused:
        await agent.openai.completions.create(model="tiny", prompt=[70] * 4096, stream=stream)
    assert refused.value.code == "context_length_exceeded"
    assert refused.value.body["message"].count("4096") == 2
    served = await agent.openai.completions.create(model="tiny", prompt=[70] * 4095)
    assert served.choices[0].finish_reason == "length"
    assert served.usage.completion_tokens == 1
    assert not agent.pool.leases


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_that_does_not_fit_is_refused_with_its_bytes(
    start_agent: Any, sentence: Any, stream: bool
) -> None:
    agent = await start_agent(say(sentence))
    agent.admission.refusal = Refusal(
        Code.PREFILL_MEMORY_EXCEEDED,
        "Too big.",
        Retryable.LATER,
        estimated_bytes=9,
        limit_bytes=5,
        binding="dynamic",
        retry_after_seconds=7,
    )
    answer = await agent.http.post(
        "/v1/chat/completions", json={"model": "tiny", "messages": HI, "stream": stream}
    )
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "7"
    error = answer.json()["error"]
    assert (error["estimated_bytes"], error["limit_bytes"], error["retryable"]) == (9, 5, "later")
    assert not agent.pool.commands
    assert not agent.pool.leases


async def test_ids_outside_the_vocabulary_are_refused(start_agent: Any, sentence: Any) -> None:
    agent = await start_agent(say(sentence))
    for fields in ({"prompt": [10**6]}, {"prompt": "x", "logit_bias": {"1000000": 1}}):
        answer = await agent.http.post("/v1/completions", json={"model": "tiny", **fields})
        assert answer.status_code == 400, json.dumps(fields)
    assert not agent.pool.leases


async def test_a_stream_on_the_wire_is_lines_of_json_and_one_done(
    start_agent: Any, sentence: Any
) -> None:
    """B08, B12: no empty deltas, [DONE] once and last."""
    agent = await start_agent(say(sentence))
    body = {"model": "tiny", "messages": HI, "stream": True}
    answer: httpx.Response = await agent.http.post("/v1/chat/completions", json=body)
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = answer.text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    chunks = [json.loads(item.removeprefix("data: ")) for item in events[:-2]]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert all(delta["content"] for delta in deltas[:-1])
    assert deltas[-1] == {}
