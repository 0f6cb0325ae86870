"""Refusals survive the way through HTTP, and each route family gets its own status."""

from typing import Any

import pytest

from manifests.errors import HTTP_STATUS, Code, Refusal, Retryable
from manifests.wire.error_body import (
    anthropic_error,
    anthropic_headers,
    anthropic_status,
    openai_error,
    openai_headers,
    parse_openai_error,
)

FULL = Refusal(
    Code.PREFILL_MEMORY_EXCEEDED,
    "The request needs 2.00 GiB.",
    Retryable.LATER,
    param="messages",
    estimated_bytes=2 << 30,
    limit_bytes=1 << 30,
    binding="metal",
    retry_after_seconds=3,
    fitting_tokens=1234,
    node="mac-1",
)


def never(code: Code, retryable: Retryable = Retryable.NO) -> Refusal:
    return Refusal(code, "No.", retryable)


def test_a_refusal_reads_back_as_it_was_written() -> None:
    assert parse_openai_error(FULL.http_status, openai_error(FULL)) == FULL


@pytest.mark.parametrize("code", list(Code))
@pytest.mark.parametrize("retryable", list(Retryable))
def test_every_refusal_has_a_body_of_both_forms(code: Code, retryable: Retryable) -> None:
    refusal = never(code, retryable)
    assert parse_openai_error(refusal.http_status, openai_error(refusal)) == refusal
    body = anthropic_error(refusal, "req-1")
    assert (body["type"], body["request_id"]) == ("error", "req-1")
    assert body["error"]["type"].endswith(("_error", "_large"))
    assert 400 <= anthropic_status(refusal) <= 529


def test_every_code_has_a_status() -> None:
    assert set(HTTP_STATUS) == set(Code)


@pytest.mark.parametrize(
    "error",
    [
        {"code": ["x"], "retryable": {}, "estimated_bytes": "9", "limit_bytes": True, "node": 3},
        {"code": None, "message": None},
        {},
    ],
)
def test_foreign_fields_are_not_believed(error: dict[str, Any]) -> None:
    refusal = parse_openai_error(500, {"error": error})
    assert (refusal.code, refusal.retryable) == (Code.INTERNAL, Retryable.NO)
    assert (refusal.estimated_bytes, refusal.limit_bytes, refusal.node) == (None, None, None)


@pytest.mark.parametrize(
    ("refusal", "openai", "anthropic", "kind"),
    [
        (never(Code.PREFILL_MEMORY_EXCEEDED), 413, 400, "invalid_request_error"),
        (
            never(Code.PREFILL_MEMORY_EXCEEDED, Retryable.ELSEWHERE),
            413,
            400,
            "invalid_request_error",
        ),
        (FULL, 503, 529, "overloaded_error"),
        (never(Code.CONTEXT_LENGTH_EXCEEDED), 400, 400, "invalid_request_error"),
        (never(Code.REQUEST_TOO_LARGE), 413, 413, "request_too_large"),
        (never(Code.QUEUE_FULL, Retryable.LATER), 503, 529, "overloaded_error"),
        (never(Code.NO_READY_ENGINE, Retryable.LATER), 503, 529, "overloaded_error"),
        (never(Code.ENGINE_DIED, Retryable.ELSEWHERE), 503, 500, "api_error"),
        (never(Code.UPSTREAM_LOST, Retryable.LATER), 502, 500, "api_error"),
        (never(Code.INTERNAL), 500, 500, "api_error"),
        (never(Code.MODEL_NOT_FOUND), 404, 404, "not_found_error"),
        (never(Code.METHOD_NOT_ALLOWED), 405, 405, "invalid_request_error"),
    ],
)
def test_each_route_family_has_its_status(
    refusal: Refusal, openai: int, anthropic: int, kind: str
) -> None:
    assert refusal.http_status == openai
    assert anthropic_status(refusal) == anthropic
    assert anthropic_error(refusal)["error"]["type"] == kind


def test_only_what_waiting_helps_says_how_long() -> None:
    assert openai_headers(FULL) == {"Retry-After": "3"}
    assert anthropic_headers(FULL, "req-1") == {"Retry-After": "3", "request-id": "req-1"}
    assert openai_headers(never(Code.QUEUE_FULL, Retryable.LATER)) == {"Retry-After": "1"}
    for code in (Code.PREFILL_MEMORY_EXCEEDED, Code.CONTEXT_LENGTH_EXCEEDED, Code.INTERNAL):
        assert openai_headers(never(code)) == {}
        assert anthropic_headers(never(code)) == {}


def test_clients_of_both_kinds_are_told_not_to_send_again_what_ran_out_of_time() -> None:
    """They retry every 5xx by themselves; so does 503, where that is right."""
    late = never(Code.DEADLINE_EXCEEDED)
    assert openai_headers(late) == {"x-should-retry": "false"}
    assert anthropic_headers(late) == {"x-should-retry": "false"}
    assert "x-should-retry" not in openai_headers(never(Code.QUEUE_FULL, Retryable.LATER))
