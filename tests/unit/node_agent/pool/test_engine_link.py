"""The agent's end of an engine's socket: nothing is acted on before somebody listens."""

import asyncio
import socket
from collections.abc import Callable, Coroutine

import pytest
import uvloop

from node_agent.engine.framing import frame
from node_agent.engine.messages import Event, Hello, encode
from node_agent.pool.link import EngineLink

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


class Heard:
    """What a link handed on, in order."""

    def __init__(self) -> None:
        self.events: list[Event | str] = []
        self.news = asyncio.Event()

    def note(self, event: Event | str) -> None:
        self.events.append(event)
        self.news.set()


async def connect(heard: Heard) -> tuple[EngineLink, socket.socket]:
    """Return a link whose engine has said Hello already, and the engine's end."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.sendall(frame(encode(Hello(pid=7))))
    loop = asyncio.get_running_loop()
    _, link = await loop.create_unix_connection(
        lambda: EngineLink(heard.note, heard.note), sock=ours
    )
    return link, theirs


async def let_the_loop_read() -> None:
    """Return once the loop has had every chance to read what has come."""
    left, right = socket.socketpair()
    left.setblocking(False)
    right.sendall(b"x")
    with left, right:
        for _ in range(3):
            await asyncio.get_running_loop().sock_recv(left, 1)
            right.sendall(b"x")


@pytest.mark.parametrize("loop", LOOPS)
def test_what_an_engine_says_before_anybody_listens_is_kept(loop: str) -> None:
    """Else the agent would answer Hello with a Load for a process that it does not know yet."""

    async def main() -> None:
        heard = Heard()
        link, theirs = await connect(heard)
        with theirs:
            await let_the_loop_read()
            assert heard.events == []
            link.listen()
            async with asyncio.timeout(10):
                await heard.news.wait()
            assert heard.events == [Hello(pid=7)]
            link.close()

    run(loop, main)


@pytest.mark.parametrize("loop", LOOPS)
def test_an_engine_that_left_before_anybody_listened_is_heard_and_then_lost(loop: str) -> None:
    async def main() -> None:
        heard = Heard()
        link, theirs = await connect(heard)
        theirs.close()
        async with asyncio.timeout(10):
            await link.lost.wait()
        assert heard.events == []
        link.listen()
        assert heard.events == [Hello(pid=7), "the engine closed its socket"]

    run(loop, main)


def run(loop: str, main: Callable[[], Coroutine[None, None, None]]) -> None:
    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(main())
