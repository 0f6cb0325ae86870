"""Showing on each ApiKey whether it can be used.

Owns the conditions of the kind; its usage is written by the gateways. Decisions are in
`api_key_plan`. Wired up by the reconcilers' app.
"""

import time
from collections.abc import Callable

from controller.reconcile.api_key_plan import plan_key
from controller.reconcile.conditions import write_conditions
from controller.runtime.loop import Result
from controller.runtime.objects import Objects
from manifests.kinds.api_key import ApiKey
from manifests.wire.informer import Informer

_LONGEST_WAIT_SECONDS = 24 * 3600.0


class ApiKeyReconciler:
    """One key at a time."""

    def __init__(
        self, objects: Objects, keys: Informer, clock: Callable[[], float] = time.time
    ) -> None:
        """`clock` is the epoch's."""
        self._objects, self._keys, self._clock = objects, keys, clock

    async def reconcile(self, name: str) -> Result:
        """Write whether a key is usable, if that changed, and come back when it may change."""
        key = self._keys.objects.get(name)
        if not isinstance(key, ApiKey) or key.metadata.deletion_timestamp is not None:
            return Result()
        now = self._clock()
        every = [item for item in self._keys.objects.values() if isinstance(item, ApiKey)]
        plan = plan_key(key, every, now)
        await write_conditions(self._objects, "apikeys", key, key.status, plan.conditions)
        if plan.until_seconds is None:
            return Result()
        return Result(min(_LONGEST_WAIT_SECONDS, max(1.0, plan.until_seconds - now)))
