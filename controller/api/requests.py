"""Reading requests: bodies within bounds, content types, query parameters, Accept.

Knows HTTP and nothing of objects. Every refusal is an ApiError. Called by the handlers.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from starlette.requests import Request

from controller.registry.admission import FieldValidation
from manifests.reading.strict_json import parse_json_strict
from manifests.wire.listwatch import RawObject
from manifests.wire.status import ApiError

MAX_BODY_BYTES = 3 * 1024 * 1024
JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"


@dataclass(frozen=True, slots=True)
class Wants:
    """What form of answer a client asks for."""

    table: bool = False


def parse_accept(accept: str) -> Wants:
    """Return the form that an Accept header asks for; what we do not offer falls back to JSON."""
    for clause in accept.split(","):
        media, *parameters = (part.strip() for part in clause.split(";"))
        asked = dict(part.split("=", 1) for part in parameters if "=" in part)
        if media != JSON and not media.endswith("/*"):
            continue
        if asked.get("as") == "Table" and asked.get("v", "v1") == "v1":
            return Wants(table=True)
        if "as" not in asked:
            return Wants()
    return Wants()


async def read_body(request: Request, limit_bytes: int = MAX_BODY_BYTES) -> bytes:
    """Return the whole body. Raises: ApiError 413 before more than the limit is held."""
    declared = request.headers.get("content-length", "")
    too_large = ApiError(413, f"the request body is larger than {limit_bytes} bytes")
    if declared.isdigit() and int(declared) > limit_bytes:
        raise too_large
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > limit_bytes:
            raise too_large
        parts.append(part)
    return b"".join(parts)


async def read_object(request: Request, accepted: Collection[str] = (JSON,)) -> RawObject:
    """Return the JSON object of the body. Raises: ApiError 400, 413, 415."""
    check_content_type(request, accepted)
    return parse_body(await read_body(request))


def parse_body(body: bytes) -> RawObject:
    """Return the JSON object of a body. Raises: ApiError 400."""
    try:
        return parse_json_strict(body, MAX_BODY_BYTES)
    except ValueError as fault:
        raise ApiError(400, str(fault)) from fault


def check_content_type(request: Request, accepted: Collection[str]) -> str:
    """Return the media type of the body. Raises: ApiError 415 naming the accepted ones."""
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    # kubectl sends `PUT .../scale` without any.
    if not given and JSON in accepted:
        return JSON
    if given not in accepted:
        raise ApiError(
            415,
            f"the body of the request was in an unknown format ({given or 'no Content-Type'}); "
            f"accepted media types are: {', '.join(accepted)}",
        )
    return given


def refuse_impersonation(headers: Mapping[str, str]) -> None:
    """Refuse what is not implemented rather than ignore it. Raises: ApiError 403."""
    if any(name.lower().startswith("impersonate-") for name in headers):
        raise ApiError(403, "impersonation (--as, --as-group) is not supported")


def parse_flag(request: Request, name: str) -> bool | None:
    """Return a boolean parameter, None when absent. Raises: ApiError 400."""
    text = request.query_params.get(name)
    if text is None:
        return None
    if text.lower() in {"true", "1", ""}:
        return True
    if text.lower() in {"false", "0"}:
        return False
    raise ApiError(400, f"{name}={text!r} is neither true nor false")


def parse_count(request: Request, name: str) -> int | None:
    """Return a whole parameter, None when absent. Raises: ApiError 400."""
    text = request.query_params.get(name)
    if text is None or text == "":
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise ApiError(400, f"{name}={text!r} is not a whole number")
    return int(text)


def parse_dry_run(values: Collection[str]) -> bool:
    """Return whether nothing is to be stored. Raises: ApiError 400."""
    unknown = [value for value in values if value != "All"]
    if unknown:
        raise ApiError(400, f"dryRun={unknown[0]!r} is not supported; the only value is All")
    return bool(values)


def parse_field_validation(request: Request) -> FieldValidation:
    """Return what happens to unknown fields; Warn unless said. Raises: ApiError 400."""
    text = request.query_params.get("fieldValidation") or FieldValidation.WARN.value
    if text not in set(FieldValidation):
        choice = ", ".join(FieldValidation)
        raise ApiError(400, f"fieldValidation={text!r} is not supported; choose {choice}")
    return FieldValidation(text)
