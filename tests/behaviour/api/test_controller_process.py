"""The controller as a process: what a kill may cost, who may share its files, how it stops."""

import asyncio
import contextlib
import random
import subprocess
import sys
from pathlib import Path

import aiohttp
import pytest

from tests.support.controllers import API, MERGE, ControllerProcess, call
from tests.support.objects import model

pytestmark = pytest.mark.processes
ROLES = ("--roles", "api")
LANES = 4


def run_second(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "controller", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


async def write_until_killed(controller: ControllerProcess, kill_after: int) -> dict[str, int]:
    """Write in lanes until the process is gone; return what each lane was told is stored."""
    acknowledged: dict[str, int] = {}
    async with aiohttp.ClientSession(controller.url) as session:

        async def lane(name: str) -> None:
            path = f"{API}/models/{name}"
            await call(session, "POST", f"{API}/models", model(name, replicas=0))
            _, found = await call(session, "GET", path)
            number = found["spec"]["replicas"]
            while True:
                number += 1
                body = {"spec": {"replicas": number}}
                code, stored = await call(session, "PATCH", path, body, headers=MERGE)
                assert code == 200
                acknowledged[name] = stored["spec"]["replicas"]
                if sum(acknowledged.values()) >= kill_after:
                    await asyncio.to_thread(controller.kill)

        async def until_lost(name: str) -> None:
            with contextlib.suppress(aiohttp.ClientError, ConnectionError):
                await lane(name)

        await asyncio.gather(*(until_lost(f"lane-{index}") for index in range(LANES)))
    return acknowledged


async def test_kill_9_during_writes_loses_nothing_acknowledged(tmp_path: Path):
    chosen = random.Random(72)
    newest = 0
    for round_number in range(3):
        with ControllerProcess(tmp_path, *ROLES) as controller:
            total = 40 * (round_number + 1) + chosen.randrange(20)
            acknowledged = await write_until_killed(controller, total)
        with ControllerProcess(tmp_path, *ROLES) as controller:
            async with aiohttp.ClientSession(controller.url) as session:
                _, listed = await call(session, "GET", f"{API}/models")
            stored = {o["metadata"]["name"]: o["spec"]["replicas"] for o in listed["items"]}
            assert controller.terminate() == 0
        assert all(stored[name] >= number for name, number in acknowledged.items())
        version = int(listed["metadata"]["resourceVersion"])
        assert version > newest
        newest = version


def test_a_second_controller_is_refused_in_one_line(tmp_path: Path):
    with ControllerProcess(tmp_path, *ROLES) as first:
        second = run_second("--listen", "127.0.0.1:0", "--data", str(tmp_path), *ROLES)
        assert (second.returncode, second.stdout) == (1, "")
        assert second.stderr.count("\n") == 1
        assert "in use by process" in second.stderr
        address = first.url.removeprefix("http://")
        other = run_second("--listen", address, "--data", str(tmp_path / "other"), *ROLES)
        assert (other.returncode, other.stdout) == (1, "")
        assert other.stderr.count("\n") == 1
        assert f"port {address.rpartition(':')[2]}" in other.stderr


def test_a_damaged_database_is_refused_in_one_line_and_kept(tmp_path: Path):
    with ControllerProcess(tmp_path, *ROLES) as controller:
        assert controller.terminate() == 0
    database = tmp_path / "fleet.db"
    database.write_bytes(b"\0" * 8192)
    refused = run_second("--listen", "127.0.0.1:0", "--data", str(tmp_path), *ROLES)
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
    assert "damaged" in refused.stderr
    assert database.read_bytes() == b"\0" * 8192


async def test_a_term_signal_ends_watches_and_then_the_process(tmp_path: Path):
    with ControllerProcess(tmp_path, *ROLES) as controller:
        async with (
            aiohttp.ClientSession(controller.url) as session,
            session.get(f"{API}/models", params={"watch": "1"}) as watch,
        ):
            assert watch.status == 200
            assert await asyncio.to_thread(controller.terminate) == 0
            assert await watch.content.read() == b""
        assert any('"stopped"' in line for line in controller.lines)
