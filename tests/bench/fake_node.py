"""A node that answers at once, to measure what a router adds: `python -m tests.bench.fake_node`.

Speaks an agent's routes (load report stream, SmolLM2's tokenizer files, chat completions whole or
streamed) and the few that other routers ask of a server. It holds no model: every answer is the
same bytes, without a count of the prompt. Started as a process by gateway_peers.py.
"""

import argparse
import asyncio
import json
from typing import Any, cast

import uvloop

from manifests.prompt.bundle import TOKENIZERS_PATH, pack_bundle
from manifests.prompt.files import read_text_files, text_fingerprint
from tests.support.fleet import SMOLLM2
from tests.support.rooms import room_figures
from tests.support.scripted_agent import DONE, STREAM_HEAD, event, load

REPORT_SECONDS = 0.5
CHUNKS = 32
MODEL = "m"
# A gateway that counts compares its count with this one, unless it is none.
USAGE = {"prompt_tokens": 0, "completion_tokens": CHUNKS, "total_tokens": CHUNKS}
_HEAD_END = b"\r\n\r\n"


def whole(body: Any, status: str = "200 OK") -> bytes:
    """Return a whole answer: bytes as they are, else JSON."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(data)}"
    return head.encode() + _HEAD_END + data


def chunk(data: bytes) -> bytes:
    """Return one HTTP chunk."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def stream() -> bytes:
    """Return a whole streamed answer of CHUNKS pieces, as one write."""
    last = event("", usage=USAGE, choices=[]) + DONE
    return STREAM_HEAD + chunk(event("tok ")) * CHUNKS + chunk(last) + chunk(b"")


def answer() -> bytes:
    """Return a whole chat completion."""
    message = {"role": "assistant", "content": "tok " * CHUNKS}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    kind = {"id": "c", "object": "chat.completion", "created": 1, "model": MODEL}
    return whole({**kind, "choices": [choice], "usage": USAGE})


STREAM, ANSWER = stream(), answer()
MODELS = whole({"object": "list", "data": [{"id": MODEL, "object": "model", "owned_by": "x"}]})
INFO = whole({"model_path": MODEL, "model_id": MODEL, "is_generation": True})
FILES = read_text_files(SMOLLM2)
FINGERPRINT = text_fingerprint(FILES)
BUNDLE = whole(pack_bundle(FILES))
BUNDLE_PATH = TOKENIZERS_PATH.format(fingerprint=FINGERPRINT).encode()
MISSING = whole({"error": {"message": "no such path", "code": "not_found"}}, "404 Not Found")


class Connection(asyncio.Protocol):
    """One connection; requests are answered in their order."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._unread = b""
        self._transport: asyncio.Transport | None = None
        self._reports: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the way to answer."""
        # uvloop's transports are no subclass.
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, _fault: Exception | None) -> None:
        """Report no more."""
        if self._reports is not None:
            self._reports.cancel()

    def data_received(self, data: bytes) -> None:
        """Answer every request that is whole."""
        self._unread += data
        while (end := self._unread.find(_HEAD_END)) >= 0:
            head = self._unread[:end].lower()
            size = end + len(_HEAD_END) + _length_of(head)
            if len(self._unread) < size:
                return
            body, self._unread = self._unread[end:size], self._unread[size:]
            self._answer(head.split(b" ", 2)[1], body)

    def _answer(self, path: bytes, body: bytes) -> None:
        assert self._transport is not None
        if path.startswith(b"/v1/chat/completions"):
            streams = b'"stream":true' in body or b'"stream": true' in body
            self._transport.write(STREAM if streams else ANSWER)
        elif path.startswith(b"/fleet/v1/load"):
            self._reports = asyncio.create_task(self._report())
        elif path == BUNDLE_PATH:
            self._transport.write(BUNDLE)
        elif path.startswith(b"/fleet/"):
            self._transport.write(MISSING)
        else:
            self._transport.write(MODELS if path.startswith(b"/v1/models") else INFO)

    async def _report(self) -> None:
        assert self._transport is not None
        engine = {**load(engine_name(self._node), of=MODEL), **room_figures(100_000, 100_000)}
        engine |= {"maxRunning": 64, "maxWaiting": 64, "textFingerprint": FINGERPRINT}
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\n"
        self._transport.write(head + b"transfer-encoding: chunked" + _HEAD_END)
        sequence = 0
        while True:
            sequence += 1
            report = {"node": self._node, "instance": "i", "sequence": sequence}
            report |= {"accepting": True, "engines": [engine]}
            self._transport.write(chunk(json.dumps(report).encode() + b"\n"))
            await asyncio.sleep(REPORT_SECONDS)


def engine_name(node: str) -> str:
    """Return what the one engine of a node is called."""
    return f"{MODEL}-{node}"


def _length_of(head: bytes) -> int:
    lines = (line.partition(b":") for line in head.split(b"\r\n"))
    return next((int(value) for name, _, value in lines if name == b"content-length"), 0)


async def serve(node: str, port: int) -> None:
    """Answer until cancelled."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(node), "127.0.0.1", port, backlog=1024)
    await server.serve_forever()


def main() -> None:
    """Serve as one node."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.fake_node")
    parser.add_argument("node")
    parser.add_argument("port", type=int)
    given = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(given.node, given.port))


if __name__ == "__main__":
    main()
