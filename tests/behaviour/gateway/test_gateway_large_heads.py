"""The controller's HTTP server bounds what a request's head may take."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from starlette.types import Receive, Scope, Send

from controller.http_server import HEAD_BYTES_MAX, HttpServer, bind
from controller.settings import Listen


async def app(_scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with the body that came."""
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    head = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": head})
    await send({"type": "http.response.body", "body": body})


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Serve the app and yield a connection to it."""
    with bind(Listen("127.0.0.1", 0)) as bound:
        server = HttpServer(app, grace_seconds=1)
        task = asyncio.create_task(server.serve(sockets=[bound]))
        try:
            reader, writer = await asyncio.open_connection(*bound.getsockname())
            async with asyncio.timeout(30):
                yield reader, writer
            writer.close()
        finally:
            server.should_exit = server.force_exit = True
            await task


@pytest.mark.parametrize("lines", [b"x: y\r\n", b"x" * 997])
async def test_a_head_without_an_end_is_refused(lines):
    async with serving() as (reader, writer):
        writer.write(b"POST / HTTP/1.1\r\nhost: t\r\n")
        status, sent = b"", 0
        # A client that goes on writing may be cut off before it has read the answer.
        with contextlib.suppress(ConnectionError):
            while not status and sent < 100:
                writer.write((lines * HEAD_BYTES_MAX)[: HEAD_BYTES_MAX // 8])
                sent += 1
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.05):
                        status = await reader.readline()
        assert b" 431 " in status or not status
        assert 8 < sent < 100


async def test_many_requests_in_one_read_are_not_taken_for_one_large_head():
    async with serving() as (reader, writer):
        one = b"POST / HTTP/1.1\r\nhost: t\r\ncontent-length: 1\r\n\r\na"
        count = 4 * HEAD_BYTES_MAX // len(one)
        writer.write(one * count)
        for _ in range(count):
            assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
            assert await reader.readexactly(1) == b"a"


async def test_requests_in_a_row_and_large_bodies_are_not_taken_for_large_heads():
    async with serving() as (reader, writer):
        head = b"x: " + b"y" * (HEAD_BYTES_MAX // 2) + b"\r\n"
        for body in (b"a" * (8 * HEAD_BYTES_MAX), b"b", b"c" * HEAD_BYTES_MAX):
            length = b"content-length: %d\r\n\r\n" % len(body)
            writer.write(b"POST / HTTP/1.1\r\nhost: t\r\n" + head + length + body)
            await writer.drain()
            assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
            assert await reader.readexactly(len(body)) == body
