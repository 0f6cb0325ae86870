"""What an ending means for the endpoint and for the next step; and headers both ways."""

from typing import Any

import pytest

from controller.gateway.nodes.breaker import Verdict
from controller.gateway.nodes.endpoints import EndpointKey
from controller.gateway.sending.attempts import (
    Broken,
    Cut,
    Ending,
    Finished,
    History,
    Next,
    Refused,
    judge,
    label,
    lost,
    plan_next,
)
from controller.gateway.sending.headers import plan_downstream_headers, plan_upstream_headers
from controller.gateway.settings import GatewaySettings
from manifests.errors import Code, Refusal, Retryable

SETTINGS = GatewaySettings()


def refused(status: int, code: Code, retryable: Retryable, *, own: bool = True) -> Refused:
    return Refused(status, (), b"{}" if own else None, Refusal(code, "no", retryable))


TOO_LONG = refused(400, Code.CONTEXT_LENGTH_EXCEEDED, Retryable.NO)
TOO_BIG_HERE = refused(413, Code.PREFILL_MEMORY_EXCEEDED, Retryable.ELSEWHERE)
NEVER_HERE = refused(413, Code.PREFILL_MEMORY_EXCEEDED, Retryable.NO)
FULL = refused(503, Code.QUEUE_FULL, Retryable.LATER)
DIED = refused(503, Code.ENGINE_DIED, Retryable.LATER)
FOREIGN = refused(500, Code.UPSTREAM_LOST, Retryable.ELSEWHERE, own=False)
UNKNOWN = refused(404, Code.MODEL_NOT_FOUND, Retryable.NO)
CUT = lost("cut")
NO_ROUTE = lost("no route", unreachable=True)
STALE = lost("stale", stale=True)


def history(**changes: Any) -> History:
    given: dict[str, Any] = {"attempts": 1, "faults": 0, "stale": 0, "elapsed_seconds": 1.0}
    return History(**{**given, **changes})


@pytest.mark.parametrize(
    ("ending", "verdict", "outcome", "step"),
    [
        (Finished(), Verdict.ALIVE, "ok", Next.DONE),
        (Finished(errored=True), Verdict.FAULT, "broken", Next.DONE),
        (Broken(CUT.refusal), Verdict.FAULT, "broken", Next.DONE),
        (Cut(CUT.refusal), Verdict.FAULT, "cut", Next.ELSEWHERE),
        (Cut(CUT.refusal, fault=False), Verdict.ALIVE, "cut", Next.ELSEWHERE),
        (TOO_LONG, Verdict.ALIVE, "client_error", Next.GIVE_UP),
        (TOO_BIG_HERE, Verdict.ALIVE, "refused", Next.ELSEWHERE),
        (NEVER_HERE, Verdict.ALIVE, "refused", Next.ELSEWHERE),
        (FULL, Verdict.ALIVE, "refused", Next.ELSEWHERE),
        (UNKNOWN, Verdict.ALIVE, "client_error", Next.ELSEWHERE),
        (DIED, Verdict.FAULT, "fault", Next.ELSEWHERE),
        (FOREIGN, Verdict.FAULT, "fault", Next.ELSEWHERE),
        (CUT, Verdict.FAULT, "lost", Next.ELSEWHERE),
        (NO_ROUTE, Verdict.UNREACHABLE, "unreachable", Next.ELSEWHERE),
        (STALE, Verdict.NOTHING, "lost", Next.SAME),
    ],
)
def test_each_ending_has_its_meaning(
    ending: Ending, verdict: Verdict, outcome: str, step: Next
) -> None:
    assert judge(ending) is verdict
    assert label(ending) == outcome
    assert plan_next(ending, history(), SETTINGS) is step


@pytest.mark.parametrize(
    ("ending", "so_far"),
    [
        (FULL, history(attempts=SETTINGS.max_attempts)),
        (DIED, history(faults=SETTINGS.max_faults)),
        (NO_ROUTE, history(elapsed_seconds=SETTINGS.retry_deadline_seconds)),
        (STALE, history(elapsed_seconds=SETTINGS.retry_deadline_seconds)),
        (Cut(CUT.refusal, fault=False), history(cuts=SETTINGS.max_moves + 1)),
        (Cut(CUT.refusal), history(cuts=2, faults=SETTINGS.max_faults)),
        (Cut(CUT.refusal), history(cuts=1, left_seconds=0.0)),
    ],
)
def test_attempts_are_bounded(ending: Ending, so_far: History) -> None:
    assert plan_next(ending, so_far, SETTINGS) is Next.GIVE_UP


def test_the_same_node_is_not_tried_for_ever() -> None:
    assert plan_next(STALE, history(stale=9), SETTINGS) is Next.ELSEWHERE


def test_keys_cookies_and_hop_headers_stay_out_of_requests_upstream() -> None:
    given = [
        (b"Host", b"gateway"),
        (b"Authorization", b"Bearer KEY-7f3a"),
        (b"X-Api-Key", b"KEY-7f3a"),
        (b"Cookie", b"a=b"),
        (b"Connection", b"close, X-Hop"),
        (b"X-Hop", b"1"),
        (b"Transfer-Encoding", b"chunked"),
        (b"X-MLXFleet-Node", b"spoofed"),
        (b"X-Request-Id", b"theirs"),
        (b"Traceparent", b"00-1"),
        (b"Content-Type", b"application/json"),
    ]
    assert plan_upstream_headers(given, "ours", {"x-mlxfleet-tenant": "t"}) == {
        "traceparent": "00-1",
        "content-type": "application/json",
        "x-request-id": "ours",
        "x-mlxfleet-tenant": "t",
        "accept-encoding": "identity",
    }


def test_answers_say_who_answered() -> None:
    given = [
        (b"Content-Type", b"text/event-stream"),
        (b"Transfer-Encoding", b"chunked"),
        (b"Server", b"agent"),
        (b"Retry-After", b"7"),
        (b"x-mlxfleet-engine", b"other"),
    ]
    assert plan_downstream_headers(given, EndpointKey("n", "e")) == (
        (b"content-type", b"text/event-stream"),
        (b"retry-after", b"7"),
        (b"x-mlxfleet-node", b"n"),
        (b"x-mlxfleet-engine", b"e"),
    )
