"""Through a real fleet: the gateway's count is the node's, and it sees what the node has cached."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from manifests.wire.report import LOAD_PATH, LoadReport
from tests.support.fleet import Fleet, eventually, running_fleet
from tests.support.tiny_models import tiny_model

pytestmark = pytest.mark.processes

TOOL = {"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}
CALL = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": '{"q": "x"}'}}
USER = {"role": "user", "content": "Été, Straße, 日本語 🙂  <think> hello"}
CHATS: list[dict[str, Any]] = [
    {"messages": [USER]},
    {"messages": [{"role": "developer", "content": [{"type": "text", "text": "a"}]}, USER]},
    {"messages": [USER], "tools": [TOOL]},
    {"messages": [USER], "tools": [TOOL], "tool_choice": "none"},
    {"messages": [USER], "chat_template_kwargs": {"enable_thinking": False}},
    {
        "messages": [
            USER,
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "c1", "content": "found"},
        ]
    },
]
TEXTS: list[dict[str, Any]] = [
    {"prompt": "hello <|im_start|> 🙂"},
    {"prompt": ["a", "hello world"]},
    {"prompt": [5, 6, 7]},
]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with running_fleet(tmp_path_factory.mktemp("counts")) as running:
        budget = {"hot": {"size": "32Mi"}, "ssd": {"size": "64Mi", "leaveFree": "0"}}
        spec = {**budget, "blockTokens": 32}
        running.apply({"kind": "CacheBudget", "metadata": {"name": "lab"}, "spec": spec})
        running.serve("plain", tiny_model("llama"), cacheBudget="lab")
        thinks = {"variables": {"enable_thinking": False}}
        running.serve("marked", tiny_model("llama", markers=True), chatTemplate=thinks)
        yield running


def post(fleet: Fleet, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = httpx.post(fleet.url + path, json=body, timeout=60, trust_env=False)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def explain(fleet: Fleet, body: dict[str, Any]) -> dict[str, Any]:
    return post(fleet, "/fleet/v1/explain", body)


@pytest.mark.parametrize("model", ["plain", "marked"])
def test_the_gateways_count_is_the_nodes(fleet: Fleet, model: str) -> None:
    eventually(
        lambda: explain(fleet, {"model": model, **CHATS[0]})["exact"], "the gateway counts exactly"
    )
    for path, bodies in (("/v1/chat/completions", CHATS), ("/v1/completions", TEXTS)):
        for body in bodies:
            asked = {"model": model, **body, "max_tokens": 1}
            told = explain(fleet, asked)
            usage = post(fleet, path, asked)["usage"]
            several = isinstance(body.get("prompt"), list) and isinstance(body["prompt"][0], str)
            assert told["exact"]
            if not several:
                assert told["promptTokens"] == usage["prompt_tokens"], body
    metrics = httpx.get(fleet.url + "/metrics", timeout=30, trust_env=False).text
    assert 'mlxfleet_gateway_prompts_total{outcome="counted"}' in metrics
    assert 'outcome="mismatch"' not in metrics


def test_what_a_node_computed_is_seen_as_cached_for_the_next_prompt(fleet: Fleet) -> None:
    story = "Once upon a time a cache kept what others had asked. " * 10
    asked = {"model": "plain", "prompt": story, "max_tokens": 4, "temperature": 0}
    eventually(lambda: explain(fleet, asked)["exact"], "the gateway counts exactly")
    assert explain(fleet, asked)["candidates"][0]["cachedTokens"] == 0
    count = post(fleet, "/v1/completions", asked)["usage"]["prompt_tokens"]

    def cached(prompt: str) -> int:
        told = explain(fleet, {**asked, "prompt": prompt})
        return int(told["candidates"][0]["cachedTokens"])

    eventually(lambda: cached(story) == count // 32 * 32, "every full block is seen")
    assert 0 < cached(story + "And then?") <= count
    assert cached("x" + story) == 0
    again = post(fleet, "/v1/completions", {**asked, "prompt": story + "And then?"})
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] >= cached(story) - 32


def test_the_agent_gives_the_files_of_a_reported_fingerprint_and_no_others(fleet: Fleet) -> None:
    agent = fleet.agents["node-1"].url
    with httpx.stream("GET", agent + LOAD_PATH, timeout=30, trust_env=False) as stream:
        report = LoadReport.model_validate_json(next(stream.iter_lines()))
    names = {load.text_fingerprint for load in report.engines}
    assert len(names) == 2
    assert "" not in names
    for name, status in ((names.pop(), 200), ("0" * 64, 404), ("etc", 400)):
        url = f"{agent}/fleet/v1/tokenizers/{name}"
        answer = httpx.get(url, timeout=30, trust_env=False)
        assert answer.status_code == status, answer.text[:200]
    kept = Path(fleet.directory / "controller" / "tokenizers")
    assert sorted(path.name for path in kept.iterdir()) == sorted(
        load.text_fingerprint for load in report.engines
    )
