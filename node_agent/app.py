"""The agent from start to stop: opens the port, runs every part, stops them in order.

Owns nothing that lives longer than a run. It holds no policy: what to run, admit or answer is
decided in the packages it wires together.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import aiohttp
import structlog

from node_agent.data_dir import DataDir
from node_agent.server import (
    open_socket,
)
from node_agent.settings import AgentSettings
from node_agent.stopping import StopSignals
from node_agent.sync.lease import NodeTakenError
from node_agent.wiring import Agent, build_agent

_LOG = structlog.get_logger(__name__)
# After the grace: time for the in-band errors of cut requests to reach their clients.
_LAST_WORDS_SECONDS = 2.0


async def run_agent(settings: AgentSettings, data: DataDir, signals: StopSignals) -> int:
    """Run until asked to stop; return the exit code.

    Raises: ListenError, OSError when the agent cannot start.
    """
    sock = open_socket(settings.listen)
    async with aiohttp.ClientSession() as session:
        agent = build_agent(settings, data, sock, session)
        async with _running(agent) as tasks:
            _LOG.info(
                "agent ready",
                node=agent.facts.name,
                address=agent.facts.address,
                port=sock.getsockname()[1],
                controller=settings.controller_url,
            )
            code = await _watch(tasks, signals)
            await _stop(agent, signals)
    _LOG.info("agent stopped", exit_code=code)
    return code


@contextlib.asynccontextmanager
async def _running(agent: Agent) -> AsyncIterator[dict[str, asyncio.Task[None]]]:
    """Start every loop; on the way out end those that still run."""
    await agent.guard.start()
    tasks = {
        "http server": asyncio.create_task(agent.server.serve(sockets=[agent.sock])),
        "memory guard": asyncio.create_task(agent.guard.run()),
        "controller sync": asyncio.create_task(agent.sync.run()),
    }
    try:
        yield tasks
    finally:
        for name in ("controller sync", "memory guard"):
            tasks[name].cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)


async def _watch(tasks: dict[str, asyncio.Task[None]], signals: StopSignals) -> int:
    """Wait for a signal or for the first part that ends by itself; return the exit code."""
    asked = asyncio.create_task(signals.wait_asked())
    done, _ = await asyncio.wait([asked, *tasks.values()], return_when=asyncio.FIRST_COMPLETED)
    asked.cancel()
    for name, task in tasks.items():
        if task not in done:
            continue
        fault = task.exception()
        if isinstance(fault, NodeTakenError):
            _LOG.error(str(fault))
        else:
            _LOG.error(f"{name} ended", exc_info=fault)
        return 1
    return 0


async def _stop(agent: Agent, signals: StopSignals) -> None:
    """Stop in order: no new work, running work out, engines, last words, server."""
    grace = agent.settings.grace_seconds
    agent.api.traffic.drain()
    agent.load.stop_accepting()
    agent.sync.begin_stop()
    agent.api.changes.ring()
    _LOG.info("stopping", in_flight=agent.api.traffic.in_flight, grace_seconds=grace)
    await _first_of(agent.api.traffic.wait_idle(grace), signals.wait_insisted())
    await agent.pool.close(0)
    await agent.api.traffic.wait_idle(_LAST_WORDS_SECONDS)
    await agent.sync.say_stopped()
    agent.api.close()
    await agent.texts.close()
    agent.server.should_exit = True


async def _first_of(*waits: Coroutine[Any, Any, object]) -> None:
    """Wait for one of several things and drop the others."""
    tasks = [asyncio.create_task(wait) for wait in waits]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
