"""Two real nodes of unequal size: requests go where they fit, wait, or are told that none does.

A request is long here by its max_tokens, which its node reserves for: no long prompt is computed.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from controller.cli.main import run
from tests.bench.plain_routers import running_router
from tests.support.fleet import Fleet, eventually, running_fleet
from tests.support.tiny_models import tiny_model

pytestmark = pytest.mark.processes

CONTEXT = 4_000_000
SMALL, LARGE = "small", "large"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with running_fleet(tmp_path_factory.mktemp("unequal"), agents=0) as running:
        for name, limit in ((SMALL, "640Mi"), (LARGE, "2Gi")):
            running.start_agent(name, "--ram", "12Gi", "--wired-limit", limit)
        guard = {"prefillTransientMargin": "4Mi", "tier": "aggressive"}
        running.apply({"kind": "MemoryGuard", "metadata": {"name": "g"}, "spec": guard})
        running.serve("tiny", tiny_model("llama", context=CONTEXT), replicas=2, memoryGuard="g")
        eventually(lambda: len(rooms(running)) == 2, "both nodes tell what they have")
        yield running


def explain(fleet: Fleet, body: dict[str, Any]) -> dict[str, Any]:
    answer = httpx.post(fleet.url + "/fleet/v1/explain", json=body, timeout=30, trust_env=False)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def request(tokens: int, **fields: Any) -> dict[str, Any]:
    """A short prompt that reserves for so many tokens."""
    return {"model": "tiny", "prompt": [7] * 20, "max_tokens": tokens, "ignore_eos": True, **fields}


def rooms(fleet: Fleet) -> dict[str, dict[str, Any]]:
    """Return what each node that tells says of a request of one token."""
    found = explain(fleet, request(1))["candidates"]
    return {item["node"]: item for item in found if item["known"]}


def tokens_for(fleet: Fleet, share: float, of: str) -> int:
    """Return the output for which a request needs about this share of a node's best day."""
    probe = explain(fleet, request(CONTEXT // 10))["candidates"]
    one = next(item for item in probe if item["node"] == of)
    return int(share * one["everBytes"] / one["needBytes"] * CONTEXT / 10)


@contextmanager
def running_request(fleet: Fleet, tokens: int) -> Iterator[httpx.Response]:
    """Hold a request's stream open once it has begun to answer."""
    body = request(tokens, stream=True)
    with httpx.stream(
        "POST", fleet.url + "/v1/completions", json=body, timeout=60, trust_env=False
    ) as answer:
        assert answer.status_code == 200, answer.read()
        # An iterator that is let go closes its response.
        lines = answer.iter_lines()
        assert any(line.startswith("data:") for line in lines)
        yield answer


def refused_at_nodes(fleet: Fleet) -> float:
    """Return how many attempts any node has refused."""
    page = httpx.get(fleet.url + "/metrics", timeout=30, trust_env=False).text
    return sum(
        float(line.rsplit(" ", 1)[1])
        for line in page.splitlines()
        if line.startswith("mlxfleet_gateway_upstream_attempts_total") and '"refused"' in line
    )


def test_short_requests_spare_the_large_node_and_long_ones_find_it(fleet: Fleet) -> None:
    long = tokens_for(fleet, 1.5, of=SMALL)
    assert explain(fleet, request(10))["exact"]
    for _ in range(3):
        with running_request(fleet, long) as answer:
            assert answer.headers["x-mlxfleet-node"] == LARGE
            assert f"{SMALL} too small" in answer.headers["x-mlxfleet-route"]
    short = httpx.post(fleet.url + "/v1/completions", json=request(2), timeout=60, trust_env=False)
    assert short.status_code == 200
    assert refused_at_nodes(fleet) == 0


def mixed(fleet: Fleet) -> list[dict[str, Any]]:
    """Long requests that one node can hold, two at once, among short ones."""
    long = request(tokens_for(fleet, 1.3, of=SMALL), stream=True)
    return [long if index % 3 == 0 else request(8, stream=True) for index in range(12)]


async def begin(client: httpx.AsyncClient, url: str, body: dict[str, Any]) -> int:
    """Send a request, leave once it begins to answer; its status."""
    async with client.stream("POST", url + "/v1/completions", json=body) as answer:
        if answer.status_code == 200:
            assert [line async for line in first_data(answer)]
        return answer.status_code


async def first_data(answer: httpx.Response) -> AsyncIterator[str]:
    async for line in answer.aiter_lines():
        if line.startswith("data:"):
            yield line
            return


async def send_burst(url: str, bodies: list[dict[str, Any]]) -> list[int]:
    """Send all at once; each one's status."""
    async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
        return await asyncio.gather(*(begin(client, url, body) for body in bodies))


def test_a_burst_of_mixed_requests_is_served_where_round_robin_has_some_refused(
    fleet: Fleet,
) -> None:
    bodies = mixed(fleet)

    async def by_turns() -> list[int]:
        urls = {name: agent.url for name, agent in fleet.agents.items()}
        async with running_router("round robin", urls) as url:
            # One after the other, so that each node's turn is known.
            return [(await send_burst(url, [body]))[0] for body in bodies]

    assert asyncio.run(by_turns()).count(413) == 2
    assert asyncio.run(send_burst(fleet.url, bodies)) == [200] * len(bodies)
    assert refused_at_nodes(fleet) == 0


def test_what_fits_no_node_is_413_with_the_nearest_in_its_own_words(fleet: Fleet) -> None:
    body = request(tokens_for(fleet, 1.3, of=LARGE))
    through = httpx.post(fleet.url + "/v1/completions", json=body, timeout=60, trust_env=False)
    direct = httpx.post(
        fleet.agents[LARGE].url + "/v1/completions", json=body, timeout=60, trust_env=False
    )
    assert (through.status_code, direct.status_code) == (413, 413)
    told, said = through.json()["error"], direct.json()["error"]
    assert told["node"] == LARGE
    assert "The nearest is large" in told["message"]
    for field in ("code", "estimated_bytes", "binding"):
        assert told[field] == said[field]
    assert refused_at_nodes(fleet) == 0


def test_a_full_fleet_makes_the_next_one_wait_until_room_is_back(fleet: Fleet) -> None:
    long = tokens_for(fleet, 0.8, of=LARGE)
    eventually(
        lambda: explain(fleet, request(long))["outcome"] == "send", "the large node has room"
    )
    with running_request(fleet, long):
        waits = eventually(lambda: waiting(fleet, long), "there is no room for a second one")
        assert waits["candidates"][0]["haveBytes"] < waits["candidates"][0]["needBytes"]
        late = httpx.post(
            fleet.url + "/v1/completions",
            json=request(long, deadline_seconds=0.5),
            timeout=60,
            trust_env=False,
        )
        assert late.status_code == 504, late.text
    with running_request(fleet, long) as answer:
        assert answer.headers["x-mlxfleet-node"] == LARGE
    assert refused_at_nodes(fleet) == 0


def waiting(fleet: Fleet, tokens: int) -> dict[str, Any] | None:
    told = explain(fleet, request(tokens))
    return told if told["outcome"] == "wait" else None


def test_mlxctl_explains_a_request_from_a_file(
    fleet: Fleet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "request.json"
    long = request(tokens_for(fleet, 1.5, of=SMALL))
    eventually(lambda: explain(fleet, long)["outcome"] == "send", "the large node has room")
    file.write_text(json.dumps(long))
    assert run(["--server", fleet.url, "route", "explain", "-f", str(file)]) == 0
    shown = capsys.readouterr().out
    assert "would go to large/" in shown
    assert "takes it" in shown
    assert "never" in shown
    assert run(["--server", fleet.url, "route", "explain", "-f", str(file), "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["node"] == LARGE
    file.write_text('{"model": "nope"}')
    assert run(["--server", fleet.url, "route", "explain", "-f", str(file)]) == 3
    assert "does not exist" in capsys.readouterr().err
