"""Load on one HTTP endpoint: requests per second in a closed loop, and time to the first data.

The marker in a body stands for a number, another one in every request or the same in all. With
`wrk` on PATH the rate is wrk's; else a loop of our own sends in a process of its own
(`python -m tests.bench.http_load`). Called by gateway_peers.py.
"""

import argparse
import asyncio
import itertools
import re
import shutil
import socket
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

import uvloop

from tests.support.fleet import ROOT

NUMBER = "########"
"""Where a body has its number, of as many digits."""
_MARKER = NUMBER.encode()
_ENDS = (b"0\r\n\r\n",)


class LoadError(RuntimeError):
    """The endpoint gave other than whole answers with status 200."""


@dataclass(frozen=True)
class Target:
    """Where to send which body; `same` sends one text again and again."""

    url: str
    body: bytes = field(repr=False)
    same: bool = False

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        parts = urlsplit(self.url)
        return str(parts.hostname), int(parts.port or 80)

    def numbered(self, number: int) -> bytes:
        """Return the request with a number."""
        return self.request.replace(_MARKER, b"%08d" % (0 if self.same else number % 10**8))

    @cached_property
    def request(self) -> bytes:
        """The request as bytes, with the marker where its number belongs."""
        lines = [f"POST {urlsplit(self.url).path} HTTP/1.1", "host: bench"]
        lines += ["content-type: application/json", f"content-length: {len(self.body)}", "", ""]
        return "\r\n".join(lines).encode() + self.body


def is_whole(data: bytes) -> bool:
    """Whether an answer has come to its end. Raises: LoadError for another status than 200."""
    head, found, body = data.partition(b"\r\n\r\n")
    if not found:
        return False
    if b" 200 " not in head[:16]:
        raise LoadError(data[:400].decode("utf-8", "replace"))
    length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
    return len(body) >= int(length[1]) if length else body.endswith(_ENDS)


def measure_first_data(target: Target, count: int, warm: int = 20) -> list[float]:
    """Return the seconds from sending to the first event of a stream, one request at a time."""
    found: list[float] = []
    start = first_number()
    with socket.create_connection(target.address, timeout=30) as link:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for number in range(count + warm):
            request = target.numbered(start + number)
            began, first, data = time.perf_counter(), 0.0, b""
            link.sendall(request)
            while not data or not is_whole(data):
                part = link.recv(1 << 18)
                if not part:
                    raise LoadError("the connection was closed")
                data += part
                if not first and b"data:" in data:
                    first = time.perf_counter()
            if number >= warm:
                found.append(first - began)
    return found


def first_number() -> int:
    """Return a number from which on none was used before."""
    return time.time_ns() // 10**5 % 10**8


_SCRIPT = """
local before, after = %s, %s
local number = %d
request = function()
  number = number + %d
  return before .. string.format("%%08d", number %% 100000000) .. after
end
"""


def _quote(data: bytes) -> str:
    return '"' + "".join(f"\\{byte:03d}" for byte in data) + '"'


def measure_rate(target: Target, connections: int, seconds: float, directory: Path) -> float:
    """Return whole answers per second. Raises: LoadError when some were none."""
    wrk = shutil.which("wrk")
    if wrk is not None:
        script = directory / "post.lua"
        before, _, after = target.request.partition(_MARKER)
        step = 0 if target.same else 1
        script.write_text(_SCRIPT % (_quote(before), _quote(after), first_number() * step, step))
        command = [wrk, "-t1", f"-c{connections}", f"-d{seconds:.0f}s", "-s", str(script)]
        command.append(target.url)
    else:
        body = directory / "body.json"
        body.write_bytes(target.body)
        command = [sys.executable, "-m", "tests.bench.http_load", target.url, str(body)]
        command += [str(connections), str(seconds), *["--same"] * target.same]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    rate = re.search(r"Requests/sec:\s*([\d.]+)", done.stdout)
    if rate is None or "Non-2xx" in done.stdout:
        raise LoadError(done.stdout[-400:] + done.stderr[-400:])
    return float(rate[1])


class _Sender(asyncio.Protocol):
    """One connection that sends the next request once it has the whole answer."""

    def __init__(self, target: Target, numbers: "itertools.count[int]") -> None:
        self._target, self._numbers, self._got = target, numbers, b""
        self.answers = 0
        self.fault = ""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclass.
        self._transport = cast(asyncio.Transport, transport)
        self._send()

    def _send(self) -> None:
        assert self._transport is not None
        self._transport.write(self._target.numbered(next(self._numbers)))

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        self._got += data
        try:
            if not is_whole(self._got):
                return
        except LoadError as fault:
            self.fault = str(fault)
            self._transport.abort()
            return
        self.answers, self._got = self.answers + 1, b""
        self._send()


async def _send(target: Target, connections: int, seconds: float) -> float:
    loop = asyncio.get_running_loop()
    host, port = target.address
    numbers = itertools.count(first_number())
    links = [
        await loop.create_connection(lambda: _Sender(target, numbers), host, port)
        for _ in range(connections)
    ]
    began = loop.time()
    await asyncio.sleep(seconds)
    rate = sum(sender.answers for _, sender in links) / (loop.time() - began)
    for transport, sender in links:
        transport.abort()
        if sender.fault:
            raise LoadError(sender.fault)
    return rate


def median_ms(seconds: list[float]) -> float:
    """Return the median in milliseconds."""
    return statistics.median(seconds) * 1e3


def main() -> None:
    """Send load and print the rate as wrk does."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.http_load")
    parser.add_argument("url")
    parser.add_argument("body", type=Path)
    parser.add_argument("connections", type=int)
    parser.add_argument("seconds", type=float)
    parser.add_argument("--same", action="store_true")
    given = parser.parse_args()
    target = Target(given.url, given.body.read_bytes(), same=given.same)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        rate = runner.run(_send(target, given.connections, given.seconds))
    print(f"Requests/sec: {rate:.1f}")


if __name__ == "__main__":
    main()
