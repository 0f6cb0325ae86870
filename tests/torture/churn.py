"""Loads and unloads models while clients ask: applies and deletes them through the API.

One model at a time. It records how each load ended; a load that the memory guard holds back is
no fault. Units: seconds.
"""

import asyncio
import random
import time
from dataclasses import dataclass
from typing import Any

import aiohttp

from tests.support.fleet import API, condition
from tests.torture.stage import Stage, declare

STAY_SECONDS = (6.0, 20.0)
AWAY_SECONDS = (1.0, 6.0)
LOAD_SECONDS = 60.0
GONE_SECONDS = 120.0
POLL_SECONDS = 0.2
HELD_BACK = "held back"


@dataclass(frozen=True, slots=True)
class Turn:
    """One load or unload. `ended` is ready, held back (why), gone or stuck, or an HTTP status.

    `idle` says that no client asked anything meanwhile.
    """

    model: str
    what: str
    ended: str
    seconds: float
    idle: bool = False


class Churn:
    """Brings models and takes them away until told to stop."""

    def __init__(self, stage: Stage, session: aiohttp.ClientSession, rng: random.Random) -> None:
        self.turns: list[Turn] = []
        self.idle = False
        self._stage, self._session, self._rng = stage, session, rng

    async def run(self, models: list[str], present: set[str]) -> None:
        """Turn models on and off in a random order until cancelled. Mutates: `present`."""
        while models:
            # What is absent comes back first, so that requests to it do not all fail.
            absent = [name for name in models if name not in present]
            name = self._rng.choice(absent or models)
            if name in present:
                await asyncio.sleep(self._rng.uniform(*STAY_SECONDS))
                await self.take(name)
                present.discard(name)
            else:
                await asyncio.sleep(self._rng.uniform(*AWAY_SECONDS))
                await self.bring(name)
                present.add(name)

    async def bring(self, name: str) -> str:
        """Apply a model and wait until it serves; how that ended."""
        began = time.monotonic()
        url = f"{self._stage.fleet.url}{API}/models"
        async with self._session.post(url, json=declare(name)) as reply:
            status = reply.status
        if status not in {200, 201}:
            return self._note(name, "load", f"HTTP {status}", began)
        while time.monotonic() - began < LOAD_SECONDS:
            if condition(await self._find(name), "Ready") == "True":
                return self._note(name, "load", "ready", began)
            await asyncio.sleep(POLL_SECONDS)
        return self._note(name, "load", f"{HELD_BACK} ({await self._why(name)})", began)

    async def take(self, name: str) -> str:
        """Delete a model and wait until its object and its engines are gone; how that ended."""
        began = time.monotonic()
        async with self._session.delete(self._url(name)) as reply:
            status = reply.status
        if status not in {200, 202, 404}:
            return self._note(name, "unload", f"HTTP {status}", began)
        while time.monotonic() - began < GONE_SECONDS:
            if await self._find(name) is None and not await self._engines(name):
                return self._note(name, "unload", "gone", began)
            await asyncio.sleep(POLL_SECONDS)
        return self._note(name, "unload", "stuck", began)

    async def _why(self, name: str) -> str:
        """Return the reasons of its engines, or those of its own conditions without any."""
        reasons = {str(item["status"].get("reason")) for item in await self._engines(name)}
        status = (await self._find(name) or {}).get("status") or {}
        unmet = {
            item["reason"] for item in status.get("conditions", []) if item["status"] != "True"
        }
        return ", ".join(sorted(reasons or unmet))

    def _url(self, name: str) -> str:
        return f"{self._stage.fleet.url}{API}/models/{name}"

    async def _find(self, name: str) -> dict[str, Any] | None:
        async with self._session.get(self._url(name)) as reply:
            found: dict[str, Any] | None = await reply.json() if reply.status == 200 else None
            return found

    async def _engines(self, name: str) -> list[Any]:
        url = f"{self._stage.fleet.url}{API}/engines"
        async with self._session.get(url, params={"fieldSelector": f"spec.model={name}"}) as reply:
            items: list[Any] = (await reply.json())["items"]
            return items

    def _note(self, model: str, what: str, ended: str, began: float) -> str:
        self.turns.append(Turn(model, what, ended, time.monotonic() - began, self.idle))
        return ended
