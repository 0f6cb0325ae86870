"""B59: a busy node is never taken for a dead one: health answers whatever else is going on.

The bound is the one that a probe of once a second has; what is measured here is a hundredth to a
quarter of it.
"""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from tests.support.fleet import Fleet, eventually, running_fleet
from tests.support.tiny_models import tiny_model

pytestmark = pytest.mark.processes

PROBE_SECONDS_MAX = 1.0
BIG_BYTES = 27_000_000


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with running_fleet(tmp_path_factory.mktemp("health")) as running:
        running.serve("m", tiny_model("llama", context=32768))
        yield running


def post(url: str, path: str, body: Any) -> httpx.Response:
    return httpx.post(url + path, content=body, trust_env=False, timeout=200)


class Prober(threading.Thread):
    """Asks for the health of one process, again and again."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.url = url
        self.over = threading.Event()
        self.seconds: list[float] = []
        self.bad: list[str] = []

    def run(self) -> None:
        with httpx.Client(trust_env=False, timeout=60) as client:
            while not self.over.wait(0.02):
                began = time.monotonic()
                try:
                    answer = client.get(self.url + "/healthz")
                    if answer.status_code != 200:
                        self.bad.append(str(answer.status_code))
                except httpx.TransportError as fault:
                    self.bad.append(repr(fault))
                self.seconds.append(time.monotonic() - began)


@contextmanager
def probed(fleet: Fleet) -> Iterator[None]:
    """Probe the controller with its gateway and the agent while the block runs."""
    [agent] = fleet.agents.values()
    before = fleet.engines("m")
    probers = [Prober(fleet.url), Prober(agent.url)]
    for prober in probers:
        prober.start()
    try:
        yield
    finally:
        for prober in probers:
            prober.over.set()
            prober.join()
    for prober in probers:
        assert prober.bad == []
        assert prober.seconds
        assert max(prober.seconds) < PROBE_SECONDS_MAX, prober.url
    after = fleet.engines("m")
    assert [one["metadata"]["uid"] for one in after] == [one["metadata"]["uid"] for one in before]
    [pid] = {one["status"]["pid"] for one in (*before, *after)}
    assert pid


def big_ids() -> bytes:
    return json.dumps({"model": "m", "prompt": [5] * (BIG_BYTES // 3), "max_tokens": 4}).encode()


def big_chat() -> bytes:
    message = {"role": "user", "content": "x"}
    count = BIG_BYTES // (len(json.dumps(message)) + 2)
    return json.dumps({"model": "m", "messages": [message] * count, "max_tokens": 4}).encode()


def through_gateway(fleet: Fleet) -> str:
    return fleet.url


def to_agent(fleet: Fleet) -> str:
    [agent] = fleet.agents.values()
    return agent.url


@pytest.mark.parametrize(
    ("where", "path", "make"),
    [
        (through_gateway, "/v1/completions", big_ids),
        (to_agent, "/v1/completions", big_ids),
        (to_agent, "/v1/chat/completions", big_chat),
    ],
)
def test_health_answers_while_a_big_body_is_read_rendered_and_tokenized(
    fleet: Fleet, where: Callable[[Fleet], str], path: str, make: Callable[[], bytes]
) -> None:
    body = make()
    with probed(fleet):
        answer = post(where(fleet), path, body)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize("where", [through_gateway, to_agent])
def test_a_body_over_the_limit_is_refused_before_it_is_parsed(
    fleet: Fleet, where: Callable[[Fleet], str]
) -> None:
    """It is no JSON, so whoever parsed it would say so."""
    with probed(fleet):
        answer = post(where(fleet), "/v1/chat/completions", b"{" * (33 * 1024 * 1024))
    assert answer.status_code == 413
    assert answer.json()["error"]["code"] == "request_too_large"


def test_health_answers_while_a_long_prompt_is_fed(fleet: Fleet) -> None:
    content = "The quick brown fox jumps over the lazy dog. " * 250
    message = {"role": "user", "content": content}
    body = json.dumps({"model": "m", "messages": [message], "max_tokens": 2}).encode()
    with probed(fleet):
        answer = post(fleet.url, "/v1/chat/completions", body)
    assert answer.status_code == 200
    assert answer.json()["usage"]["prompt_tokens"] > 3000


def test_health_answers_while_a_model_loads(fleet: Fleet) -> None:
    with probed(fleet):
        fleet.serve("n", tiny_model("llama", hidden=256))
        eventually(lambda: "n" in ready(fleet), "the model is served")
    fleet.delete_model("n")


def ready(fleet: Fleet) -> list[str]:
    answer = httpx.get(to_agent(fleet) + "/v1/models", trust_env=False, timeout=30).json()
    return [one["id"] for one in answer["data"] if one["ready"]]
