"""Writing answers: JSON, Status objects for every refusal, warnings.

Called by the handlers and the exception handlers; the one place that turns ApiError into HTTP.
"""

from collections.abc import Iterable
from typing import Any

import structlog
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from manifests.wire.status import ApiError

_LOG = structlog.get_logger(__name__)


def answer(
    body: Any, status_code: int = 200, warnings: Iterable[str] = (), media_type: str | None = None
) -> Response:
    """Return a JSON answer with its warnings."""
    response = JSONResponse(body, status_code=status_code, media_type=media_type)
    for text in warnings:
        response.headers.append("Warning", format_warning(text))
    return response


def format_warning(text: str) -> str:
    """Return a Warning header's value; kubectl prints its text."""
    plain = text.encode("ascii", "replace").decode()
    escaped = plain.replace("\\", "\\\\").replace('"', '\\"')
    return f'299 - "{" ".join(escaped.split())}"'


def refuse(error: ApiError) -> Response:
    """Return the Status of a refusal."""
    headers = {}
    if error.code in {429, 503}:
        seconds = error.details.retry_after_seconds
        headers["Retry-After"] = str(1 if seconds is None else seconds)
    if error.code == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse(error.to_status(), status_code=error.code, headers=headers)


async def on_api_error(_request: Request, error: Exception) -> Response:
    """Answer an ApiError that a handler raised."""
    if not isinstance(error, ApiError):
        raise error
    return refuse(error)


async def on_http_exception(request: Request, error: Exception) -> Response:
    """Answer what the router refused: unknown paths and methods."""
    if not isinstance(error, HTTPException):
        raise error
    if error.status_code == 404:
        return refuse(ApiError(404, "the server could not find the requested resource"))
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        problem = f"{request.method} is not allowed here; allowed: {allowed}"
        response = refuse(ApiError(405, problem))
        response.headers["Allow"] = allowed
        return response
    return refuse(ApiError(error.status_code, error.detail))


async def on_fault(request: Request, error: Exception) -> Response:
    """Answer a fault of ours; the details are for the log, not for the client."""
    _LOG.error("request failed", method=request.method, path=request.url.path, exc_info=error)
    return refuse(ApiError(500, "an internal error occurred; the controller's log has the details"))
