"""The gateway counts with a model's own tokenizer: had from a node, checked, kept, restarted."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from controller.gateway.counting.tokenizer_shelf import TokenizerShelf
from manifests.kinds.api_key import Period
from manifests.kinds.key_usage import period_bounds
from manifests.prompt.bundle import pack_bundle
from manifests.prompt.files import read_text_files, text_fingerprint
from manifests.times import format_time
from manifests.wire.prefix_chain import ChainRoot, PrefixChain
from tests.support.gateway_host import Host, gateway_host, until, until_asked
from tests.support.local_text import local_text
from tests.support.scripted_agent import ScriptedAgent, load
from tests.support.scripted_source import api_key, engine, model
from tests.support.tiny_tokenizers import write_tokenizer

pytestmark = pytest.mark.processes

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello  world 👋 étiquette" * 20}]}
START_SECONDS = 60.0


@dataclass(frozen=True)
class Files:
    """A tokenizer as agents have it."""

    directory: Path
    fingerprint: str
    bundle: bytes


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    directory = write_tokenizer("byte_level", tmp_path_factory.mktemp("tokenizer"))
    found = read_text_files(directory)
    return Files(directory, text_fingerprint(found), pack_bundle(found))


def agent_with(
    node: str, files: Files, bundle: bytes | None = None, of: str = "m"
) -> ScriptedAgent:
    one = load(f"{of}-{node}", of=of, textFingerprint=files.fingerprint, cacheFingerprint="c")
    agent = ScriptedAgent(node, one)
    agent.tokenizers[files.fingerprint] = files.bundle if bundle is None else bundle
    return agent


@asynccontextmanager
async def running(*agents: ScriptedAgent, **settings: Any) -> AsyncIterator[Host]:
    """A gateway whose API declares the engines that the agents report."""
    names = {item["model"] for agent in agents for item in agent.engines}
    declared = tuple(model(name) for name in sorted(names))

    async with gateway_host(*agents, models=declared, **settings) as host:
        for agent in agents:
            for item in agent.engines:
                told = engine(item["name"], of=item["model"], on=agent.node)
                host.source.put("engines", told)
        yield host


async def until_ready(host: Host, files: Files) -> None:
    ready = host.gateway.prompts.tokenizers.ready
    await until(lambda: ready(files.fingerprint), START_SECONDS)


async def explain(host: Host, body: dict[str, Any], secret: str = "") -> dict[str, Any]:
    url = host.url.removesuffix("/v1") + "/fleet/v1/explain"
    async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
        answer = await client.post(url, json=body, headers={"x-api-key": secret})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def ids_of(files: Files, body: dict[str, Any]) -> list[int]:
    return await local_text(files.directory).encode_chat(body["messages"], None, {})


async def test_two_models_with_one_tokenizer_fetch_it_once_and_count_as_their_nodes(
    files: Files,
) -> None:
    one, two = agent_with("a", files), agent_with("b", files, of="other")
    async with running(one, two, tokenizer_wait_seconds=30.0) as host:
        await until_ready(host, files)
        count = len(await ids_of(files, CHAT))
        for name in ("m", "other"):
            told = await explain(host, {**CHAT, "model": name})
            assert (told["promptTokens"], told["exact"]) == (count, True)
        assert sorted(one.asked_tokenizers + two.asked_tokenizers) == [files.fingerprint]
        assert len(host.gateway.prompts.tokenizers.pids()) == 1
        # The second was the same prompt for the same tokenizer.
        assert host.metric("mlxfleet_gateway_prompts_total", outcome="counted") == 1
        assert host.metric("mlxfleet_gateway_prompts_total", outcome="repeat") == 1
        # Several prompts of one text request: the longest counts, each is a row.
        told = await explain(host, {"model": "m", "prompt": ["hello", "hello world"], "n": 2})
        assert told["exact"]
        assert told["promptTokens"] == len(local_text(files.directory).ids("hello world"))


async def test_without_a_tokenizer_a_request_goes_at_once_by_the_estimate(files: Files) -> None:
    agent = agent_with("a", files)
    agent.tokenizers.clear()
    async with running(agent) as host:
        await until(lambda: agent.asked_tokenizers)
        told = await explain(host, CHAT)
        assert not told["exact"]
        async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
            answer = await client.post(host.url + "/chat/completions", json=CHAT)
        assert answer.status_code == 200
        # It is tried again, and then counts.
        agent.tokenizers[files.fingerprint] = files.bundle
        await until_ready(host, files)
        tokens = len(await ids_of(files, CHAT))

        # On a busy machine a count may come too late for its request.
        async def counts() -> bool:
            return bool((await explain(host, CHAT))["promptTokens"] == tokens)

        await until_asked(counts)


async def test_a_changed_download_is_refused_and_another_node_asked(
    files: Files, tmp_path: Path
) -> None:
    at = files.bundle.index(b"role")
    bad = agent_with("a", files, files.bundle[:at] + b"R" + files.bundle[at + 1 :])
    async with running(bad, agent_with("b", files), tokenizer_dir=tmp_path) as host:
        await until_ready(host, files)
        assert files.fingerprint in bad.asked_tokenizers
        assert TokenizerShelf(tmp_path, 1 << 30).find(files.fingerprint) is not None


async def test_a_killed_process_comes_back_and_changed_files_are_fetched_anew(
    files: Files, tmp_path: Path
) -> None:
    agent = agent_with("a", files)
    async with running(agent, tokenizer_dir=tmp_path, tokenizer_wait_seconds=30.0) as host:
        await until_ready(host, files)
        pids = host.gateway.prompts.tokenizers.pids
        before = pids()[files.fingerprint]
        (tmp_path / files.fingerprint / "chat_template.jinja").write_text("changed")
        os.kill(before, signal.SIGKILL)
        await until(lambda: pids().get(files.fingerprint) != before)
        async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
            answer = await client.post(host.url + "/chat/completions", json=CHAT)
        assert answer.status_code == 200
        await until_ready(host, files)
        assert pids()[files.fingerprint] != before
        assert agent.asked_tokenizers == [files.fingerprint] * 2
        told = await explain(host, CHAT)
        assert (told["promptTokens"], told["exact"]) == (len(await ids_of(files, CHAT)), True)


async def test_what_cannot_be_rendered_is_for_the_node_to_answer(files: Files) -> None:
    agent = agent_with("a", files)
    bodies: list[Any] = [
        {"messages": "hello"},
        {"messages": [{"role": "king", "content": "x"}]},
        {"messages": [5]},
        {"messages": []},
        {"prompt": "x"},
        {},
    ]
    async with running(agent, tokenizer_wait_seconds=30.0) as host:
        await until_ready(host, files)
        async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
            for body in bodies:
                sent = {"model": "m", **body}
                answer = await client.post(host.url + "/chat/completions", json=sent)
                assert answer.status_code == 200
                assert agent.calls[-1].json == sent
        assert host.metric("mlxfleet_gateway_prompts_total", outcome="counted") == 0
        assert host.gateway.prompts.tokenizers.ready(files.fingerprint)


async def test_a_count_that_the_node_does_not_share_is_not_believed_again(files: Files) -> None:
    agent = agent_with("a", files)  # which always says that a prompt has seven tokens
    async with running(agent, tokenizer_wait_seconds=30.0) as host:
        await until_ready(host, files)
        assert (await explain(host, CHAT))["exact"]
        async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
            await client.post(host.url + "/chat/completions", json=CHAT)
        assert host.metric("mlxfleet_gateway_prompts_total", outcome="mismatch") == 1
        assert not (await explain(host, CHAT))["exact"]


async def test_cached_tokens_follow_what_nodes_tell_of_their_prefixes(files: Files) -> None:
    one, two = agent_with("a", files), agent_with("b", files)
    chain = PrefixChain.of(ChainRoot("c"), await ids_of(files, CHAT), 16)
    names = [digest.hex() for digest in chain.digests]
    root = {"engine": "m-b", "fingerprint": "c", "blockTokens": 16}

    async with running(one, two, tokenizer_wait_seconds=30.0) as host:

        async def cached() -> dict[str, int]:
            told = await explain(host, CHAT)
            return {item["node"]: item["cachedTokens"] for item in told["candidates"]}

        async def until_cached(tokens: int) -> None:
            async with asyncio.timeout(20):
                while await cached() != {"a": 0, "b": tokens}:  # noqa: ASYNC110 - over HTTP
                    await asyncio.sleep(0.01)

        await until_ready(host, files)
        await until_cached(0)
        two.tell_prefixes(**root, full=True, added=names[:5])
        await until_cached(80)
        assert (await explain(host, CHAT))["node"] == "b"
        two.tell_prefixes(**root, added=names[5:6], removed=names[:2])
        await until_cached(96)
        two.tell_prefixes(**root, removed=names[5:6])
        await until_cached(80)
        # A connection that comes anew says all there is; the rest is gone.
        two.cut_prefixes()
        two.tell_prefixes(**root, full=True, added=names[:3])
        await until_cached(48)
        two.tell_prefixes(engine="m-b", full=True)
        await until_cached(0)


@pytest.mark.parametrize(
    ("spec", "code"),
    [
        ({"limits": {"requestsPerMinute": 1}}, "rate_limit_exceeded"),
        ({"budget": {"tokens": 100, "period": "month"}}, "insufficient_quota"),
        ({"models": ["other"]}, "model_not_allowed"),
    ],
)
async def test_what_a_key_may_not_have_anyhow_is_refused_before_its_prompt_is_counted(
    files: Files, spec: dict[str, Any], code: str
) -> None:
    agent = agent_with("a", files)
    async with running(agent, tokenizer_wait_seconds=30.0) as host:
        await until_ready(host, files)
        key = api_key("alice", "s1", **spec)
        if "budget" in spec:
            start = format_time(period_bounds(Period.MONTH, time.time())[0])
            used = {"budgetUsed": 100, "period": "month", "periodStart": start}
            key["status"] = {"usage": used}
        host.source.put("apikeys", key)
        async with httpx.AsyncClient(base_url=host.url, trust_env=False, timeout=30) as http:
            http.headers["x-api-key"] = "s1"

            async def known() -> bool:
                return (await http.get("/models")).status_code == 200 and (
                    await http.get("/models", headers={"x-api-key": "no"})
                ).status_code == 401

            await until_asked(known)
            if "limits" in spec:
                assert (await http.post("/chat/completions", json=CHAT)).status_code == 200
            counted, calls = prompts_seen(host), len(agent.calls)
            answer = await http.post("/chat/completions", json=CHAT)
            assert answer.json()["error"]["code"] == code
            assert (prompts_seen(host), len(agent.calls)) == (counted, calls)
            if code != "model_not_allowed":
                refused = {"key": "alice", "code": code}
                assert host.metric("mlxfleet_gateway_key_refused_total", **refused) == 1
                # Whoever only asks where a request would go is told.
                assert (await explain(host, CHAT, "s1"))["outcome"] == "send"


def prompts_seen(host: Host) -> float:
    name = "mlxfleet_gateway_prompts_total"
    return sum(host.metric(name, outcome=one) for one in ("counted", "repeat", "estimated"))
