"""B16: thinking is told apart from the answer, alike streamed and whole."""

import json
from pathlib import Path
from typing import Any

import pytest

from manifests.wire.continuation import (
    CONTINUE_PATH,
    TELL,
    TELL_HEADER,
    Continuation,
    ToldRow,
    pack,
)
from tests.support.local_text import local_text
from tests.support.scripted_pool import say, scripted_view
from tests.support.stream_client import Heard
from tests.support.tiny_tokenizers import write_tokenizer

CHAT = "/v1/chat/completions"
ASK: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
SPELLED = ["<thi", "nk>plan</th", "ink>answer"]


def thinker(directory: Path, *, opens: bool) -> Path:
    """Return a model directory whose template knows thinking, and may open it in the prompt."""
    write_tokenizer("byte_level", directory)
    path = directory / "tokenizer_config.json"
    config = json.loads(path.read_text())
    config["chat_template"] += "{% if enable_thinking is defined and not enable_thinking %}"
    config["chat_template"] += "<think>\n\n</think>\n\n{% endif %}"
    if opens:
        config["chat_template"] += "{% if enable_thinking is not defined %}<think>\n{% endif %}"
    path.write_text(json.dumps(config))
    return directory


@pytest.fixture(scope="module")
def plain_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return thinker(tmp_path_factory.mktemp("plain") / "tiny", opens=False)


@pytest.fixture(scope="module")
def opening_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return thinker(tmp_path_factory.mktemp("opening") / "tiny", opens=True)


async def agent_of(start_agent: Any, directory: Path, pieces: list[str], **spec: Any) -> Any:
    text = local_text(directory)
    agent = await start_agent(say([text.ids(piece) for piece in pieces]))
    agent.pool.engines = [scripted_view(directory, **spec)]
    return agent


async def both(agent: Any, **more: Any) -> tuple[dict[str, Any], str]:
    """Return the message and finish reason of an answer that is the same streamed and whole."""
    whole = (await agent.http.post(CHAT, json={**ASK, **more})).json()["choices"][0]
    streamed = await agent.http.post(CHAT, json={**ASK, **more, "stream": True})
    heard = Heard()
    for line in streamed.text.split("\n"):
        heard.take(line)
    assert heard.thoughts.get(0, "") == whole["message"].get("reasoning_content", "")
    assert heard.texts[0] == (whole["message"]["content"] or "")
    assert heard.reasons == {0: [whole["finish_reason"]]}
    assert heard.roles == {0: 1}
    return whole["message"], whole["finish_reason"]


async def test_tags_across_tokens_part_thinking_and_answer(
    start_agent: Any, plain_model: Path
) -> None:
    agent = await agent_of(start_agent, plain_model, SPELLED)
    message, reason = await both(agent)
    assert (message["reasoning_content"], message["content"], reason) == ("plan", "answer", "stop")


async def test_a_cap_in_the_thinking_leaves_no_content(start_agent: Any, plain_model: Path) -> None:
    text = local_text(plain_model)
    within = len(text.ids("<thi")) + len(text.ids("nk>plan</th"))
    agent = await agent_of(start_agent, plain_model, SPELLED)
    for cap in (within - 1, within):
        message, reason = await both(agent, max_tokens=cap)
        assert message["reasoning_content"].rstrip("<") == "plan"
        assert message["content"] is None
        assert reason == "length"


async def test_thinking_that_never_closes_stays_thinking(
    start_agent: Any, opening_model: Path
) -> None:
    agent = await agent_of(start_agent, opening_model, ["it is", " late"])
    message, reason = await both(agent)
    assert (message["reasoning_content"], message["content"]) == ("it is late", None)
    assert reason == "stop"


async def test_a_template_that_opens_the_thinking_is_seen(
    start_agent: Any, opening_model: Path
) -> None:
    """Also when it closes it at once for a client that wants none, or when the client quotes it."""
    agent = await agent_of(start_agent, opening_model, ["plan</think>answer"])
    message, _ = await both(agent)
    assert (message["reasoning_content"], message["content"]) == ("plan", "answer")
    agent = await agent_of(start_agent, opening_model, ["answer"])
    message, _ = await both(agent, chat_template_kwargs={"enable_thinking": False})
    assert (message["content"], "reasoning_content" in message) == ("answer", False)
    agent = await agent_of(start_agent, opening_model, ["answer"])
    quoting = [{"role": "user", "content": "<think>"}]
    asked_to = {"enable_thinking": True}
    message, _ = await both(agent, messages=quoting, chat_template_kwargs=asked_to)
    assert message["content"] == "answer"


