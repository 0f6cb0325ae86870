"""Making the fleet run what a Model declares.

Owns the writes: Engines of a model and the model's status. Every decision is in `model_plan`
and `model_status`. Called by the loop with a model's name.
"""

import time
from collections.abc import Callable
from typing import cast

from controller.reconcile.model_plan import (
    EnginePlan,
    Wanted,
    group_engines,
    plan_engines,
)
from controller.reconcile.model_status import (
    ModelFacts,
    Moment,
    plan_news,
    plan_status,
    progress_left_seconds,
)
from controller.reconcile.observe import FleetObserver, is_owned, observe_engines, placement_request
from controller.reconcile.revision import build_engine, engine_revision
from controller.runtime.events import EventRecorder
from controller.runtime.loop import Result
from controller.runtime.objects import Objects
from manifests.kinds.engine import Engine
from manifests.kinds.model import Model, ModelStatus
from manifests.kinds.scheme import dump_object, parse_object
from manifests.times import format_time
from manifests.units import format_bytes
from manifests.wire.status import ApiError


class ModelReconciler:
    """One model at a time."""

    def __init__(
        self,
        objects: Objects,
        fleet: FleetObserver,
        events: EventRecorder,
        *,
        retry_seconds: float = 15.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`retry_seconds` is when a copy without a node is tried again; `clock` is the epoch's."""
        self._objects, self._fleet, self._events = objects, fleet, events
        self._retry_seconds, self._clock = retry_seconds, clock

    async def reconcile(self, name: str) -> Result:
        """Take one step towards what the model declares."""
        model = self._fleet.model(name)
        if model is None or model.metadata.deletion_timestamp is not None:
            return Result()
        await self._fleet.inspect(model.spec.source)
        await self._fleet.inspect_bound()
        epoch_seconds = self._clock()
        now = Moment(epoch_seconds, format_time(epoch_seconds))
        facts = observe_facts(model, self._fleet)
        await self._apply(model, facts.plan)
        await self._write_status(model, plan_status(model, facts, now))
        if facts.plan.refused is not None or facts.plan.waiting:
            return Result(self._retry_seconds)
        left_seconds = progress_left_seconds(model, facts, now)
        return Result(left_seconds or None)

    async def _apply(self, model: Model, plan: EnginePlan) -> None:
        for stop in plan.deletes:
            try:
                await self._objects.delete("engines", stop.name, uid=stop.uid)
            except ApiError as fault:
                if fault.code not in {404, 409}:
                    raise
                continue
            message = f"stopping {stop.name} on {stop.node}: {stop.why}"
            await self._events.record(model, "Stopping", message)
        revision = engine_revision(model.spec)
        for create in plan.creates:
            engine = build_engine(model, revision, create.name, create.node)
            stored = await self._objects.create("engines", dump_object(engine))
            self._fleet.assume(cast(Engine, parse_object(stored)))
            message = (
                f"placed {create.name} on {create.node}, "
                f"which needs {format_bytes(create.needed_bytes)}"
            )
            await self._events.record(model, "Placed", message)

    async def _write_status(self, model: Model, status: ModelStatus) -> None:
        if status == model.status:
            return
        patch = {"status": status.model_dump(mode="json", by_alias=True, exclude_none=True)}
        await self._objects.patch("models", str(model.metadata.name), patch, subresource="status")
        for news in plan_news(model.status, status):
            await self._events.record(model, news.reason, news.message, warning=news.warning)


def observe_facts(model: Model, fleet: FleetObserver) -> ModelFacts:
    """Return the plan of one model and all that it was made from."""
    view = fleet.fleet()
    every = fleet.engines()
    wanted = Wanted(
        request=placement_request(model),
        replicas=model.spec.replicas,
        revision=engine_revision(model.spec),
        recreate=model.spec.rollout.strategy == "Recreate",
        max_unavailable=model.spec.rollout.max_unavailable,
        taken_names=frozenset(str(engine.metadata.name) for engine in every),
    )
    engines = observe_engines(every, model)
    own = tuple(engine for engine in every if is_owned(engine, model))
    return ModelFacts(
        wanted=wanted,
        groups=group_engines(wanted, engines, view),
        plan=plan_engines(wanted, engines, view),
        fleet=view,
        engines=own,
    )
