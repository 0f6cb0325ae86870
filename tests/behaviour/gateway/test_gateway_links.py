"""Requests to a node over real sockets, whatever the node does with them."""

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from controller.gateway.sending.link import Fault, LinkError
from controller.gateway.sending.upstream import Answer, Call, Upstream, UpstreamError
from controller.gateway.settings import GatewaySettings
from tests.support.gateway_host import until

SETTINGS = GatewaySettings(connect_timeout_seconds=0.5, stall_seconds=30.0)
LARGE = bytes(range(256)) * 4 * 8192
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
STREAM = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


@dataclass
class Peer:
    """One connection as the node has it."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def head(self) -> bytes:
        """Return the next request's head."""
        return await self.reader.readuntil(b"\r\n\r\n")

    async def request(self) -> bytes:
        """Return the body of the next request."""
        found = re.search(rb"content-length: (\d+)", await self.head())
        assert found is not None
        return await self.reader.readexactly(int(found[1]))

    async def send(self, data: bytes) -> None:
        """Send bytes."""
        self.writer.write(data)
        await self.writer.drain()

    async def until_left(self) -> None:
        """Return once the gateway has closed the connection."""
        try:
            while await self.reader.read(1 << 16):
                pass
        except ConnectionError:
            pass


Serve = Callable[[Peer], Awaitable[None]]


@dataclass
class Node:
    """A listening node: how often it was connected to, and where it is."""

    address: str = ""
    peers: list[Peer] = field(default_factory=list)


@asynccontextmanager
async def node(serve: Serve) -> AsyncIterator[Node]:
    """Run a node that does this with every connection."""
    found, tasks = Node(), set[asyncio.Task[Any]]()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        found.peers.append(Peer(reader, writer))
        try:
            await serve(found.peers[-1])
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    found.address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield found
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def upstream(**changes: Any) -> AsyncIterator[Upstream]:
    """Run the gateway's side."""
    made = Upstream(replace(SETTINGS, **changes))
    async with made.open():
        yield made


def call(address: str, body: bytes = b"{}", **changes: Any) -> Call:
    """Return a streaming request."""
    given: dict[str, Any] = {"stream": True, **changes}
    return Call(address, "/v1/x", {"x-a": "b"}, body, **given)


async def body_of(answer: Answer) -> bytes:
    """Return the rest of an answer's body."""
    parts = []
    while data := await answer.read():
        parts.append(data)
    return b"".join(parts)


async def lost(up: Upstream, asked: Call) -> Any:
    """Return how an attempt was lost that had no head."""
    with pytest.raises(UpstreamError) as caught:
        await up.send(asked)
    return caught.value.ending


async def always_ok(peer: Peer) -> None:
    while True:
        await peer.request()
        await peer.send(OK)


async def test_one_connection_serves_request_after_request() -> None:
    async with node(always_ok) as it, upstream() as up:
        for _ in range(3):
            answer = await up.send(call(it.address))
            assert (answer.status, await body_of(answer)) == (200, b"ok")
            answer.release()
        assert len(it.peers) == 1


async def test_an_idle_connection_is_closed_after_its_time() -> None:
    async with node(always_ok) as it, upstream(idle_connection_seconds=0.1) as up:
        answer = await up.send(call(it.address))
        await body_of(answer)
        answer.release()
        await until(it.peers[0].reader.at_eof)


async def test_a_node_that_closes_an_idle_connection_is_asked_on_a_new_one() -> None:
    left: list[int] = []

    async def once(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK)
        peer.writer.write_eof()
        await peer.until_left()
        left.append(1)

    async with node(once) as it, upstream() as up:
        for number in range(1, 4):
            answer = await up.send(call(it.address))
            await body_of(answer)
            answer.release()
            assert len(it.peers) == number
            await until(lambda number=number: len(left) == number)


async def test_a_kept_connection_that_ends_under_a_request_was_stale_a_new_one_is_not() -> None:
    async def once(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK)
        await peer.request()

    async with node(once) as it, upstream() as up:
        answer = await up.send(call(it.address))
        await body_of(answer)
        answer.release()
        assert (await lost(up, call(it.address))).stale

    async def never(peer: Peer) -> None:
        await peer.request()

    async with node(never) as it, upstream() as up:
        ending = await lost(up, call(it.address))
        assert not (ending.stale or ending.unreachable)


async def test_half_a_head_on_a_kept_connection_is_no_stale_one() -> None:
    async def once(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK)
        await peer.request()
        await peer.send(b"HTTP/1.1 200")

    async with node(once) as it, upstream() as up:
        answer = await up.send(call(it.address))
        await body_of(answer)
        answer.release()
        assert not (await lost(up, call(it.address))).stale


async def test_nobody_listening_and_nobody_accepting_are_both_unreachable() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{closed.getsockname()[1]}"
        async with upstream() as up:
            assert (await lost(up, call(address))).unreachable
            closed.listen(0)
            with socket.socket() as one, socket.socket() as two:
                for link in (one, two):  # the line of those who wait to be accepted is full
                    link.setblocking(False)
                    link.connect_ex(closed.getsockname())
                assert (await lost(up, call(address))).unreachable
            assert (await lost(up, call("nowhere"))).unreachable


async def test_silence_before_the_head_and_in_mid_body_is_noticed() -> None:
    async def silent(peer: Peer) -> None:
        await peer.request()
        await peer.until_left()

    async with node(silent) as it, upstream(stall_seconds=0.2) as up:
        assert "stopped answering" in (await lost(up, call(it.address))).refusal.message

    async def halting(peer: Peer) -> None:
        await peer.request()
        await peer.send(STREAM + b"5\r\nhello\r\n")
        await peer.until_left()

    async with node(halting) as it, upstream(stall_seconds=0.2) as up:
        answer = await up.send(call(it.address))
        assert await answer.read() == b"hello"
        with pytest.raises(LinkError) as caught:
            await answer.read()
        answer.release()
        assert caught.value.fault is Fault.SILENT


