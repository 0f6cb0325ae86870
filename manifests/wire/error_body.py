"""Refusals as the bodies, statuses and headers that the OpenAI and Anthropic clients parse.

Pure. Called at the edge of the agent and of the gateway, and by those who read their answers.
"""

from typing import Any

from manifests.errors import HTTP_STATUS, Code, Refusal, Retryable

_OPENAI_TYPES: dict[int, str] = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
}

_ANTHROPIC_TYPES: dict[int, str] = {
    **_OPENAI_TYPES,
    413: "request_too_large",
    529: "overloaded_error",
}

_FAULTS = frozenset({Code.ENGINE_DIED, Code.ENGINE_STUCK, Code.UPSTREAM_LOST, Code.INTERNAL})

_EXTRAS = (
    "estimated_bytes",
    "limit_bytes",
    "binding",
    "fitting_tokens",
    "retry_after_seconds",
    "node",
)
_DEFAULT_RETRY_AFTER_SECONDS = 1


def openai_error(refusal: Refusal) -> dict[str, Any]:
    """Return the body of an error on an OpenAI route; extra fields tell routers where to retry."""
    error: dict[str, Any] = {
        "message": _message(refusal),
        "type": _openai_type(refusal),
        "param": refusal.param,
        "code": refusal.code.value,
        "retryable": refusal.retryable.value,
        **_extras(refusal),
    }
    return {"error": error}


def _openai_type(refusal: Refusal) -> str:
    if refusal.code is Code.INSUFFICIENT_QUOTA:
        return refusal.code.value
    return _OPENAI_TYPES.get(refusal.http_status, "server_error")


def openai_headers(refusal: Refusal) -> dict[str, str]:
    """Return the headers that go with the body: Retry-After where waiting helps."""
    return _retry_headers(refusal, refusal.http_status)


def anthropic_status(refusal: Refusal) -> int:
    """Return the status on an Anthropic route.

    Too little memory is 400 there: its clients read 413 as a request body over 32 MB. What
    waiting helps is 529, its "overloaded"; what broke is 500. Its clients retry both.
    Source: the classes of anthropic 2.14 and its documented error types.
    """
    status = refusal.http_status
    if status == 413 and refusal.code is not Code.REQUEST_TOO_LARGE:
        return 400
    if refusal.code in _FAULTS:
        return 500
    return 529 if status == 503 else status


def anthropic_error(refusal: Refusal, request_id: str | None = None) -> dict[str, Any]:
    """Return the body of an error on an Anthropic route, and of an `error` event there.

    `details.error_code` is our stable code, which its clients show as `error_code`.
    """
    return {
        "type": "error",
        "error": {
            "type": _ANTHROPIC_TYPES.get(anthropic_status(refusal), "api_error"),
            "message": _message(refusal),
            "details": {
                "error_code": refusal.code.value,
                "retryable": refusal.retryable.value,
                **_extras(refusal),
            },
        },
        "request_id": request_id,
    }


def anthropic_headers(refusal: Refusal, request_id: str | None = None) -> dict[str, str]:
    """Return the headers of an Anthropic error: Retry-After where waiting helps, and the id."""
    own = {} if request_id is None else {"request-id": request_id}
    return {**_retry_headers(refusal, anthropic_status(refusal)), **own}


def parse_openai_error(status: int, body: Any) -> Refusal:
    """Return the refusal that another of our processes wrote, or the nearest that can be told."""
    error = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict):
        return Refusal(Code.UPSTREAM_LOST, f"upstream answered {status}", Retryable.ELSEWHERE)
    known = {code.value for code in HTTP_STATUS}
    where = {item.value for item in Retryable}
    code, retryable = _text(error.get("code")), _text(error.get("retryable"))
    return Refusal(
        code=Code(code) if code in known else Code.INTERNAL,
        message=str(error.get("message", "")),
        retryable=Retryable(retryable) if retryable in where else Retryable.NO,
        param=_text(error.get("param")),
        estimated_bytes=_whole(error.get("estimated_bytes")),
        limit_bytes=_whole(error.get("limit_bytes")),
        binding=_text(error.get("binding")),
        retry_after_seconds=_whole(error.get("retry_after_seconds")),
        fitting_tokens=_whole(error.get("fitting_tokens")),
        node=_text(error.get("node")),
    )


def _message(refusal: Refusal) -> str:
    return f"{refusal.message} {refusal.hint}".strip()


def _extras(refusal: Refusal) -> dict[str, int | str]:
    values = {name: getattr(refusal, name) for name in _EXTRAS}
    return {name: value for name, value in values.items() if value is not None}


def _retry_headers(refusal: Refusal, status: int) -> dict[str, str]:
    if refusal.code is Code.DEADLINE_EXCEEDED:
        # Clients of both kinds retry every 5xx unless told not to; this time is over for good.
        return {"x-should-retry": "false"}
    if status not in {429, 503, 529}:
        return {}
    if status == 429 and refusal.retryable is Retryable.NO:
        # The official clients repeat every 429 unless they are told not to.
        return {"X-Should-Retry": "false"}
    seconds = refusal.retry_after_seconds
    return {"Retry-After": str(_DEFAULT_RETRY_AFTER_SECONDS if seconds is None else seconds)}


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
