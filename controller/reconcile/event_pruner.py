"""Keeps Events bounded: a task that deletes what the plan says is too old or too much."""

import asyncio
import time
from collections.abc import Callable

import structlog

from controller.reconcile.event_plan import plan_event_prune
from controller.runtime.objects import Objects
from manifests.wire.status import ApiError

_LOG = structlog.get_logger(__name__)
PRUNE_SECONDS = 60.0


class EventPruner:
    """Deletes old Events once a minute."""

    def __init__(self, objects: Objects, *, clock: Callable[[], float] = time.time) -> None:
        """`clock` tells seconds since the epoch."""
        self._objects, self._clock = objects, clock

    async def prune(self) -> int:
        """Delete what is due and return how many. Raises: ApiError, OSError."""
        listed = await self._objects.list_objects("events")
        names = plan_event_prune(listed.items, self._clock())
        for name in names:
            try:
                await self._objects.delete("events", name)
            except ApiError as fault:
                if fault.code != 404:
                    raise
        return len(names)

    async def run(self) -> None:
        """Prune until cancelled."""
        while True:
            try:
                await self.prune()
            except (ApiError, OSError) as fault:
                _LOG.warning("events not pruned", error=str(fault))
            await asyncio.sleep(PRUNE_SECONDS)
