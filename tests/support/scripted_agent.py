"""A node agent on a real loopback socket that does what a test's script says.

It speaks raw HTTP/1.1, so that a script can cut, stall and garble at any byte.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)
DONE = b"data: [DONE]\n\n"
USAGE = {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}


def event(text: str, **extra: Any) -> bytes:
    """Return one chat chunk as an SSE event."""
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
    chunk = {
        "id": "c",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m",
        "choices": [choice],
        **extra,
    }
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


def error(code: str, *, retryable: str, status: int = 503, wait: int | None = None) -> "Behaviour":
    """Return a behaviour that refuses in our agents' form."""
    body = {
        "error": {
            "message": f"refused: {code}",
            "type": "server_error",
            "param": None,
            "code": code,
            "retryable": retryable,
        }
    }
    headers = {} if wait is None else {"Retry-After": str(wait)}

    async def refuse(call: "Call") -> None:
        await call.answer(status, body, headers)

    return refuse


@dataclass
class Call:
    """One request that reached the agent, and its connection."""

    agent: "ScriptedAgent"
    path: str
    headers: dict[str, str]
    body: bytes
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    left: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def json(self) -> dict[str, Any]:
        """The parsed body."""
        return dict(json.loads(self.body))

    async def answer(self, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
        """Send a whole JSON answer."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = [f"HTTP/1.1 {status} X", "content-type: application/json"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        lines += [f"content-length: {len(data)}", "", ""]
        await self.send("\r\n".join(lines).encode() + data)

    async def head(self) -> None:
        """Begin an event stream."""
        await self.send(STREAM_HEAD)

    async def chunk(self, data: bytes) -> None:
        """Send one HTTP chunk."""
        await self.send(b"%x\r\n%s\r\n" % (len(data), data))

    async def end(self) -> None:
        """End the chunked body."""
        await self.send(b"0\r\n\r\n")

    async def send(self, data: bytes) -> None:
        """Send raw bytes."""
        self.writer.write(data)
        await self.writer.drain()

    def cut(self) -> None:
        """Drop the connection at once."""
        self.writer.transport.abort()

    async def wait_left(self) -> None:
        """Return when the other side has closed the connection."""
        try:
            while await self.reader.read(1024):
                pass
        except ConnectionError:
            pass
        self.left.set()


Behaviour = Callable[[Call], Awaitable[None]]


async def serve_normally(call: Call) -> None:
    """Answer as a healthy agent does: five pieces, usage, and the end."""
    if not call.json.get("stream"):
        message = {"role": "assistant", "content": "abcde"}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        kind = {"id": "c", "object": "chat.completion", "created": 1, "model": "m"}
        await call.answer(200, {**kind, "choices": [choice], "usage": USAGE})
        return
    await call.head()
    for text in "abcde":
        await call.chunk(event(text))
    await call.chunk(event("", usage=USAGE, choices=[]) + DONE)
    await call.end()


class ScriptedAgent:
    """One node with engines; `script` is used up call by call, then `default` serves."""

    def __init__(self, node: str, *engines: dict[str, Any]) -> None:
        self.node = node
        self.engines = list(engines)
        self.ceilings: dict[str, Any] = {}
        self.accepting = True
        self.muted = False
        self.garbled = False
        self.hung_up = False
        self.tokenizers: dict[str, bytes] = {}
        self.asked_tokenizers: list[str] = []
        self.prefix_lines: list[bytes] = []
        self._prefix_readers: list[asyncio.Queue[bytes]] = []
        self.script: list[Behaviour] = []
        self.default: Behaviour = serve_normally
        self.calls: list[Call] = []
        self.called = asyncio.Event()
        self.resume = asyncio.Event()
        self._changed = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._port = 0

    @property
    def address(self) -> str:
        """The agent's base URL."""
        return f"http://127.0.0.1:{self._port}"

    async def start(self) -> None:
        """Listen, on the same port as before when restarted."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Die: refuse connections and reset those that are open."""
        if self._server is not None:
            self._server.close()
        for writer in tuple(self._writers):
            writer.transport.abort()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def change(self, **load: Any) -> None:
        """Change figures of every engine and report them at once."""
        self.engines = [{**item, **load} for item in self.engines]
        self._changed.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        try:
            while await self._serve_one(reader, writer):
                pass
        except (ConnectionError, asyncio.CancelledError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
            self._writers.discard(writer)
            self._tasks.discard(task)

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").strip().split("\r\n")
        headers = {
            name.lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines)
        }
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        path = first.split(" ")[1]
        if path == "/fleet/v1/load":
            try:
                await self._stream_load(writer)
            finally:
                self.hung_up = True
        if path == "/fleet/v1/prefixes":
            await self._stream_prefixes(writer)
            return False
        if path.startswith("/fleet/v1/tokenizers/"):
            self.asked_tokenizers.append(path.rpartition("/")[2])
            await Call(self, path, headers, body, reader, writer).answer(*self._tokenizer(path))
            return True
        call = Call(self, path, headers, body, reader, writer)
        self.calls.append(call)
        self.called.set()
        behaviour = self.script.pop(0) if self.script else self.default
        await behaviour(call)
        return not writer.transport.is_closing()

    async def _stream_load(self, writer: asyncio.StreamWriter) -> None:
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )
        sequence = 0
        while True:
            if self.garbled:
                writer.write(b"ZZZ\r\nnonsense\r\n")
            elif not self.muted:
                sequence += 1
                line = json.dumps(self._report(sequence)).encode() + b"\n"
                writer.write(b"%x\r\n%s\r\n" % (len(line), line))
                await writer.drain()
            self._changed.clear()
            try:
                async with asyncio.timeout(0.05):
                    await self._changed.wait()
            except TimeoutError:
                pass

    async def _stream_prefixes(self, writer: asyncio.StreamWriter) -> None:
        """Send the lines so far as they come, the first of them on every connection."""
        writer.write(STREAM_HEAD)
        told: asyncio.Queue[bytes] = asyncio.Queue()
        for line in (b"{}", *self.prefix_lines):
            told.put_nowait(line)
        self._prefix_readers.append(told)
        try:
            while line := await told.get():
                writer.write(b"%x\r\n%s\n\r\n" % (len(line) + 1, line))
                await writer.drain()
        finally:
            self._prefix_readers.remove(told)

    def tell_prefixes(self, **line: Any) -> None:
        """Tell gateways of a change, now and at the begin of later connections."""
        self.prefix_lines.append(json.dumps(line).encode())
        for told in self._prefix_readers:
            told.put_nowait(self.prefix_lines[-1])

    def cut_prefixes(self) -> None:
        """End the streams of prefixes; what was told before is forgotten."""
        self.prefix_lines.clear()
        for told in self._prefix_readers:
            told.put_nowait(b"")

    def _tokenizer(self, path: str) -> tuple[int, Any]:
        found = self.tokenizers.get(path.rpartition("/")[2])
        return (404, {}) if found is None else (200, found)

    def _report(self, sequence: int) -> dict[str, Any]:
        return {
            "node": self.node,
            "instance": "i",
            "sequence": sequence,
            "accepting": self.accepting,
            "engines": self.engines,
            "ceilings": self.ceilings,
        }


def load(name: str, *, of: str = "m", **figures: Any) -> dict[str, Any]:
    """Return a ready engine's load, as agents report it."""
    return {
        "name": name,
        "model": of,
        "phase": "Ready",
        "accepting": True,
        "maxRunning": 8,
        "maxWaiting": 8,
        "contextTokens": 32768,
        "tokensFitNow": 100_000,
        "prefillTokensPerSecond": 1000.0,
        "decodeTokensPerSecond": 50.0,
        **figures,
    }
