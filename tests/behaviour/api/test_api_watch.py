"""Watches over HTTP: order, resume, the ends of a stream, tables (B81, B83)."""

import asyncio
from collections.abc import AsyncIterator

import aiohttp
import pytest

from tests.support.controllers import API, MERGE, TABLE, call, serving, watching
from tests.support.objects import guard, model

MODELS = f"{API}/models"


@pytest.fixture
async def http() -> AsyncIterator[tuple[aiohttp.ClientSession, str]]:
    async with serving(history_changes=100) as url, aiohttp.ClientSession() as session:
        yield session, url + MODELS


def brief(events):
    return [
        (e["type"], e["object"]["metadata"]["name"], e["object"]["metadata"]["resourceVersion"])
        for e in events
    ]


async def test_events_come_in_order_and_a_resumed_watch_misses_none(http):
    session, url = http
    await call(session, "POST", url, model("a"))
    async with watching(session, url) as events:
        assert brief(await events.take(1)) == [("ADDED", "a", "1")]
        await call(session, "PATCH", f"{url}/a", {"spec": {"replicas": 2}}, headers=MERGE)
        assert brief(await events.take(1)) == [("MODIFIED", "a", "2")]
    await call(session, "DELETE", f"{url}/a")
    await call(session, "POST", url, model("b"))
    async with watching(session, url, resourceVersion="2") as events:
        assert brief(await events.take(2)) == [("DELETED", "a", "3"), ("ADDED", "b", "4")]


async def test_a_write_without_effect_sends_nothing(http):
    session, url = http
    await call(session, "POST", url, model("a"))
    async with watching(session, url, resourceVersion="1") as events:
        await call(session, "PATCH", f"{url}/a", {"spec": {"replicas": 1}}, headers=MERGE)
        await call(session, "POST", url, model("b"))
        assert brief(await events.take(1)) == [("ADDED", "b", "2")]


async def test_initial_events_end_with_a_bookmark(http):
    session, url = http
    await call(session, "POST", url, model("a"))
    params = {
        "sendInitialEvents": "true",
        "resourceVersionMatch": "NotOlderThan",
        "allowWatchBookmarks": "true",
    }
    async with watching(session, url, fieldSelector="metadata.name=a", **params) as events:
        added, mark = await events.take(2)
    assert (added["type"], mark["type"]) == ("ADDED", "BOOKMARK")
    annotations = mark["object"]["metadata"]["annotations"]
    assert annotations == {"k8s.io/initial-events-end": "true"}


@pytest.mark.parametrize("version", ["1", "99999"])
async def test_a_version_that_is_not_kept_ends_with_410_and_a_list_repairs(http, version):
    session, url = http
    guards = url.replace("/models", "/memoryguards")
    await call(session, "POST", guards, guard("g"))
    if version == "1":
        # One object rewritten until the history no longer reaches back to version 1.
        for number in range(130):
            patch = {"metadata": {"labels": {"n": str(number)}}}
            await call(session, "PATCH", f"{guards}/g", patch, headers=MERGE)
    async with watching(session, url, resourceVersion=version) as events:
        error = await events.next()
        assert await events.at_end()
    assert (error["type"], error["object"]["code"]) == ("ERROR", 410)
    assert error["object"]["reason"] == "Expired"
    _, listed = await call(session, "GET", url)
    newest = listed["metadata"]["resourceVersion"]
    async with watching(session, url, resourceVersion=newest) as events:
        await call(session, "POST", url, model("later"))
        assert brief(await events.take(1))[0][:2] == ("ADDED", "later")


async def test_a_version_that_is_no_number_is_a_plain_400(http):
    session, url = http
    code, status = await call(session, "GET", f"{url}?watch=1&resourceVersion=abc")
    assert (code, status["reason"]) == (400, "BadRequest")


async def test_a_watch_ends_cleanly_when_its_time_is_up(http):
    session, url = http
    async with watching(session, url, timeoutSeconds="1") as events:
        assert await events.at_end()


async def test_a_table_watch_names_its_columns_once(http):
    session, url = http
    await call(session, "POST", url, model("a"))
    await call(session, "POST", url, model("b"))
    async with watching(session, url, headers=TABLE) as events:
        first, second = await events.take(2)
    assert first["object"]["columnDefinitions"][0]["name"] == "Name"
    assert second["object"]["columnDefinitions"] == []
    assert second["object"]["rows"][0]["cells"][0] == "b"


async def test_open_watches_end_when_the_controller_stops():
    async with aiohttp.ClientSession() as session:
        async with serving() as url:
            answer = await session.get(url + MODELS, params={"watch": "1"})
            assert answer.status == 200
        assert await asyncio.wait_for(answer.content.read(), 10) == b""
        answer.close()
