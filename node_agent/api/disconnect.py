"""Work that stops the moment its client leaves, whether or not anything was sent yet.

A client that closes only its sending side counts as gone, as the HTTP server reports it so.
"""

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

Result = TypeVar("Result")


async def until_gone(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result | None:
    """Return the work's result, or None when the client left first and it was cancelled."""
    task = asyncio.create_task(work)
    gone = asyncio.create_task(_wait_gone(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        return None
    finally:
        for item in (task, gone):
            item.cancel()
        await asyncio.wait({task, gone})
        if not task.cancelled():
            task.exception()


async def _wait_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class GeneratorResponse(Response):
    """Streams a generator of bytes until it ends or the client leaves; always closes it."""

    def __init__(self, chunks: AsyncGenerator[bytes], media_type: str) -> None:
        super().__init__(media_type=media_type)
        del self.headers["content-length"]
        self._chunks = chunks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """Stream until the generator ends or the client has left."""
        await until_gone(receive, self._stream(send))

    async def _stream(self, send: Send) -> None:
        await send(
            {
                "type": "http.response.start",
                "status": self.status_code,
                "headers": self.raw_headers,
            }
        )
        async with aclosing(self._chunks) as chunks:
            async for chunk in chunks:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
