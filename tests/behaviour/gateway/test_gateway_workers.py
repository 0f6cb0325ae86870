"""`--roles gateway --workers N`: several processes behind one port, kept and stopped together."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest

from controller.http_server import AddressInUseError, bind
from controller.settings import Listen
from controller.workers import hold_port
from tests.support.fleet import Part, eventually, free_port, running_fleet

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux spreads one port")


@contextmanager
def two_workers(directory: Path) -> Iterator[Part]:
    """Run an API and two gateway workers beside it; yields the workers' parent."""
    with running_fleet(directory, agents=0) as fleet:
        url = f"http://127.0.0.1:{(port := free_port())}"
        command = ["controller", "--listen", f"127.0.0.1:{port}", "--roles", "gateway"]
        command += ["--api", fleet.url, "--workers", "2"]
        part = Part("workers", command, directory / "workers.log", url)
        fleet.gateways[part.name] = part
        part.start()
        eventually(lambda: len(listening(part)) == 2, f"two workers listen\n{part.tail()}")
        yield part


def listening(part: Part) -> set[int]:
    """Return the workers that listen on the port."""
    port = int(part.url.rsplit(":", 1)[1])
    return {child.pid for child in part.children() if listens(child, port)}


def listens(process: psutil.Process, port: int) -> bool:
    """Whether a process listens on a port."""
    try:
        links = process.net_connections("tcp")
    except psutil.Error:  # it has just ended
        return False
    return any(item.status == psutil.CONN_LISTEN and item.laddr.port == port for item in links)


def models(part: Part) -> int:
    """Return the status of a listing over a new connection."""
    return httpx.get(part.url + "/v1/models", timeout=10, trust_env=False).status_code


def test_a_worker_that_dies_is_replaced_and_all_stop_with_the_parent(tmp_path):
    with two_workers(tmp_path) as part:
        eventually(lambda: models(part) == 200, "the workers answer")
        first = listening(part)
        victim = min(first)
        psutil.Process(victim).kill()
        eventually(
            lambda: len(now := listening(part)) == 2 and victim not in now,
            f"another worker listens\n{part.tail()}",
        )
        eventually(lambda: models(part) == 200, "the workers answer")
        workers = part.children()
        assert part.stop() == 0
        assert not [child for child in workers if child.is_running()]


def test_no_worker_outlives_a_parent_that_was_killed(tmp_path):
    with two_workers(tmp_path) as part:
        workers = part.children()
        part.kill()
        eventually(
            lambda: not [child for child in workers if child.is_running()], "the workers end"
        )


def test_the_port_of_other_workers_is_said_to_be_in_use():
    with bind(Listen("127.0.0.1", 0), shared=True) as worker, pytest.raises(AddressInUseError):
        hold_port(Listen("127.0.0.1", worker.getsockname()[1]))