async def test_a_model_that_never_opens_a_tag_only_answers(
    start_agent: Any, plain_model: Path
) -> None:
    agent = await agent_of(start_agent, plain_model, ["a < b", " and </b>"])
    message, _ = await both(agent)
    assert message == {"role": "assistant", "content": "a < b and </b>", "refusal": None}


async def test_two_blocks_and_several_choices(start_agent: Any, plain_model: Path) -> None:
    agent = await agent_of(start_agent, plain_model, ["<think>a</think>x<think>b</think>y"])
    message, _ = await both(agent)
    assert (message["reasoning_content"], message["content"]) == ("ab", "xy")
    whole = (await agent.http.post(CHAT, json={**ASK, "n": 2})).json()
    assert [one["message"]["reasoning_content"] for one in whole["choices"]] == ["ab", "ab"]


async def test_the_declared_parser_goes_before_what_the_files_know(
    start_agent: Any, plain_model: Path, model_directory: Path
) -> None:
    raw = await agent_of(start_agent, plain_model, SPELLED, reasoningParser="none")
    assert (await both(raw))[0]["content"] == "".join(SPELLED)
    unknown = await agent_of(start_agent, model_directory, SPELLED)
    assert (await both(unknown))[0]["content"] == "".join(SPELLED)
    told = await agent_of(start_agent, model_directory, SPELLED, reasoningParser="think")
    assert (await both(told))[0]["content"] == "answer"
    other = await agent_of(
        start_agent, plain_model, ["[THINK]plan[/THINK]answer"], reasoningParser="mistral"
    )
    assert (await both(other))[0]["reasoning_content"] == "plan"


async def test_completions_are_the_text_as_generated(start_agent: Any, plain_model: Path) -> None:
    agent = await agent_of(start_agent, plain_model, SPELLED)
    body = {"model": "tiny", "prompt": "hi", "max_tokens": 100}
    whole = await agent.http.post("/v1/completions", json=body)
    assert whole.json()["choices"][0]["text"] == "".join(SPELLED)


async def test_stops_and_log_probabilities_see_all_that_is_generated(
    start_agent: Any, plain_model: Path
) -> None:
    agent = await agent_of(start_agent, plain_model, SPELLED)
    message, reason = await both(agent, stop=["an</th"])
    assert (message["reasoning_content"], message["content"], reason) == ("pl", None, "stop")
    whole = (await agent.http.post(CHAT, json={**ASK, "logprobs": True})).json()["choices"][0]
    shown = b"".join(bytes(item["bytes"]) for item in whole["logprobs"]["content"])
    assert shown.decode() == "".join(SPELLED)


async def test_what_was_thought_earlier_is_accepted(start_agent: Any, plain_model: Path) -> None:
    """As the answer gave it back: with content null when there was only thinking."""
    agent = await agent_of(start_agent, plain_model, SPELLED)
    earlier, _ = await both(agent)
    cut = {"role": "assistant", "content": None, "reasoning_content": "plan"}
    other_name = {"role": "assistant", "content": "a", "reasoning": "plan"}
    for message in (earlier, cut, other_name):
        history = [*ASK["messages"], message, {"role": "user", "content": "more"}]
        assert (await both(agent, messages=history))[0]["content"] == "answer"
    bad = [*ASK["messages"], {"role": "assistant", "content": "a", "reasoning_content": 5}]
    refused = await agent.http.post(CHAT, json={**ASK, "messages": bad})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "messages[1].reasoning_content"


async def test_thinking_goes_on_as_thinking_at_another_node(
    start_agent: Any, opening_model: Path
) -> None:
    """The node that goes on reads the tags in what was said before, whatever was cut off."""
    text = local_text(opening_model)
    ids = text.ids("plan</think>answer")
    body = json.dumps({**ASK, "stream": True}).encode()
    agent = await start_agent(say([ids]))
    agent.pool.engines = [scripted_view(opening_model)]
    begun = await agent.http.post(CHAT, content=body, headers={TELL_HEADER: TELL})
    identity = next(line for line in begun.text.split("\n") if line.startswith(":@"))
    id_, created, fingerprint, _ = identity[2:].split(" ")
    said = text.ids("plan</thi")
    head = Continuation(
        path=CHAT, id=id_, created=int(created), fingerprint=fingerprint, rows=(ToldRow(ids=said),)
    )
    other = await agent_of(start_agent, opening_model, ["nk>answer"])
    rest = await other.http.post(CONTINUE_PATH, content=pack(head, body))
    heard = Heard()
    for line in rest.text.split("\n"):
        heard.take(line)
    assert (heard.thoughts, heard.texts) == ({0: ""}, {0: "answer"})
