"""Refusals and faults as HTTP answers, in OpenAI's form on every route of the agent.

The one place where errors become HTTP; routes raise `FleetError` and nothing else.
"""

from collections.abc import Mapping

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ExceptionHandler

from manifests.errors import Code, FleetError, Refusal, Retryable
from manifests.wire.error_body import openai_error, openai_headers
from node_agent.serving.sse import encode_json


def refusal_response(refusal: Refusal, headers: Mapping[str, str] | None = None) -> Response:
    """Return the JSON answer for a refusal."""
    return Response(
        encode_json(openai_error(refusal)),
        status_code=refusal.http_status,
        headers={**openai_headers(refusal), **(headers or {})},
        media_type="application/json",
    )


def _on_fleet_error(_: Request, error: Exception) -> Response:
    if not isinstance(error, FleetError):
        raise error
    return refusal_response(error.refusal)


def _on_http_error(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    if error.status_code == 405:
        method = f"{request.method[:16]} is not allowed on this path."
        return refusal_response(Refusal(Code.METHOD_NOT_ALLOWED, method), error.headers)
    return refusal_response(Refusal(Code.NOT_FOUND, "There is nothing at this path."))


def _on_fault(_: Request, __: Exception) -> Response:
    message = "The agent failed on this request; its log says why."
    return refusal_response(Refusal(Code.INTERNAL, message, Retryable.ELSEWHERE))


ERROR_HANDLERS: dict[type[Exception] | int, ExceptionHandler] = {
    FleetError: _on_fleet_error,
    HTTPException: _on_http_error,
    Exception: _on_fault,
}
