"""Real controllers for tests: one inside the test's event loop, or one in its own process."""

import asyncio
import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import aiohttp

from controller.app import ControllerApp
from controller.http_server import base_url, bind
from controller.settings import Listen, Role, Settings, ShutdownSettings, StoreSettings
from manifests.kinds.meta import API_VERSION
from tests.support.leash import start_held

API = f"/apis/{API_VERSION}"
MERGE = {"Content-Type": "application/merge-patch+json"}
TABLE = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"}
START_SECONDS = 30


@contextlib.asynccontextmanager
async def serving(
    roles: frozenset[Role] = frozenset({Role.API}), history_changes: int = 10_000
) -> AsyncIterator[str]:
    """Run the real app with a memory store on a free port; yield its base URL."""
    settings = Settings(
        Listen(port=0),
        StoreSettings(history_changes=history_changes),
        roles,
        shutdown=ShutdownSettings(grace_seconds=5),
    )
    with bind(settings.listen) as bound:
        app = ControllerApp(settings, bound)
        running = asyncio.create_task(app.run())
        try:
            yield base_url(bound)
        finally:
            app.stop()
            await asyncio.wait_for(running, 20)


class ControllerProcess:
    """`python -m controller` as a child process on a free port."""

    def __init__(self, data: Path, *arguments: str) -> None:
        command = [sys.executable, "-m", "controller", "--listen", "127.0.0.1:0"]
        command += ["--data", str(data), "--log-format", "json", *arguments]
        self._process = start_held(command, stderr=subprocess.PIPE, text=True)
        self._ready = threading.Event()
        self.lines: list[str] = []
        self.url = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> "ControllerProcess":
        if not self._ready.wait(START_SECONDS) or not self.url:
            self.kill()
            raise AssertionError(f"the controller did not start: {self.lines}")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()

    def kill(self) -> None:
        """End the process at once, as a crash would."""
        # Popen looks before it signals, and several threads may do this at once.
        with suppress(ProcessLookupError):
            self._process.kill()
        self.wait()

    def terminate(self) -> int:
        """Ask the process to stop and return its exit code."""
        self._process.terminate()
        return self.wait()

    def wait(self) -> int:
        """Return the exit code."""
        code = self._process.wait(START_SECONDS)
        self._reader.join(START_SECONDS)
        return code

    def _read(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as stream:
            for line in stream:
                self.lines.append(line)
                if '"listening"' in line:
                    self.url = json.loads(line)["url"]
                    self._ready.set()
        self._ready.set()


async def call(
    session: aiohttp.ClientSession, method: str, url: str, body: Any = None, **kwargs: Any
) -> tuple[int, Any]:
    """Return the status and the decoded JSON of one request."""
    headers = {"Content-Type": "application/json", **kwargs.pop("headers", {})}
    data = None if body is None else json.dumps(body)
    async with session.request(method, url, data=data, headers=headers, **kwargs) as answer:
        return answer.status, json.loads(await answer.read())


class WatchReader:
    """Reads the lines of one watch."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self._answer = answer

    async def take(self, count: int) -> list[dict[str, Any]]:
        """Return the next events, within a bounded time."""
        return [await self.next() for _ in range(count)]

    async def next(self) -> dict[str, Any]:
        """Return the next event."""
        line = await asyncio.wait_for(self._answer.content.readline(), 10)
        assert line, "the watch ended"
        event: dict[str, Any] = json.loads(line)
        return event

    async def at_end(self) -> bool:
        """Whether the server ends the watch, without a further event, within a bounded time."""
        return await asyncio.wait_for(self._answer.content.read(), 10) == b""


@contextlib.asynccontextmanager
async def watching(
    session: aiohttp.ClientSession, url: str, headers: Any = None, **params: str
) -> AsyncIterator[WatchReader]:
    """Open a watch on a collection."""
    asked = {"watch": "true", **params}
    async with session.get(url, params=asked, headers=headers) as answer:
        assert answer.status == 200, await answer.text()
        yield WatchReader(answer)
