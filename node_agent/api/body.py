"""Reads a request's JSON body within a size limit, which is checked before parsing.

What a large body says is found out on another thread, so that the event loop goes on meanwhile.
"""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request

from manifests.errors import Code, Refusal, RequestError

MAX_BODY_BYTES = 32 * 1024 * 1024
# About ten milliseconds' work; the way to a thread and back costs a tenth of one.
_INLINE_BYTES = 256 * 1024

T = TypeVar("T")


async def read_json_object(request: Request, max_bytes: int) -> dict[str, Any]:
    """Return the body as an object. Raises RequestError; bodies over the limit are not read."""
    return parse_json_object(await read_bytes(request, max_bytes))


async def read_bytes(request: Request, max_bytes: int) -> bytes:
    """Return the body. Raises RequestError; bodies over the limit are not read."""
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > max_bytes:
        raise _too_large(max_bytes)
    chunks = bytearray()
    async for chunk in request.stream():
        chunks += chunk
        if len(chunks) > max_bytes:
            raise _too_large(max_bytes)
    return bytes(chunks)


async def parse_body(data: bytes, parse: Callable[[dict[str, Any]], T]) -> T:
    """Return what `parse` makes of the object that a body is. Raises RequestError."""
    if len(data) < _INLINE_BYTES:
        return parse(parse_json_object(data))
    return await asyncio.to_thread(lambda: parse(parse_json_object(data)))


def parse_json_object(data: bytes) -> dict[str, Any]:
    """Return a body as an object. Raises RequestError."""
    try:
        body = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        # No chained cause: the parser's message would carry the client's text into the log.
        message = "The body is not valid JSON."
        raise RequestError(Refusal(Code.INVALID_JSON, message)) from None
    if not isinstance(body, dict):
        raise RequestError(Refusal(Code.INVALID_VALUE, "The body must be a JSON object."))
    return body


def _too_large(max_bytes: int) -> RequestError:
    message = f"The body is larger than {max_bytes} bytes."
    return RequestError(Refusal(Code.REQUEST_TOO_LARGE, message))
