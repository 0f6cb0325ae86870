"""The agent's load stream, inspection, logs and health over real HTTP."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from manifests.wire.report import Inspection, LoadReport
from node_agent.api.fleet_routes import find_tail, read_from
from tests.support.scripted_pool import say

QUIET = say([[70]])


async def test_load_is_reported_at_once_on_change_and_every_second(start_agent: Any) -> None:
    agent = await start_agent(QUIET)
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(10), agent.http.stream("GET", "/fleet/v1/load") as answer:
        lines = answer.aiter_lines()
        first = LoadReport.model_validate_json(await anext(lines))
        began = loop.time()
        await anext(lines)
        assert loop.time() - began <= 1.5
        began = loop.time()
        agent.pool.update(running=1)
        third = LoadReport.model_validate_json(await anext(lines))
        assert loop.time() - began < 0.5
        assert third.sequence == first.sequence + 2


async def test_changes_in_a_burst_give_ten_reports_a_second_at_most(start_agent: Any) -> None:
    agent = await start_agent(QUIET)
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(10), agent.http.stream("GET", "/fleet/v1/load") as answer:
        lines = answer.aiter_lines()
        await anext(lines)
        began = loop.time()
        for _ in range(3):
            agent.pool.changed()
            await anext(lines)
        assert loop.time() - began >= 0.29


async def test_open_streams_end_when_the_agent_closes(start_agent: Any) -> None:
    agent = await start_agent(QUIET)
    async with asyncio.timeout(5), agent.http.stream("GET", "/fleet/v1/load") as answer:
        lines = answer.aiter_lines()
        await anext(lines)
        agent.api.close()
        assert [line async for line in lines if not json.loads(line)] == []


async def test_a_source_is_inspected_or_refused_in_words(start_agent: Any) -> None:
    agent = await start_agent(QUIET)
    found = await agent.http.post("/fleet/v1/inspect", json={"path": "/models/tiny"})
    assert Inspection.model_validate_json(found.content).weights_bytes == 5
    missing = await agent.http.post("/fleet/v1/inspect", json={"path": "/models/none"})
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "not_found")
    wrong = await agent.http.post("/fleet/v1/inspect", json={"path": "a", "hub": "b"})
    assert wrong.status_code == 400


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "engine.log"
    path.write_text("one\ntwo\nthree\n")
    return path


async def test_a_log_can_be_read_from_its_tail(start_agent: Any, log: Path) -> None:
    agent = await start_agent(QUIET)
    agent.pool.logs["tiny-0"] = log
    url = "/fleet/v1/engines/tiny-0/log"
    whole = await agent.http.get(url)
    assert whole.text == "one\ntwo\nthree\n"
    assert whole.headers["content-type"].startswith("text/plain")
    assert (await agent.http.get(url, params={"tailLines": 2})).text == "two\nthree\n"
    assert (await agent.http.get(url, params={"tailLines": "x"})).status_code == 400


async def test_a_followed_log_ends_when_its_engine_is_gone(start_agent: Any, log: Path) -> None:
    agent = await start_agent(QUIET)
    agent.pool.logs["tiny-0"] = log
    url = "/fleet/v1/engines/tiny-0/log?follow=true&tailLines=1"
    async with asyncio.timeout(5), agent.http.stream("GET", url) as answer:
        lines = answer.aiter_lines()
        assert await anext(lines) == "three"
        with log.open("a") as file:
            file.write("four\n")
        assert await anext(lines) == "four"
        agent.pool.set_wanted({})
        assert [line async for line in lines] == []


@pytest.mark.parametrize("name", ["other", "..%2F..%2Fetc%2Fpasswd", "%2e%2e", "~", "tiny-0%00"])
async def test_a_log_of_no_engine_is_not_found(start_agent: Any, log: Path, name: str) -> None:
    """B95: only names of engines reach the disk."""
    agent = await start_agent(QUIET)
    agent.pool.logs["tiny-0"] = log
    answer: httpx.Response = await agent.http.get(f"/fleet/v1/engines/{name}/log")
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "not_found"


def test_the_tail_of_a_file_is_found_whatever_its_end(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"a\nb\nc")
    places = [find_tail(path, lines) for lines in (None, 0, 1, 2, 3, 9)]
    assert places == [0, 5, 4, 2, 0, 0]
    path.write_bytes(b"")
    assert find_tail(path, 3) == 0
    assert read_from(tmp_path / "none", 4) == (b"", 4)


def test_a_log_that_began_anew_is_read_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"new")
    assert read_from(path, 100) == (b"new", 3)


async def test_readiness_names_the_stuck_engine(start_agent: Any) -> None:
    agent = await start_agent(QUIET)
    assert (await agent.http.get("/healthz")).status_code == 200
    assert (await agent.http.get("/readyz")).status_code == 200
    agent.pool.update(making_progress=False)
    answer = await agent.http.get("/readyz")
    assert (answer.status_code, answer.json()["stuckEngines"]) == (503, ["tiny-0"])
    assert (await agent.http.get("/healthz")).status_code == 200


async def test_metrics_are_served_in_prometheus_form(start_agent: Any) -> None:
    agent = await start_agent(QUIET)
    answer = await agent.http.get("/metrics")
    assert 'mlxfleet_node_engines{phase="Ready"} 1.0' in answer.text
