"""Thousands of requests that cannot be served, on a real fleet: each gets a 4xx, nothing leaks.

MLXFLEET_BAD_BODIES says how many (2,000 without), SEED which; `make bad-bodies` sends 10,000.
"""

import asyncio
import os
import random
import re
import statistics
import threading
import time

import httpx
import psutil

from tests.support.bad_requests import BadRequest, make_bad_request
from tests.support.fleet import Part, eventually, running_fleet
from tests.support.tiny_models import tiny_model

COUNT = int(os.environ.get("MLXFLEET_BAD_BODIES", "2000"))
SEED = int(os.environ.get("SEED", "1"))
AT_ONCE = 8
WARM = 300
ANSWER_SECONDS = 60.0
SLEEP_SECONDS = 0.002
# An interpreter's heap does not shrink to the byte; one body kept of each request would be more.
SPARE_BYTES = 48 * 1024 * 1024
SPARE_SOCKETS = 4


async def send(port: int, bad: BadRequest) -> tuple[int, float]:
    """Return the status, 0 when the connection was closed without one, and the seconds."""
    began = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = b""
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            try:
                writer.write(bad.data)
                await writer.drain()
                if bad.ends:
                    writer.write_eof()
            except OSError:  # refused before it was all sent; the answer may still be there
                pass
            try:
                head = await reader.readline()
            except ConnectionError:
                head = b""
    finally:
        writer.close()
    found = re.match(rb"HTTP/1\.[01] (\d{3}) ", head)
    return int(found[1]) if found else 0, time.perf_counter() - began


async def send_all(port: int, requests: list[BadRequest]) -> list[tuple[float, str]]:
    """Send all, some at a time; return the seconds of each with its kind. Fails on an answer."""
    left = iter(requests)
    wrong: list[str] = []
    taken: list[tuple[float, str]] = []

    async def one(bad: BadRequest) -> None:
        try:
            status, seconds = await send(port, bad)
        except TimeoutError:
            wrong.append(f"no answer to {bad.kind}: {bad.data[:300]!r}")
            return
        if not (400 <= status < 500 or (status == 0 and bad.cut)):
            wrong.append(f"{status} for {bad.kind}: {bad.data[-300:]!r}")
        taken.append((seconds, bad.kind))

    async def go_on() -> None:
        for bad in left:
            await one(bad)

    # As many tasks as are at work: thousands that only wait for their turn would take so much of
    # this loop as they begin that the first answers seem late.
    await asyncio.gather(*(go_on() for _ in range(AT_ONCE)))
    assert not wrong, f"{len(wrong)} of {len(requests)}:\n" + "\n".join(wrong[:10])
    return taken


class Lateness:
    """How late this machine wakes whoever only sleeps: what no answer can be blamed for."""

    def __init__(self) -> None:
        self.most_seconds = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> "Lateness":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        began = time.perf_counter()
        while not self._over.wait(SLEEP_SECONDS):
            now = time.perf_counter()
            self.most_seconds = max(self.most_seconds, now - began - SLEEP_SECONDS)
            began = now


def sockets(part: Part) -> int:
    """Return how many connections the process has open."""
    links = psutil.Process(part.pid).net_connections("tcp")
    return sum(item.status != psutil.CONN_LISTEN for item in links)


def resident_bytes(part: Part) -> int:
    """Return what the process holds in memory."""
    size: int = psutil.Process(part.pid).memory_info().rss
    return size


def held(part: Part) -> float:
    """Return the requests in flight and in the line, by the gateway's own metrics."""
    return total(part, "mlxfleet_gateway_in_flight", "mlxfleet_gateway_queue_depth")


def total(part: Part, *names: str) -> float:
    """Return the sum of some metrics without labels."""
    text = httpx.get(part.url + "/metrics", timeout=30, trust_env=False).text
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.split(" ")[0] in names)


def test_every_bad_request_gets_a_4xx_and_leaves_nothing_behind(tmp_path):
    dice = random.Random(SEED)
    requests = [make_bad_request(dice, "tiny") for _ in range(COUNT)]
    with running_fleet(tmp_path, agents=1) as fleet:
        fleet.serve("tiny", tiny_model("llama"))
        part = fleet.controller
        port = int(part.url.rsplit(":", 1)[1])
        # Loading it takes a core for seconds, which on a small machine is everybody's.
        eventually(
            lambda: total(part, "mlxfleet_gateway_tokenizer_processes") == 1,
            "the gateway has the tokenizer",
        )
        asyncio.run(send_all(port, requests[:WARM]))
        eventually(lambda: held(part) == 0, "nothing is in flight")
        before_sockets, before_bytes = sockets(part), resident_bytes(part)
        with Lateness() as late:
            taken = asyncio.run(send_all(port, requests[WARM:]))
        eventually(lambda: held(part) == 0, "nothing is in flight")
        eventually(
            lambda: sockets(part) <= before_sockets + SPARE_SOCKETS,
            f"the sockets are back at {before_sockets}",
        )
        grown = resident_bytes(part) - before_bytes
        slowest = sorted(taken)[-5:]
        middle = statistics.median(seconds for seconds, _ in taken)
        print(f"slowest: {', '.join(f'{kind} {s * 1e3:.0f} ms' for s, kind in slowest)}")
        print(
            f"p50 {middle * 1e3:.1f} ms; a sleeper woke up to {late.most_seconds * 1e3:.0f} ms late"
        )
        print(f"{sockets(part)} sockets (were {before_sockets}), RSS grew {grown >> 20} MiB")
        assert grown <= SPARE_BYTES
        good = {"model": "tiny", "prompt": "a", "max_tokens": 1}
        done = httpx.post(part.url + "/v1/completions", json=good, timeout=60, trust_env=False)
        assert done.status_code == 200
