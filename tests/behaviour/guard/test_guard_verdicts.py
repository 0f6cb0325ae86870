"""What fits is served and what does not is refused with true figures, for each kind of past (B43).

The longest prompt that fits is what the node's own refusal says; 0.90 and 0.99 of it must be
served, 1.01 and 2 times must be refused, before any byte.
"""

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from manifests.units import MIB
from tests.support.fleet import eventually
from tests.support.guarded import GuardedNode, check_refusal, guarded_node
from tests.support.tiny_models import tiny_model

pytestmark = pytest.mark.processes

CONTEXT = 16384
ROOM_BYTES = 48 * MIB
KINDS = {"full": "llama", "windowed": "gemma3_text", "hybrid": "qwen3_next"}


@pytest.fixture(scope="module", params=sorted(KINDS))
def node(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GuardedNode]:
    with guarded_node(tmp_path_factory.mktemp(request.param)) as running:
        running.serve(
            tiny_model(KINDS[request.param], context=CONTEXT, hidden=128, heads=16),
            prefill={"chunkTokens": 512},
        )
        running.tighten(ROOM_BYTES)
        yield running


def refusal(answer: httpx.Response) -> dict[str, object]:
    """Return the error of a memory refusal after checking that its figures are true."""
    assert answer.status_code in {413, 503}, answer.text
    error: dict[str, object] = answer.json()["error"]
    check_refusal(error)
    return error


def served(node: GuardedNode, share: float, *, stream: bool) -> httpx.Response:
    """Send a share of what fits by the node's word of the moment, until its word holds.

    What an engine holds at rest moves a little: other processes share its libraries, and cached
    blocks come and go. A refusal must say that less fits now than what was asked for.
    """
    for _ in range(20):
        tokens = int(share * node.find_limit_tokens())
        answer = node.complete(tokens, stream=stream)
        if answer.status_code == 200:
            break
        assert int(answer.json()["error"]["fitting_tokens"]) < tokens, answer.text
    return answer


def test_under_the_limit_is_served_and_over_it_is_refused(node: GuardedNode) -> None:
    print(f"{node.find_limit_tokens()} tokens fit into {ROOM_BYTES // MIB} MiB")
    for share, stream in itertools.product((0.90, 0.99), (False, True)):
        answer = served(node, share, stream=stream)
        assert answer.status_code == 200, (share, answer.text)
    for share, stream in itertools.product((1.01, 2.0), (False, True)):
        answer = node.complete(int(share * node.find_limit_tokens()), stream=stream)
        assert answer.status_code == 413, (share, answer.text)
        assert refusal(answer)["retryable"] == "no"


def test_growth_to_max_tokens_is_reserved_for_every_row_and_named_as_the_reason(
    node: GuardedNode,
) -> None:
    prompt = int(0.2 * node.find_limit_tokens())
    assert node.complete(prompt, max_tokens=24).status_code == 200
    answer = node.complete(prompt, max_tokens=CONTEXT - prompt - 1, n=24)
    assert answer.status_code == 413, answer.text
    assert "max_tokens" in str(refusal(answer)["message"])


def test_running_requests_are_counted_and_what_waits_is_told_so(node: GuardedNode) -> None:
    """Growth of running rows is reserved: the same prompt fits alone and not beside three."""
    limit = node.find_limit_tokens()
    share, tokens = int(0.3 * limit), 64
    with ThreadPoolExecutor(3) as threads:
        running = [
            threads.submit(node.complete, share, max_tokens=tokens, ignore_eos=True)
            for _ in range(3)
        ]
        eventually(lambda: node.engine()["running"] + node.engine()["waiting"] > 0, "requests run")
        answer = node.complete(int(0.6 * limit))
        answers = [item.result() for item in running]
    assert all(item.status_code in {200, 503} for item in answers), [a.text for a in answers]
    assert any(item.status_code == 200 for item in answers)
    # It waited its turn, or was told to come again; it was never admitted beside the others
    # into bytes that were not there.
    if answer.status_code != 200:
        assert answer.status_code == 503, answer.text
        assert refusal(answer)["retryable"] == "later"
        assert int(answer.headers["retry-after"]) >= 1
    assert served(node, 0.9, stream=False).status_code == 200
