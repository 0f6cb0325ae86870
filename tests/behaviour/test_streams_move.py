"""A node that dies, hangs or restarts takes no answer with it (B55, B61, B65).

Real processes and tiny models at temperature 0: each text must be the one that is heard when
nothing happens.
"""

import asyncio
import json
import os
import shutil
import signal
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import psutil
import pytest

from tests.support.fleet import Fleet, Part, eventually, running_fleet
from tests.support.stream_client import Crowd, Heard, listen
from tests.support.tiny_models import tiny_model

pytestmark = pytest.mark.processes

STREAMS = 50
LONG = 600
"""Tokens of answers that must not end before what is done to their node is done."""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with running_fleet(tmp_path_factory.mktemp("moves"), agents=2) as running:
        running.serve("m", tiny_model("llama"), replicas=2)
        all_open(running)
        yield running


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as opened:
        yield opened


def metric(fleet: Fleet, name: str, labels: str) -> float:
    page = httpx.get(fleet.url + "/metrics", trust_env=False, timeout=30).text
    found = [
        line.split(" ")[-1]
        for line in page.splitlines()
        if line.startswith(f"{name}{{") and labels in line
    ]
    return sum(map(float, found))


def cuts(fleet: Fleet) -> float:
    return metric(fleet, "mlxfleet_gateway_upstream_attempts_total", 'outcome="cut"')


def all_open(fleet: Fleet, model: str = "m") -> None:
    name = "mlxfleet_gateway_endpoints_accepting"
    eventually(lambda: metric(fleet, name, f'model="{model}"') == 2, "both engines are open")


def thinking_model(directory: Path) -> Path:
    """Return a model whose chat template opens the thinking in the prompt."""
    made = shutil.copytree(tiny_model("llama", markers=True), directory / "thinker")
    path = made / "tokenizer_config.json"
    config = json.loads(path.read_text())
    config["chat_template"] += "<think>\n"
    path.write_text(json.dumps(config))
    return made


def is_stopping(agent: Part) -> bool:
    return httpx.get(agent.url + "/readyz", trust_env=False, timeout=30).status_code != 200


def bodies(count: int, tokens: int) -> list[dict[str, Any]]:
    return [
        {
            "model": "m",
            "messages": [{"role": "user", "content": f"stream number {index} begins"}],
            "temperature": 0,
            "max_tokens": tokens,
            "ignore_eos": True,
        }
        for index in range(count)
    ]


async def whole(fleet: Fleet, session: aiohttp.ClientSession, body: dict[str, Any]) -> Any:
    """Return the text of an answer that is not streamed."""
    async with session.post(fleet.url + "/v1/chat/completions", json=body) as answer:
        assert answer.status == 200, await answer.text()
        return (await answer.json())["choices"][0]["message"]["content"]


async def undisturbed(
    fleet: Fleet, session: aiohttp.ClientSession, asked: list[dict[str, Any]]
) -> list[Any]:
    crowd = Crowd(session, fleet.url)
    crowd.start(asked)
    return [heard.told_once() for heard in await crowd.ended()]


def on(crowd: Crowd, node: str) -> list[Heard]:
    return [heard for heard in crowd.heard if heard.node == node and heard.running]


async def under_way(fleet: Fleet, crowd: Crowd, count: int) -> str:
    """Return a node with so many streams in the middle, once there is one."""
    await crowd.until(lambda all_: any(len(on(all_, name)) >= count for name in fleet.agents))
    return max(fleet.agents, key=lambda name: len(on(crowd, name)))


def processes(fleet: Fleet, model: str) -> dict[str, psutil.Process]:
    """Return a model's engine of each node.

    Looked up before the streams begin: tiny models end an answer while one asks for its engine.
    """
    return {
        engine["spec"]["node"]: psutil.Process(engine["status"]["pid"])
        for engine in fleet.engines(model)
    }


async def test_streams_survive_the_kill_of_their_engine(
    fleet: Fleet, session: aiohttp.ClientSession
) -> None:
    asked = bodies(6, LONG)
    right = await undisturbed(fleet, session, asked)
    engines, crowd, before = processes(fleet, "m"), Crowd(session, fleet.url), cuts(fleet)
    crowd.start(asked)
    engines[await under_way(fleet, crowd, 2)].kill()
    assert [one.told_once() for one in await crowd.ended()] == right
    assert cuts(fleet) > before
    all_open(fleet)


