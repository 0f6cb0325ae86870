"""What placement would do with models that may not be stored: the answer of `/fleet/v1/plan`.

Pure. Uses the same `place` as the model plan, so that what is shown is what would happen.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from controller.placement.filters import check_node
from controller.placement.fleet import FleetView, PlacedEngine, context_tokens
from controller.placement.place import Unplaceable, bind, place
from controller.reconcile.observe import placement_request
from manifests.kinds.engine import Engine
from manifests.kinds.model import Model
from manifests.sizing.estimate import estimate_bytes_per_token
from manifests.wire.plan import Candidate, ModelPlan, PlanReport


@dataclass(frozen=True, slots=True)
class Planned:
    """One model's part of the report, and the fleet with its copies on it."""

    plan: ModelPlan
    fleet: FleetView


def plan_report(models: Sequence[Model], engines: Sequence[Engine], fleet: FleetView) -> PlanReport:
    """Return where the copies of each model would go, each after those before it."""
    plans: list[ModelPlan] = []
    for model in models:
        planned = plan_one(model, engines, fleet)
        plans.append(planned.plan)
        fleet = planned.fleet
    return PlanReport(models=tuple(plans))


def plan_one(model: Model, engines: Sequence[Engine], fleet: FleetView) -> Planned:
    """Return where one model's copies would go.

    Copies that run from the same source stay where they are; copies of another source would
    be replaced, so their memory counts as free.
    """
    request = placement_request(model)
    name = request.model
    own = [engine for engine in engines if engine.spec.model == name]
    live = [engine for engine in own if engine.metadata.deletion_timestamp is None]
    kept = [engine for engine in live if engine.spec.source.text == request.source]
    for engine in live:
        if engine not in kept:
            fleet = fleet.without_engine(str(engine.metadata.name))
    nodes = [engine.spec.node for engine in kept][: model.spec.replicas]
    chosen: dict[str, Candidate] = {}
    last = tuple(check_node(request, fleet, node) for node in fleet.nodes)
    message = ""
    for ordinal in range(len(nodes), model.spec.replicas):
        placed = place(request, fleet)
        last = placed.candidates
        if isinstance(placed, Unplaceable):
            message = placed.message
            break
        nodes.append(placed.node)
        picked = next(item for item in placed.candidates if item.chosen)
        chosen.setdefault(placed.node, picked)
        planned: PlacedEngine = bind(request, placed, f"{name} planned {ordinal}")
        fleet = fleet.with_engine(planned)
    candidates = tuple(
        chosen.get(item.node, item.model_copy(update={"chosen": False})) for item in last
    )
    shape = fleet.shapes.get(request.source)
    plan = ModelPlan(
        model=name,
        source=request.source,
        replicas=model.spec.replicas,
        placed=len(nodes),
        context_tokens=context_tokens(shape, request.context) if shape else 0,
        kv_bytes_per_token=estimate_bytes_per_token(shape.shape) if shape else 0,
        nodes=tuple(nodes),
        message=message,
        candidates=candidates,
    )
    return Planned(plan, fleet)
