"""Answers without a known end: watches and followed logs.

Owns when such an answer ends: when its source does, the client leaves, the time is up or the
server stops. Pieces are sent whole, so no watch line is ever cut. Called by the handlers.
"""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import structlog
from starlette.types import Receive, Scope, Send

from manifests.wire.listwatch import WatchEvent, WatchType
from manifests.wire.status import ApiError

_LOG = structlog.get_logger(__name__)


class PieceStream:
    """An ASGI answer that sends pieces as they come."""

    def __init__(
        self,
        pieces: AsyncGenerator[bytes, None],
        media_type: str,
        stopping: asyncio.Event,
        seconds: float | None = None,
    ) -> None:
        """End after `seconds` (None: no limit) or when `stopping` is set."""
        self._pieces, self._media_type = pieces, media_type
        self._stopping, self._seconds = stopping, seconds

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        """Send the pieces until one of the ends."""
        headers = [
            (b"content-type", self._media_type.encode("ascii")),
            (b"cache-control", b"no-cache"),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        # An empty part makes the server send the head now, not with the first piece.
        await send({"type": "http.response.body", "body": b"", "more_body": True})
        pump = asyncio.create_task(self._pump(send))
        gone = asyncio.create_task(_client_left(receive))
        stop = asyncio.create_task(self._stopping.wait())
        tasks = (pump, gone, stop)
        try:
            await asyncio.wait(tasks, timeout=self._seconds, return_when=asyncio.FIRST_COMPLETED)
            left = gone.done()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if not left:
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _pump(self, send: Send) -> None:
        try:
            async with aclosing(self._pieces) as pieces:
                async for piece in pieces:
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
        except OSError:
            _LOG.debug("the client left")
        except Exception:  # noqa: BLE001 - task root: the answer ends and the log says why
            _LOG.exception("stream failed")


async def watch_lines(events: AsyncGenerator[WatchEvent, None]) -> AsyncGenerator[bytes, None]:
    """Yield one JSON line an event; a refusal travels as the last one, as Kubernetes sends it."""
    try:
        async with aclosing(events):
            async for event in events:
                yield _line(event.type, event.object)
    except ApiError as error:
        yield _line(WatchType.ERROR, error.to_status())


def _line(type_: WatchType, obj: dict[str, Any]) -> bytes:
    text = json.dumps({"type": type_.value, "object": obj}, separators=(",", ":"))
    return f"{text}\n".encode()


async def _client_left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