async def test_a_dead_node_is_left_before_its_head_and_a_silent_one_after() -> None:
    async def halting(peer: Peer) -> None:
        body = await peer.request()
        if body == b"begin":
            await peer.send(STREAM + b"5\r\nhello\r\n")
        await peer.until_left()

    async with node(halting) as it, upstream() as up:
        ending = await lost(up, call(it.address, is_dead=lambda: True))
        assert ending.refusal.message == "The node is gone."
        answer = await up.send(
            call(it.address, b"begin", is_dead=lambda: True, is_gone=lambda silent: silent > 0.1)
        )
        assert await answer.read() == b"hello"
        with pytest.raises(LinkError):
            await answer.read()
        answer.release()


@pytest.mark.parametrize(
    "data",
    [b"garbage\r\n\r\n", b"HTTP/1.1 200 OK\r\nx-a: " + b"y" * 600_000],
    ids=["garbage", "endless head"],
)
async def test_what_is_no_answer_is_a_loss(data: bytes) -> None:
    async def odd(peer: Peer) -> None:
        await peer.request()
        await peer.send(data)
        await peer.until_left()

    async with node(odd) as it, upstream() as up:
        ending = await lost(up, call(it.address))
        assert not (ending.stale or ending.unreachable)


@pytest.mark.parametrize("end", [b"ZZ\r\nno chunk\r\n", b""], ids=["no chunk", "cut"])
async def test_a_body_that_breaks_gives_what_came_and_then_the_fault(end: bytes) -> None:
    async def broken(peer: Peer) -> None:
        await peer.request()
        await peer.send(STREAM + b"5\r\nhello\r\n")
        await peer.send(end)
        if end:
            await peer.until_left()

    async with node(broken) as it, upstream() as up:
        answer = await up.send(call(it.address))
        got = b""
        with pytest.raises(LinkError):
            while data := await answer.read():
                got += data
        answer.release()
        assert got == b"hello"


async def test_a_large_body_reaches_a_slow_node_whole() -> None:
    got: list[bytes] = []

    async def slow(peer: Peer) -> None:
        head = await peer.head()
        assert b"content-length: %d\r\n" % len(LARGE) in head
        while sum(map(len, got)) < len(LARGE):
            got.append(await peer.reader.read(100_000))
            await asyncio.sleep(0)
        await peer.send(OK)

    async with node(slow) as it, upstream() as up:
        answer = await up.send(call(it.address, LARGE))
        assert await body_of(answer) == b"ok"
        answer.release()
        assert b"".join(got) == LARGE


async def test_an_answer_before_a_large_body_was_read_is_heard_and_ends_the_connection() -> None:
    async def early(peer: Peer) -> None:
        await peer.head()
        await peer.send(b"HTTP/1.1 413 X\r\ncontent-length: 2\r\n\r\nno")
        await asyncio.Event().wait()

    async with node(early) as it, upstream() as up:
        answer = await up.send(call(it.address, LARGE))
        assert (answer.status, await body_of(answer)) == (413, b"no")
        answer.release()
        answer = await up.send(call(it.address, LARGE))
        answer.release()
        assert len(it.peers) == 2


async def test_a_node_that_reads_no_body_is_noticed() -> None:
    async def deaf(peer: Peer) -> None:
        await peer.head()
        await asyncio.Event().wait()

    async with node(deaf) as it, upstream(stall_seconds=0.2) as up:
        assert "stopped answering" in (await lost(up, call(it.address, LARGE))).refusal.message


async def test_an_answer_that_nobody_reads_waits_at_the_node() -> None:
    sent = asyncio.Event()

    async def eager(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(LARGE) + LARGE)
        peer.writer.transport.set_write_buffer_limits(0)
        await peer.writer.drain()
        sent.set()
        await peer.until_left()

    # We are silent here, not the node.
    async with node(eager) as it, upstream(stall_seconds=0.2) as up:
        answer = await up.send(call(it.address))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.6):
                await sent.wait()
        assert await body_of(answer) == LARGE
        answer.release()
        assert sent.is_set()


async def test_an_answer_released_early_or_a_request_given_up_closes_the_connection() -> None:
    left: list[int] = []

    async def endless(peer: Peer) -> None:
        body = await peer.request()
        if body == b"stream":
            await peer.send(STREAM + b"5\r\nhello\r\n")
        await peer.until_left()
        left.append(1)

    async with node(endless) as it, upstream() as up:
        answer = await up.send(call(it.address, b"stream"))
        answer.release()
        await until(lambda: len(left) == 1)
        asking = asyncio.create_task(up.send(call(it.address, b"wait")))
        await until(lambda: len(it.peers) == 2)
        asking.cancel()
        await until(lambda: len(left) == 2)
        with pytest.raises(asyncio.CancelledError):
            await asking


async def test_bytes_that_nobody_asked_for_end_the_connection() -> None:
    async def chatty(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK + b"HTTP/1.1 200 OK\r\n")
        await peer.until_left()

    async with node(chatty) as it, upstream() as up:
        for number in range(1, 3):
            answer = await up.send(call(it.address))
            assert await body_of(answer) == b"ok"
            answer.release()
            assert len(it.peers) == number


async def test_a_header_cannot_begin_another_one() -> None:
    async with node(always_ok) as it, upstream() as up:
        for value in ("b\r\nx-evil: 1", "b\nx-evil: 1", "b\r"):
            with pytest.raises(ValueError, match="line break"):
                await up.send(replace(call(it.address), headers={"x-a": value}))
