"""One run: clients ask, models come and go, then the idle node answers for its refusals.

With the guard off it ends soon after the kernel's first kill. Units: seconds.
"""

import asyncio
import random
import time
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from tests.torture.aftermath import (
    Aftermath,
    check_refusals,
    fetch_metrics,
    footprints_of,
    pick_retries,
    retry_alone,
    wait_quiet,
)
from tests.torture.churn import Churn, Turn
from tests.torture.client import PATIENCE_SECONDS, Doors, fire, open_session
from tests.torture.mix import draw_ask
from tests.torture.outcome import Outcome
from tests.torture.stage import VISITOR, Plan, Stage, staged
from tests.torture.watch import Seen, look_at_group, start_watching

AFTER_KILL_SECONDS = 3.0


@dataclass(slots=True)
class Record:
    """All that one run saw."""

    plan: Plan
    outcomes: list[Outcome] = field(default_factory=list)
    seen: Seen = field(default_factory=Seen)
    turns: list[Turn] = field(default_factory=list)
    aftermath: Aftermath | None = None
    seconds: float = 0.0
    log: str = ""


def run(plan: Plan, directory: Path) -> Record:
    """Stage the fleet in a directory and torture it. Raises CgroupUnavailableError."""
    record = Record(plan)
    with staged(plan, directory) as stage:
        asyncio.run(_torture(stage, record))
        look_at_group(record.seen, stage.group, time.monotonic())
        record.log = stage.agent.tail(200)
    return record


async def _torture(stage: Stage, record: Record) -> None:
    plan, seen = record.plan, record.seen
    rng = random.Random(f"{plan.seed}/churn")
    present = set(plan.steady)
    async with open_session() as session, open_session() as control:
        watching = start_watching(seen, stage, control)
        churn = Churn(stage, control, rng)
        turning = asyncio.create_task(churn.run(sorted(plan.comes_and_goes), present))
        began = time.monotonic()
        await _ask_all(session, stage.doors, record)
        record.seconds = time.monotonic() - began
        turning.cancel()
        await asyncio.gather(turning, return_exceptions=True)
        if plan.guard:
            await _settle(churn, record, present)
            record.aftermath = await _look_back(session, control, stage, record)
        record.turns = churn.turns
        for task in watching:
            task.cancel()
        ended = await asyncio.gather(*watching, return_exceptions=True)
    for fault in ended:
        if isinstance(fault, Exception):
            raise fault


async def _ask_all(session: aiohttp.ClientSession, doors: Doors, record: Record) -> None:
    """Let every client ask until time is up, then hear the last answers."""
    stop = asyncio.Event()
    clients = [
        asyncio.create_task(_ask_on(session, doors, record, client, stop))
        for client in range(record.plan.clients)
    ]
    deadline = time.monotonic() + record.plan.seconds
    while time.monotonic() < deadline:
        killed = record.seen.first_kill_seconds is not None and not record.plan.guard
        if killed:
            deadline = min(deadline, time.monotonic() + AFTER_KILL_SECONDS)
            break
        await asyncio.sleep(0.1)
    await asyncio.sleep(max(0.0, deadline - time.monotonic()))
    stop.set()
    patience = PATIENCE_SECONDS if record.plan.guard else AFTER_KILL_SECONDS
    _done, late = await asyncio.wait(clients, timeout=patience)
    for task in late:
        task.cancel()
    for fault in await asyncio.gather(*clients, return_exceptions=True):
        if isinstance(fault, Exception):
            raise fault


async def _ask_on(
    session: aiohttp.ClientSession, doors: Doors, record: Record, client: int, stop: asyncio.Event
) -> None:
    """Ask one after the other until told to stop."""
    plan = record.plan
    rng = random.Random(f"{plan.seed}/{client}")
    number = 0
    while not stop.is_set():
        ask = draw_ask(plan.mix, rng, client, number)
        outcome = await fire(session, doors, ask)
        record.outcomes.append(outcome)
        number += 1
        # A refused client waits a little, as a polite one does.
        pause = rng.uniform(0.3, 1.5) if outcome.error else rng.uniform(0.0, 0.3)
        await asyncio.sleep(pause)


async def _settle(churn: Churn, record: Record, present: set[str]) -> None:
    """Take the visitor away and bring the others back, so that retries find them."""
    steady = record.plan.steady
    churn.idle = True
    if VISITOR in record.plan.comes_and_goes:
        await churn.take(VISITOR)
        present.discard(VISITOR)
    for name in steady:
        if name in record.plan.comes_and_goes and await churn.bring(name) == "HTTP 409":
            churn.turns.pop()  # it was never gone
        present.add(name)


async def _look_back(
    session: aiohttp.ClientSession, control: aiohttp.ClientSession, stage: Stage, record: Record
) -> Aftermath:
    plan, seen = record.plan, record.seen
    report = await wait_quiet(seen)
    metrics = await fetch_metrics(control, stage.agent.url)
    if report is None:
        return Aftermath(0, (), (), metrics)
    doubts = check_refusals(
        record.outcomes, report, footprints_of(report, metrics), plan.margin_bytes
    )
    rng = random.Random(f"{plan.seed}/retries")
    refused = pick_retries(record.outcomes, set(plan.steady), plan.retries, rng)
    retried = await retry_alone(session, stage.doors, refused, seen)
    final = await wait_quiet(seen)
    leaked = 0 if final is None else final.reserved_bytes
    return Aftermath(leaked, doubts, retried, await fetch_metrics(control, stage.agent.url))