async def test_thinking_goes_on_as_thinking_where_its_node_dies(
    fleet: Fleet, session: aiohttp.ClientSession, tmp_path: Path
) -> None:
    """B16: a template that opens the thinking, and a stream that moves in the middle of it."""
    fleet.serve("thinker", thinking_model(tmp_path), replicas=2)
    all_open(fleet, "thinker")
    asked = [{**body, "model": "thinker"} for body in bodies(6, LONG)]
    right = await undisturbed(fleet, session, asked)
    assert all(thoughts[0] for _, thoughts, *_ in right)
    engines, crowd, before = processes(fleet, "thinker"), Crowd(session, fleet.url), cuts(fleet)
    crowd.start(asked)
    engines[await under_way(fleet, crowd, 2)].kill()
    assert [one.told_once() for one in await crowd.ended()] == right
    assert cuts(fleet) > before
    fleet.delete_model("thinker")


async def test_streams_leave_a_node_that_hangs(
    fleet: Fleet, session: aiohttp.ClientSession
) -> None:
    """B61: the sockets stay open, so only the silence tells."""
    asked = bodies(6, LONG)
    right = await undisturbed(fleet, session, asked)
    crowd, before = Crowd(session, fleet.url), cuts(fleet)
    crowd.start(asked)
    victim = await under_way(fleet, crowd, 2)
    agent = fleet.agents[victim]
    os.kill(agent.pid, signal.SIGSTOP)
    try:
        # Answers that have not begun leave it too, those just sent and those that are not streamed.
        asking = [asyncio.create_task(whole(fleet, session, body)) for body in asked]
        assert await asyncio.gather(*asking) == [one[0][0] for one in right]
        assert [one.told_once() for one in await crowd.ended()] == right
        assert cuts(fleet) > before
    finally:
        os.kill(agent.pid, signal.SIGCONT)
    all_open(fleet)


async def test_a_rolling_restart_under_load_loses_no_request(
    fleet: Fleet, session: aiohttp.ClientSession
) -> None:
    """B65: the first node is told twice and has to let go, the second drains to the end.

    What the first lets go of goes on elsewhere.
    """
    ended: list[Heard] = []
    answers: list[str] = []
    over = asyncio.Event()

    async def stream_on(number: int) -> None:
        while not over.is_set():
            body = bodies(number + 1, 40)[number]
            ended.append(await listen(session, fleet.url, body, Heard()))

    async def ask_on(number: int) -> None:
        while not over.is_set():
            body = bodies(number + 1, 20)[number]
            answers.append(await whole(fleet, session, body))

    load = [asyncio.create_task(stream_on(one)) for one in range(2)]
    load.append(asyncio.create_task(ask_on(0)))
    before, long = cuts(fleet), Crowd(session, fleet.url)
    long.start(bodies(4, LONG))
    hurried = await under_way(fleet, long, 1)
    for name in sorted(fleet.agents, key=lambda one: one != hurried):
        agent = fleet.agents[name]
        if name == hurried:
            os.kill(agent.pid, signal.SIGTERM)
            # Two signals at once would be one.
            await asyncio.to_thread(eventually, partial(is_stopping, agent), "it stops")
        assert await asyncio.to_thread(agent.stop) == 0
        agent.start()
        await asyncio.to_thread(fleet.wait_node, name)
        await asyncio.to_thread(all_open, fleet)
    over.set()
    await asyncio.gather(*load)
    assert len(set(answers)) == 1
    assert all(one.told_once() for one in await long.ended())
    assert cuts(fleet) > before
    texts = {str(one.told_once()) for one in ended}
    assert len(texts) == 2


async def test_fifty_streams_survive_the_kill_of_their_node(
    fleet: Fleet, session: aiohttp.ClientSession
) -> None:
    asked = bodies(STREAMS, 100)
    right = await undisturbed(fleet, session, asked)
    assert len({str(one[0]) for one in right}) > STREAMS // 2
    crowd, before = Crowd(session, fleet.url), cuts(fleet)
    crowd.start(asked)
    wholes = [asyncio.create_task(whole(fleet, session, body)) for body in asked[:6]]
    victim = await under_way(fleet, crowd, STREAMS // 4)
    fleet.agents[victim].kill()
    heard = await crowd.ended()
    assert await asyncio.gather(*wholes) == [one[0][0] for one in right[:6]]
    assert [one.told_once() for one in heard] == right
    assert cuts(fleet) - before >= STREAMS // 5
