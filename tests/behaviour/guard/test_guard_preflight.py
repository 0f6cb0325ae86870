"""A prompt of 100,000 tokens is refused at once, and no engine sees it (B43)."""

import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from manifests.units import MIB
from tests.support.guarded import GuardedNode, check_refusal, guarded_node
from tests.support.tiny_models import tiny_model

pytestmark = pytest.mark.processes

HUGE_TOKENS = 100_000


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedNode]:
    with guarded_node(tmp_path_factory.mktemp("preflight")) as running:
        running.serve(tiny_model("llama", context=131072))
        running.tighten(64 * MIB)
        yield running


def raw_answer(node: GuardedNode, body: dict[str, Any]) -> tuple[bytes, float]:
    """Return every byte that came back, and the seconds from the last byte sent to the first."""
    content = json.dumps(body).encode()
    host, _, port = node.agent.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=30) as link:
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(content)}\r\n"
        link.sendall(head.encode() + b"Connection: close\r\n\r\n" + content)
        sent = time.perf_counter()
        answer = link.recv(65536)
        seconds = time.perf_counter() - sent
        while part := link.recv(65536):
            answer += part
    return answer, seconds


def served_prompt_tokens(node: GuardedNode) -> int:
    """Return how many prompt tokens the node has served so far."""
    text = node.http.get(node.agent.url + "/metrics").text
    lines = [line for line in text.splitlines() if line.startswith("mlxfleet_node_prompt_tokens")]
    return sum(int(float(line.rsplit(" ", 1)[1])) for line in lines)


@pytest.mark.parametrize("stream", [False, True])
def test_a_huge_prompt_is_refused_within_a_third_of_a_second(
    node: GuardedNode, stream: bool
) -> None:
    body = node.body(HUGE_TOKENS, max_tokens=16, stream=stream)
    raw_answer(node, body)
    before = served_prompt_tokens(node)
    timed = [raw_answer(node, body) for _ in range(3)]
    seconds = min(taken for _, taken in timed)
    print(f"{HUGE_TOKENS} token ids refused in {1000 * seconds:.0f} ms (stream={stream})")
    for answer, _ in timed:
        head, _, content = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 413 ")
        check_refusal(json.loads(content)["error"])
    assert seconds < 0.3
    assert served_prompt_tokens(node) == before
    assert (node.engine()["running"], node.engine()["waiting"]) == (0, 0)


def test_a_prompt_past_the_context_is_a_context_error_though_memory_lacks_too(
    node: GuardedNode,
) -> None:
    answer = node.complete(131_072)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"
