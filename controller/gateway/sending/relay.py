"""From an agent's response to the client, for each kind of response.

Streams pass event by event, other answers as a whole. Called by the proxy.
"""

import asyncio
import json
from dataclasses import replace

from controller.gateway.http.asgi import Downstream, find_header
from controller.gateway.http.sse import DONE_EVENT, EventReader, error_event, read_usage
from controller.gateway.http.told import Told
from controller.gateway.nodes.endpoints import EndpointKey
from controller.gateway.sending.attempts import (
    Broken,
    Cut,
    Ending,
    Finished,
    Lost,
    Refused,
    can_help_elsewhere,
    is_fault,
    lost,
)
from controller.gateway.sending.headers import plan_downstream_headers
from controller.gateway.sending.link import Fault, LinkError
from controller.gateway.sending.upstream import Answer, UpstreamError
from controller.gateway.settings import GatewaySettings
from manifests.wire.error_body import parse_openai_error

_ERROR_BYTES_MAX = 1024 * 1024
_TRAILER_SECONDS = 1.0
_JSON = (b"content-type", b"application/json")


async def relay(
    response: Answer,
    down: Downstream,
    endpoint: EndpointKey,
    settings: GatewaySettings,
    told: Told,
) -> Ending:
    """Pass a response on. Refusals are read and returned, not sent: the proxy may try again.

    Mutates: `told`, which says what the client has of a stream that may move.
    Raises: UpstreamError when the agent is lost before any data reached the client.
    """
    headers = plan_downstream_headers(response.headers, endpoint)
    if response.status >= 400:
        return await _read_refusal(response, headers)
    if response.content_type == "text/event-stream":
        reader = EventReader(settings.max_answer_bytes, told)
        return await _relay_stream(response, down, headers, reader)
    return await _relay_answer(response, down, headers, settings.max_answer_bytes)


async def _relay_stream(
    response: Answer,
    down: Downstream,
    headers: tuple[tuple[bytes, bytes], ...],
    reader: EventReader,
) -> Ending:
    fault = ""
    try:
        while data := await response.read():
            batch = reader.feed(data)
            down.usage = reader.usage or down.usage
            if batch.passed:
                if not down.started:
                    await down.start(response.status, headers)
                await down.write(batch.passed, has_data=batch.has_data, last=reader.done)
            fault = batch.fault
            if fault or reader.done or reader.error is not None:
                break
    except LinkError as lost_link:
        fault = "silence" if lost_link.fault is Fault.SILENT else "a lost connection"
    if reader.done:
        await _read_trailer(response)
        return Finished(reader.usage)
    if reader.error is not None:
        refused = _parse_refusal(None, reader.error, headers)
        return await _end_by_error(refused, reader, down) if down.has_data else refused
    ending = lost(f"The answer was cut off by {fault or 'an early end'}.")
    return await _end_early(ending, reader, down)


async def _end_by_error(refused: Refused, reader: EventReader, down: Downstream) -> Ending:
    """Return how a stream ends in which the agent itself said that it cannot go on."""
    if reader.told.movable and can_help_elsewhere(refused):
        return Cut(refused.refusal, fault=is_fault(refused))
    await down.write(error_event(reader.error or b""))
    return Finished(reader.usage, errored=True)


async def _end_early(ending: Lost, reader: EventReader, down: Downstream) -> Ending:
    """Return how a stream ends that ended without a word."""
    if not down.has_data:
        return ending
    if reader.told.complete:
        await down.write(DONE_EVENT, last=True)
        return Finished(reader.usage)
    return Cut(ending.refusal) if reader.told.movable else Broken(ending.refusal)


async def _read_trailer(response: Answer) -> None:
    """Read the end of a finished stream, so that the connection can serve again."""
    if response.ended:
        return
    try:
        async with asyncio.timeout(_TRAILER_SECONDS):
            while await response.read():
                pass
    except (LinkError, TimeoutError):
        return


async def _relay_answer(
    response: Answer,
    down: Downstream,
    headers: tuple[tuple[bytes, bytes], ...],
    limit_bytes: int,
) -> Finished | Lost:
    body = await _read_bounded(response, limit_bytes)
    if body is None:
        return lost("The node's answer is too large.")
    try:
        usage = read_usage(body)
    except ValueError:
        return lost("The node's answer is malformed.")
    if down.started:
        return lost("The node answered a stream with a single answer.")
    down.usage = usage
    await down.answer(response.status, headers, body)
    return Finished(usage)


async def _read_refusal(response: Answer, headers: tuple[tuple[bytes, bytes], ...]) -> Refused:
    body = await _read_bounded(response, _ERROR_BYTES_MAX)
    return _parse_refusal(response.status, body or b"", headers)


def _parse_refusal(
    status: int | None, body: bytes, headers: tuple[tuple[bytes, bytes], ...]
) -> Refused:
    """Return the refusal of an error answer, or with status None of an error event."""
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError):
        parsed = None
    refusal = parse_openai_error(status or 500, parsed)
    if refusal.retry_after_seconds is None:
        refusal = replace(refusal, retry_after_seconds=_read_retry_after(headers))
    if status is None:
        return Refused(refusal.http_status, (*_event_headers(headers), _JSON), body, refusal)
    ours = isinstance(parsed, dict) and isinstance(parsed.get("error"), dict)
    return Refused(status, headers, body if ours else None, refusal)


def _read_retry_after(headers: tuple[tuple[bytes, bytes], ...]) -> int | None:
    value = find_header(headers, b"retry-after")
    return int(value) if value is not None and value.isdigit() else None


def _event_headers(headers: tuple[tuple[bytes, bytes], ...]) -> tuple[tuple[bytes, bytes], ...]:
    """Return the headers that a stream's error keeps when it becomes a plain answer."""
    return tuple(item for item in headers if item[0] not in {b"content-type", b"cache-control"})


async def _read_bounded(response: Answer, limit_bytes: int) -> bytes | None:
    """Return the whole body, or None when it is too large. Raises UpstreamError when it is cut."""
    parts: list[bytes] = []
    size = 0
    try:
        while data := await response.read():
            size += len(data)
            if size > limit_bytes:
                return None
            parts.append(data)
    except LinkError as fault:
        raise UpstreamError(lost("The node's answer was cut off.")) from fault
    return parts[0] if len(parts) == 1 else b"".join(parts)
