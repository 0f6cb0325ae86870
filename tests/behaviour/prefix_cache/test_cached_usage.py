"""What usage says of prompts that come from the cache, streamed and whole, by gateway and agent."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.fleet import Fleet, running_fleet
from tests.support.tiny_models import tiny_model

pytestmark = pytest.mark.processes

STORY = "Once upon a time a cache kept what others had asked. " * 10
Messages = list[dict[str, str]]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with running_fleet(tmp_path_factory.mktemp("fleet")) as running:
        running.serve("tiny", tiny_model("llama", markers=True))
        yield running


def chat(url: str, messages: Messages, *, stream: bool, **fields: Any) -> tuple[str, dict]:
    """Return an answer's text and its usage."""
    body = {"model": "tiny", "messages": messages, "max_tokens": 8, "temperature": 0, **fields}
    if stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60, trust_env=False)
    assert answer.status_code == 200, answer.text
    if not stream:
        found = answer.json()
        return str(found["choices"][0]["message"]["content"]), checked(found["usage"])
    lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: {")]
    chunks = [json.loads(line) for line in lines]
    parts = [one["choices"][0]["delta"].get("content") or "" for one in chunks if one["choices"]]
    (usage,) = [one["usage"] for one in chunks if one.get("usage")]
    return "".join(parts), checked(usage)


def checked(usage: dict[str, Any]) -> dict[str, int]:
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    return {"prompt": usage["prompt_tokens"], "cached": cached}


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


@pytest.mark.parametrize("stream", [False, True])
def test_the_prompt_is_counted_whole_and_what_was_cached_beside_it(
    fleet: Fleet, stream: bool
) -> None:
    """B09."""
    messages = [user(f"{'streamed' if stream else 'whole'} {STORY}")]
    text, first = chat(fleet.url, messages, stream=stream)
    assert first["prompt"] > 256
    # The start of a turn is every prompt's.
    assert first["cached"] < 16
    for url in (fleet.url, fleet.agents["node-1"].url):
        again, second = chat(url, messages, stream=stream)
        assert (again, second) == (text, first | {"cached": first["prompt"] - 1})
    turn = [*messages, {"role": "assistant", "content": text}, user("And then?")]
    _, third = chat(fleet.url, turn, stream=stream)
    assert third["prompt"] > first["prompt"]
    assert first["prompt"] - 1 <= third["cached"] < third["prompt"]


def test_options_of_the_template_count_only_by_the_tokens_they_make(fleet: Fleet) -> None:
    """B35: equal ones hit; others start where their tokens part, and say what they say cold."""
    messages = [user("options " + STORY)]
    texts, cached = [], []
    for thinking in (True, True, False, False, True):
        fields = {"chat_template_kwargs": {"enable_thinking": thinking}}
        text, usage = chat(fleet.url, messages, stream=False, **fields)
        texts.append(text)
        cached.append(usage["prompt"] - usage["cached"])
    assert texts[0] == texts[1] == texts[4] != texts[2] == texts[3]
    # Tokens that were fed: all, then one; of the other options the block in which they part.
    assert cached[1] == cached[3] == cached[4] == 1
    assert 1 < cached[2] < 256 < cached[0]
    other = [user("Options " + STORY)]
    _, usage = chat(fleet.url, other, stream=False)
    assert usage["cached"] < 16
