"""The HTTP server sends the head of an answer with its body, and never keeps it back for long."""

import asyncio

from starlette.types import Receive, Scope, Send

from controller.http_server import HttpServer, bind
from controller.settings import Listen

HEAD = {"type": "http.response.start", "status": 200}
SIZED = {**HEAD, "headers": [(b"content-length", b"4")]}
CLOSES = {**HEAD, "headers": [(b"content-length", b"0"), (b"connection", b"close")]}


async def ask(path: str, going_on: asyncio.Event) -> list[bytes]:
    """Return what each read of the socket brings while an app answers this path."""

    async def app(scope: Scope, _receive: Receive, send: Send) -> None:
        head = {"/late": SIZED, "/whole": SIZED, "/closes": CLOSES}[scope["path"]]
        await send(head)
        if scope["path"] == "/late":
            await going_on.wait()
        body = b"" if scope["path"] == "/closes" else b"HTTP"
        await send({"type": "http.response.body", "body": body})

    reads: list[bytes] = []
    with bind(Listen("127.0.0.1", 0)) as bound:
        server = HttpServer(app, grace_seconds=1)
        task = asyncio.create_task(server.serve(sockets=[bound]))
        reader, writer = await asyncio.open_connection(*bound.getsockname())
        try:
            async with asyncio.timeout(30):
                writer.write(f"GET {path} HTTP/1.1\r\nhost: t\r\n\r\n".encode())
                while not b"".join(reads).endswith(b"\r\n\r\nHTTP") and (
                    data := await reader.read(1 << 16)
                ):
                    reads.append(data)
                    going_on.set()
        finally:
            writer.close()
            server.should_exit = server.force_exit = True
            await task
    return reads


async def test_a_whole_answer_comes_in_one_piece() -> None:
    [read] = await ask("/whole", asyncio.Event())
    assert read.startswith(b"HTTP/1.1 200 OK\r\n")


async def test_a_head_whose_body_is_late_does_not_wait_for_it() -> None:
    head, body = await ask("/late", asyncio.Event())
    assert head.endswith(b"\r\n\r\n")
    assert body == b"HTTP"


async def test_a_head_alone_comes_before_the_connection_closes() -> None:
    read = b"".join(await ask("/closes", asyncio.Event()))
    assert read.startswith(b"HTTP/1.1 200 OK\r\n")
    assert read.endswith(b"\r\n\r\n")
