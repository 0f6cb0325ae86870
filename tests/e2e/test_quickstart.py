"""The quick start of the README, with a real model and the official OpenAI client."""

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.support.fleet import ROOT, SMOLLM2, Fleet, eventually, running_fleet

pytestmark = [pytest.mark.processes, pytest.mark.smollm2]

QUESTION: list[Any] = [
    {"role": "user", "content": "What is the capital of France? Answer in one sentence."}
]
OPTIONS: dict[str, Any] = {"max_tokens": 32, "temperature": 0}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    assert SMOLLM2.is_dir(), "run `make models` first"
    with running_fleet(tmp_path_factory.mktemp("quickstart"), agents=2) as running:
        for words in (["apply", "-f", "examples/quickstart"], ["wait", "model/smollm2"]):
            command = [sys.executable, "-m", "controller.cli", "--server", running.url, *words]
            options = ["--timeout=120s"] if words[0] == "wait" else []
            subprocess.run([*command, *options], cwd=ROOT, check=True, timeout=180)
        yield running


def client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0, timeout=120)


def ask(url: str, **options: Any) -> Any:
    with client(url) as api:
        return api.chat.completions.create(**options)


def streamed(url: str) -> tuple[str, str | None, Any]:
    text, reason, usage = "", None, None
    with client(url) as api:
        chunks = api.chat.completions.create(
            model="smollm2",
            messages=QUESTION,
            stream=True,
            stream_options={"include_usage": True},
            **OPTIONS,
        )
        for chunk in chunks:
            usage = chunk.usage or usage
            for choice in chunk.choices:
                text += choice.delta.content or ""
                reason = choice.finish_reason or reason
    return text, reason, usage


def test_gateway_and_agents_give_the_same_answer_streaming_and_not(fleet: Fleet) -> None:
    urls = [fleet.url, *(agent.url for agent in fleet.agents.values())]
    answers = []
    for url in urls:
        whole = ask(url, model="smollm2", messages=QUESTION, **OPTIONS)
        text, reason, usage = streamed(url)
        choice = whole.choices[0]
        assert (choice.message.content, choice.finish_reason) == (text, reason)
        assert whole.usage is not None
        counted = (whole.usage.prompt_tokens, whole.usage.completion_tokens)
        assert counted == (usage.prompt_tokens, usage.completion_tokens)
        assert usage.total_tokens == sum(counted)
        answers.append((text, reason, counted))
    assert len(set(answers)) == 1
    text, reason, (prompt_tokens, _) = answers[0]
    assert "Paris" in text
    assert reason in {"stop", "length"}
    assert prompt_tokens > 10


def test_two_copies_stand_on_two_nodes(fleet: Fleet) -> None:
    assert sorted(e["spec"]["node"] for e in fleet.engines("smollm2")) == ["node-1", "node-2"]


def test_an_alias_serves_like_the_name(fleet: Fleet) -> None:
    answer = ask(fleet.url, model="default", messages=QUESTION, **OPTIONS)
    assert "Paris" in (answer.choices[0].message.content or "")
    with client(fleet.url) as api:
        assert {"smollm2", "default"} <= {model.id for model in api.models.list()}


def test_requests_that_come_together_decode_as_one_batch(fleet: Fleet) -> None:
    agent = fleet.agents["node-1"]
    options = {**OPTIONS, "max_tokens": 48, "extra_body": {"ignore_eos": True}}

    def generate(index: int) -> int:
        words: list[Any] = [{"role": "user", "content": f"Tell me fact number {index}."}]
        answer = ask(agent.url, model="smollm2", messages=words, **options)
        assert answer.usage is not None
        return answer.usage.completion_tokens

    def running() -> int:
        report = httpx.get(agent.url + "/metrics", trust_env=False, timeout=10).text
        values = [
            float(line.rsplit(" ", 1)[1])
            for line in report.splitlines()
            if line.startswith("mlxfleet_node_engine_running")
        ]
        return int(max(values, default=0))

    with ThreadPoolExecutor(8) as threads:
        answers = [threads.submit(generate, index) for index in range(8)]
        eventually(lambda: running() >= 8, "eight rows decode together")
        assert [answer.result() for answer in answers] == [48] * 8


def test_the_demo_runs_and_ends_well(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "scripts/demo.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Paris" in done.stdout
    assert "mlxfleet_gateway_requests_total" in done.stdout
