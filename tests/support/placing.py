"""Small fleets as placement sees them: sizes in whole GiB, so that tests read as sums."""

from collections.abc import Mapping

from controller.placement.fleet import FleetView, NodeView, PlacedEngine, PlacementRequest
from controller.reconcile.model_plan import EnginePlan, EngineView, Wanted
from manifests.kinds.engine import EnginePhase
from manifests.kinds.model import Context
from manifests.kinds.node import CeilingName, Ceilings
from manifests.sizing.estimate import LayerGroup, LayerKind, ModelShape
from manifests.units import GIB
from manifests.wire.report import Inspection

SOURCE = "/models/tiny"
SHAPE = ModelShape(
    model_type="llama",
    groups=(LayerGroup(kind=LayerKind.FULL, layers=2, bytes_per_token=512),),
    hidden_size=64,
    intermediate_size=128,
    attention_heads=2,
    kv_heads=2,
    head_dim=64,
    vocab_size=256,
    dtype_bytes=2,
    context_tokens=8192,
)


def inspection(weights_gib: float, source: str = SOURCE, fingerprint: str = "f" * 8) -> Inspection:
    return Inspection(
        source=source,
        weights_bytes=int(weights_gib * GIB),
        fingerprint=fingerprint,
        shape=SHAPE,
    )


def ceilings(gib: float, binding: CeilingName = CeilingName.STATIC) -> Ceilings:
    size = int(gib * GIB)
    return Ceilings(static_bytes=size, dynamic_bytes=size, hard_bytes=size, binding=binding)


def node(name: str, gib: float = 10, **changes: object) -> NodeView:
    values: dict[str, object] = {"ceilings": ceilings(gib), "address": f"http://{name}", **changes}
    return NodeView(name=name, **values)  # type: ignore[arg-type]


def fleet(
    *nodes: NodeView,
    engines: tuple[PlacedEngine, ...] = (),
    weights: Mapping[str, float] | None = None,
) -> FleetView:
    """A fleet whose nodes can all read every source; `weights` maps sources to GiB."""
    sizes = {SOURCE: 4.0} if weights is None else weights
    shapes = {source: inspection(size, source) for source, size in sizes.items()}
    sources = {(item.name, source): shape for item in nodes for source, shape in shapes.items()}
    return FleetView(nodes=nodes, engines=engines, sources=sources, shapes=shapes)


def request(source: str = SOURCE, model: str = "m", **changes: object) -> PlacementRequest:
    values: dict[str, object] = {"context": Context(minTokens=64), **changes}
    return PlacementRequest(model=model, source=source, **values)  # type: ignore[arg-type]


def wanted(replicas: int, revision: str = "r1", **changes: object) -> Wanted:
    values: dict[str, object] = {"request": request(), **changes}
    return Wanted(replicas=replicas, revision=revision, **values)  # type: ignore[arg-type]


def engine(name: str, on: str, revision: str = "r1", **changes: object) -> EngineView:
    values: dict[str, object] = {"phase": EnginePhase.READY, "uid": f"uid-{name}", **changes}
    return EngineView(name=name, node=on, revision=revision, **values)  # type: ignore[arg-type]


def placed(view: EngineView, gib: float, model: str = "m") -> PlacedEngine:
    return PlacedEngine(view.name, model, view.node, int(gib * GIB))


def names(plan: EnginePlan) -> tuple[list[str], list[str]]:
    """(nodes of new copies, names of stopped copies)."""
    return [item.node for item in plan.creates], [item.name for item in plan.deletes]
