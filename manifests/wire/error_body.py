"""Refusals as the bodies that the OpenAI, Anthropic and Kubernetes clients parse."""

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


def openai_error(refusal: Refusal) -> dict[str, Any]:
    """Return the body of an error on an OpenAI route; extra fields tell routers where to retry."""
    error: dict[str, Any] = {
        "message": f"{refusal.message} {refusal.hint}".strip(),
        "type": _OPENAI_TYPES.get(refusal.http_status, "server_error"),
        "param": refusal.param,
        "code": refusal.code.value,
        "retryable": refusal.retryable.value,
    }
    for name in ("estimated_bytes", "limit_bytes", "binding"):
        value = getattr(refusal, name)
        if value is not None:
            error[name] = value
    return {"error": error}


def openai_headers(refusal: Refusal) -> dict[str, str]:
    """Return the headers that go with the body: Retry-After where waiting helps."""
    if refusal.http_status not in {429, 503}:
        return {}
    seconds = 1 if refusal.retry_after_seconds is None else refusal.retry_after_seconds
    return {"Retry-After": str(seconds)}


def parse_openai_error(status: int, body: Any) -> Refusal:
    """Return the refusal that another of our processes wrote, or the nearest that can be told."""
    error = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict):
        return Refusal(Code.UPSTREAM_LOST, f"upstream answered {status}", Retryable.ELSEWHERE)
    known = {code.value for code in HTTP_STATUS}
    where = {item.value for item in Retryable}
    code = error.get("code")
    retryable = error.get("retryable")
    return Refusal(
        code=Code(code) if code in known else Code.INTERNAL,
        message=str(error.get("message", "")),
        retryable=Retryable(retryable) if retryable in where else Retryable.NO,
        param=error.get("param"),
        estimated_bytes=error.get("estimated_bytes"),
        limit_bytes=error.get("limit_bytes"),
        binding=error.get("binding"),
    )
