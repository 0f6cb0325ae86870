"""Showing on each Route whether it has its names and its Models.

Owns the status of the kind. Decisions are in `route_plan`. Wired up by the reconcilers' app.
"""

import time
from collections.abc import Callable

from controller.reconcile.conditions import write_conditions
from controller.reconcile.route_plan import plan_route
from controller.runtime.loop import Result
from controller.runtime.objects import Objects
from manifests.kinds.model import Model
from manifests.kinds.route import Route
from manifests.kinds.route_names import plan_route_names
from manifests.times import format_time
from manifests.wire.informer import Informer


class RouteReconciler:
    """One route at a time."""

    def __init__(
        self,
        objects: Objects,
        routes: Informer,
        models: Informer,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`clock` is the epoch's."""
        self._objects, self._routes, self._models, self._clock = objects, routes, models, clock

    async def reconcile(self, name: str) -> Result:
        """Write what a route's conditions are, if that changed."""
        route = self._routes.objects.get(name)
        if not isinstance(route, Route) or route.metadata.deletion_timestamp is not None:
            return Result()
        routes = [item for item in self._routes.objects.values() if isinstance(item, Route)]
        models = [item for item in self._models.objects.values() if isinstance(item, Model)]
        now = format_time(self._clock())
        conditions = plan_route(route, plan_route_names(routes), models, now)
        await write_conditions(self._objects, "routes", route, route.status, conditions)
        return Result()
