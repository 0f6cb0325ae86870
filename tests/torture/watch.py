"""What a run looks at while it goes: the cgroup, the node's load, its engines.

Three loops of their own, each ended by cancelling it. They change nothing but their `Seen`.
Units: bytes, seconds.
"""

import asyncio
import json
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from manifests.wire.report import LOAD_PATH, LoadReport
from tests.support.fleet import API
from tests.torture.cgroup import Cgroup
from tests.torture.stage import Stage

LOOK_SECONDS = 0.05
ENGINES_SECONDS = 0.5


@dataclass(slots=True)
class Seen:
    """The largest of everything, and how often."""

    peak_held_bytes: int = 0
    peak_anonymous_bytes: int = 0
    kills: int = 0
    first_kill_seconds: float | None = None
    reports: int = 0
    last_report: LoadReport | None = None
    hard_bytes: int = 0
    peak_used_bytes: int = 0
    peak_promised_bytes: int = 0
    use_ratios: list[float] = field(default_factory=list)
    pressure: Counter[str] = field(default_factory=Counter)
    restarts: dict[str, int] = field(default_factory=dict)
    failures: set[tuple[str, str]] = field(default_factory=set)


def look_at_group(seen: Seen, group: Cgroup, began: float) -> None:
    """Take in one reading of the cgroup. Mutates: `seen`."""
    usage = group.read()
    seen.peak_held_bytes = max(seen.peak_held_bytes, usage.held_bytes)
    seen.peak_anonymous_bytes = max(seen.peak_anonymous_bytes, usage.anonymous_bytes)
    if usage.kills > seen.kills and seen.first_kill_seconds is None:
        seen.first_kill_seconds = time.monotonic() - began
    seen.kills = max(seen.kills, usage.kills)


def take_report(seen: Seen, report: LoadReport) -> None:
    """Take in one load report. Mutates: `seen`."""
    seen.reports += 1
    seen.last_report = report
    promised = report.used_bytes + report.reserved_bytes
    seen.peak_used_bytes = max(seen.peak_used_bytes, report.used_bytes)
    seen.peak_promised_bytes = max(seen.peak_promised_bytes, promised)
    seen.pressure[report.pressure.value] += 1
    if report.ceilings.hard_bytes > 0:
        seen.hard_bytes = report.ceilings.hard_bytes
        seen.use_ratios.append(promised / report.ceilings.hard_bytes)


async def watch_group(seen: Seen, group: Cgroup) -> None:
    """Look at the cgroup until cancelled."""
    began = time.monotonic()
    while True:
        look_at_group(seen, group, began)
        await asyncio.sleep(LOOK_SECONDS)


async def watch_load(seen: Seen, session: aiohttp.ClientSession, agent_url: str) -> None:
    """Read the agent's load stream until cancelled, coming back when it breaks."""
    while True:
        try:
            timeout = aiohttp.ClientTimeout(total=None, sock_read=10)
            async with session.get(agent_url + LOAD_PATH, timeout=timeout) as reply:
                while line := await reply.content.readline():
                    take_report(seen, LoadReport.model_validate_json(line))
        except (aiohttp.ClientError, TimeoutError, OSError):
            await asyncio.sleep(ENGINES_SECONDS)


async def watch_engines(seen: Seen, session: aiohttp.ClientSession, api_url: str) -> None:
    """Read the engines' status until cancelled."""
    while True:
        for name, status in (await fetch_engines(session, api_url)).items():
            seen.restarts[name] = max(seen.restarts.get(name, 0), int(status.get("restarts", 0)))
            if status.get("phase") == "Failed":
                seen.failures.add((name, f"{status.get('reason')}: {status.get('message')}"))
        await asyncio.sleep(ENGINES_SECONDS)


async def fetch_engines(session: aiohttp.ClientSession, api_url: str) -> dict[str, dict[str, Any]]:
    """Return each engine's status; nothing while the API does not answer."""
    try:
        async with session.get(f"{api_url}{API}/engines") as reply:
            items = json.loads(await reply.text()).get("items", [])
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
        return {}
    return {item["metadata"]["name"]: item.get("status") or {} for item in items}


def start_watching(
    seen: Seen, stage: Stage, session: aiohttp.ClientSession
) -> list[asyncio.Task[None]]:
    """Start the three loops."""
    return [
        asyncio.create_task(watch_group(seen, stage.group)),
        asyncio.create_task(watch_load(seen, session, stage.agent.url)),
        asyncio.create_task(watch_engines(seen, session, stage.fleet.url)),
    ]
