"""Several gateway processes behind one port, kept alive and stopped together.

The system spreads new connections over the processes (SO_REUSEPORT, which only Linux spreads).
Each follows the fleet by itself; nothing is shared but the port. Called by `__main__`.
"""

import asyncio
import contextlib
import signal
import socket
import sys
from collections.abc import Sequence

import structlog

from controller.http_server import bind
from controller.settings import Listen, Settings

_LOG = structlog.get_logger(__name__)
_RESTART_SECONDS = (1.0, 30.0)


def hold_port(listen: Listen) -> socket.socket:
    """Return a socket that keeps the port for the workers and does not listen.

    Raises: AddressInUseError when anybody listens on the port, other workers included.
    """
    with bind(listen) as probe:
        host, port = probe.getsockname()[:2]
    return bind(Listen(host, port), shared=True, listening=False)


class Workers:
    """The processes of one parent; all methods belong to one event loop."""

    def __init__(self, arguments: Sequence[str], held: socket.socket, count: int) -> None:
        """`arguments` are the parent's own; the last ones override."""
        host, port = held.getsockname()[:2]
        listen = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        own = ["--workers", "1", "--listen", listen, "--shared-port"]
        self._command = [sys.executable, "-m", "controller", *arguments, *own]
        self._count = count
        self._stopping = asyncio.Event()
        self._processes: set[asyncio.subprocess.Process] = set()

    def stop(self) -> None:
        """End every worker as it would end alone; a second call is passed on as a second signal."""
        self._stopping.set()
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)

    async def run(self) -> None:
        """Keep all of them running until stopped, and return when the last has ended."""
        async with asyncio.TaskGroup() as group:
            for number in range(self._count):
                group.create_task(self._keep(number))

    async def _keep(self, number: int) -> None:
        loop, (least, most) = asyncio.get_running_loop(), _RESTART_SECONDS
        delay = least
        while not self._stopping.is_set():
            began = loop.time()
            # Of their own session, so that Ctrl-C reaches them through the parent only; their
            # standard input ends with the parent, however it ends.
            process = await asyncio.create_subprocess_exec(
                *self._command, stdin=asyncio.subprocess.PIPE, start_new_session=True
            )
            self._processes.add(process)
            if self._stopping.is_set():
                process.send_signal(signal.SIGTERM)
            code = await process.wait()
            self._processes.discard(process)
            if self._stopping.is_set():
                return
            delay = least if loop.time() - began > most else delay
            _LOG.error("worker ended", worker=number, code=code, restart_seconds=delay)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), delay)
            delay = min(most, delay * 2)


async def run_workers(settings: Settings, arguments: Sequence[str], held: socket.socket) -> None:
    """Run the workers until SIGTERM or SIGINT."""
    workers = Workers(arguments, held, settings.workers)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, workers.stop)
    _LOG.info("workers start", count=settings.workers, port=held.getsockname()[1])
    await workers.run()
    _LOG.info("workers stopped")
