"""A model that was unloaded while idle is still there for clients of the fleet."""

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.fleet import Fleet, condition, eventually, running_fleet
from tests.support.tiny_models import tiny_model

pytestmark = pytest.mark.processes


@pytest.fixture
def fleet(tmp_path: Any) -> Iterator[Fleet]:
    with running_fleet(tmp_path) as running:
        yield running


def only_status(fleet: Fleet) -> dict[str, Any]:
    [engine] = fleet.engines("tiny")
    status: dict[str, Any] = engine["status"]
    return status


async def test_an_idle_model_leaves_stays_listed_and_comes_back_for_twenty_requests(
    fleet: Fleet,
) -> None:
    fleet.serve("tiny", tiny_model("llama"), keep={"idleTTL": "1s"})
    before = only_status(fleet)

    def left() -> bool:
        return bool(only_status(fleet)["phase"] == "Stopped")

    eventually(left, "the idle engine is unloaded")
    status = only_status(fleet)
    assert (status["reason"], status["message"]) == ("IdleTTL", "no request for 1s")
    assert condition(fleet.find("models", "tiny"), "Ready") == "True"
    async with httpx.AsyncClient(base_url=fleet.url, timeout=60, trust_env=False) as client:
        names = [item["id"] for item in (await client.get("/v1/models")).json()["data"]]
        assert names == ["tiny"]

        async def ask(index: int) -> httpx.Response:
            body = {"model": "tiny", "prompt": f"{index}", "max_tokens": 4, "stream": index % 2 > 0}
            return await client.post("/v1/completions", json=body)

        answers = await asyncio.gather(*(ask(index) for index in range(20)))
    assert [answer.status_code for answer in answers] == [200] * 20, answers[0].text
    assert all("[DONE]" in answer.text for answer in answers[1::2])

    def back() -> bool:
        return only_status(fleet)["pid"] not in {None, before["pid"]} or left()

    eventually(back, "the engine's status tells of its return")
    assert only_status(fleet)["restarts"] == 0
