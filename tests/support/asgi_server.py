"""Serves an ASGI app over real HTTP on a free port of this machine, inside the test's loop."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn


@asynccontextmanager
async def serve_asgi(app: Any) -> AsyncIterator[int]:
    """Yield the port; the server is gone afterwards."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(128)
    config = uvicorn.Config(
        app, log_config=None, lifespan="off", timeout_graceful_shutdown=1, access_log=False
    )
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        await task
        listener.close()


async def raw_request(
    port: int, method: str, path: str, body: bytes = b"", headers: str = ""
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Send one HTTP/1.1 request over a plain socket and return its two ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
    writer.write(head.encode() + body)
    await writer.drain()
    return reader, writer
