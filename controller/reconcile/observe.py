"""Reading the live fleet into the frozen values that plans work on.

Owns the informers' translation and the engines that were made but are not yet seen coming back
from the store. It must not write. Called by the reconcilers and by `POST /fleet/v1/plan`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import cast

from controller.placement.fleet import (
    FleetView,
    NodeView,
    PlacedEngine,
    PlacementRequest,
    estimate_need,
)
from controller.reconcile.inspect import SourceInspector
from controller.reconcile.leases import Lease, NodeHealth
from controller.reconcile.model_plan import EngineView
from manifests.kinds.engine import ENGINE_FINALIZER, Engine
from manifests.kinds.meta import Condition, ConditionStatus, find_condition
from manifests.kinds.model import Model, Source
from manifests.kinds.node import Node
from manifests.wire.informer import Informer
from manifests.wire.report import Inspection

LEASE_EXPIRED = "LeaseExpired"


@dataclass(frozen=True, slots=True)
class Informers:
    """The live copies that decisions are made from."""

    models: Informer
    nodes: Informer
    engines: Informer

    @property
    def connected(self) -> bool:
        """Whether nodes' leases are being heard."""
        return self.nodes.connected


class FleetObserver:
    """What is known of the fleet now. `health` is set by the lease watch."""

    def __init__(self, informers: Informers, inspector: SourceInspector) -> None:
        """Observe through informers that someone else runs."""
        self.informers, self.inspector = informers, inspector
        self.health: Mapping[str, NodeHealth] = {}
        self._assumed: dict[str, Engine] = {}
        informers.engines.subscribe(self._seen)

    def assume(self, engine: Engine) -> None:
        """Count an engine that was just stored until the informer shows it.

        Without this, two decisions in a row would hand out the same bytes.
        """
        name = str(engine.metadata.name)
        if name not in self.informers.engines.objects:
            self._assumed[name] = engine

    def _seen(self, name: str) -> None:
        self._assumed.pop(name, None)

    def model(self, name: str) -> Model | None:
        """Return one model, or None."""
        return cast("Model | None", self.informers.models.objects.get(name))

    def models(self) -> list[Model]:
        """Return all models."""
        return [cast(Model, item) for item in self.informers.models.objects.values()]

    def node(self, name: str) -> Node | None:
        """Return one node, or None."""
        return cast("Node | None", self.informers.nodes.objects.get(name))

    def nodes(self) -> list[Node]:
        """Return all nodes, by name."""
        found = self.informers.nodes.objects
        return [cast(Node, found[name]) for name in sorted(found)]

    def engine(self, name: str) -> Engine | None:
        """Return one engine, or None."""
        return cast("Engine | None", self.informers.engines.objects.get(name))

    def engines(self) -> list[Engine]:
        """Return all engines, those just made included."""
        found = {**self._assumed, **self.informers.engines.objects}
        return [cast(Engine, found[name]) for name in sorted(found)]

    def leases(self) -> dict[str, Lease]:
        """Return the lease of every node; nodes that only engines still name have none."""
        named = {engine.spec.node: Lease("") for engine in self.engines()}
        for node in self.nodes():
            status = node.status
            value = f"{status.instance} {status.lease_time}"
            named[str(node.metadata.name)] = Lease(value, status.lease_seconds)
        return named

    def node_views(self) -> tuple[NodeView, ...]:
        """Return every node as placement sees it."""
        return tuple(
            observe_node(node, self.health.get(str(node.metadata.name), NodeHealth.UNPROVEN))
            for node in self.nodes()
        )

    async def inspect(self, source: Source) -> None:
        """Ask every ready node about a source."""
        await self.inspector.inspect((node for node in self.node_views() if node.ready), source)

    async def inspect_bound(self) -> None:
        """Ask about bound engines whose needs nobody told yet, each at its own node."""
        views = {node.name: node for node in self.node_views() if node.ready}
        for engine in self.engines():
            node = views.get(engine.spec.node)
            if node is not None and engine.spec.source.text not in self.inspector.shapes:
                await self.inspector.inspect((node,), engine.spec.source)

    def fleet(self) -> FleetView:
        """Return the whole fleet as placement sees it."""
        shapes, nodes = self.inspector.shapes, self.node_views()
        fused = {node.name for node in nodes if node.fused}
        return FleetView(
            nodes=nodes,
            engines=tuple(
                PlacedEngine(
                    str(engine.metadata.name),
                    engine.spec.model,
                    engine.spec.node,
                    needed_bytes(
                        engine,
                        shapes,
                        self.model(engine.spec.model),
                        fused=engine.spec.node in fused,
                    ),
                )
                for engine in self.engines()
                if not is_released(engine)
            ),
            sources=self.inspector.answers,
            shapes=shapes,
        )


def observe_node(node: Node, health: NodeHealth) -> NodeView:
    """Return one node as placement sees it; a silent one is not ready whatever it last said."""
    ready, why = _readiness(find_condition(node.status.conditions, "Ready"), health)
    return NodeView(
        name=str(node.metadata.name),
        ready=ready,
        schedulable=not node.spec.unschedulable,
        labels=node.metadata.labels,
        taints=tuple(node.spec.taints),
        ceilings=node.status.ceilings,
        address=node.status.address,
        instance=node.status.instance,
        why_not_ready=why,
        lost=health is NodeHealth.LOST,
        fused=node.status.info.fused,
        why_reboot=_why_reboot(node),
    )


def _why_reboot(node: Node) -> str:
    """Return why no new copy should come here until a reboot; memory was left behind for good."""
    told = find_condition(node.status.conditions, "RebootNeeded")
    if told is None or told.status is not ConditionStatus.TRUE:
        return ""
    return told.message or told.reason


def _readiness(said: Condition | None, health: NodeHealth) -> tuple[bool, str]:
    if health in {NodeHealth.EXPIRED, NodeHealth.LOST}:
        return False, "the node has stopped renewing its lease"
    if said is None:
        return False, "the node's agent has not reported yet"
    # We wrote LeaseExpired; a renewed lease outdates it even before the condition is rewritten.
    outdated = health is NodeHealth.FRESH and said.reason == LEASE_EXPIRED
    if said.status is ConditionStatus.TRUE or outdated:
        return True, ""
    return False, f"{said.reason}: {said.message}" if said.message else said.reason


def observe_engines(engines: Iterable[Engine], model: Model) -> tuple[EngineView, ...]:
    """Return a model's own engines as its plan sees them."""
    return tuple(
        EngineView(
            name=str(engine.metadata.name),
            uid=engine.metadata.uid or "",
            node=engine.spec.node,
            revision=engine.spec.revision,
            phase=engine.status.phase,
            wakes=engine.status.wakes,
            terminating=engine.metadata.deletion_timestamp is not None,
            released=is_released(engine),
        )
        for engine in engines
        if is_owned(engine, model)
    )


def is_owned(engine: Engine, model: Model) -> bool:
    """Whether an engine was made from this model, and not from a deleted one of the same name."""
    return any(owner.uid == model.metadata.uid for owner in engine.metadata.owner_references)


def is_released(engine: Engine) -> bool:
    """Whether the agent has let go of an engine that is being deleted."""
    meta = engine.metadata
    return meta.deletion_timestamp is not None and ENGINE_FINALIZER not in meta.finalizers


def placement_request(model: Model) -> PlacementRequest:
    """Return what one copy of a model asks of a node."""
    return PlacementRequest(
        model=str(model.metadata.name),
        source=model.spec.source.text,
        context=model.spec.context,
        prefill=model.spec.prefill,
        node_selector=model.spec.node_selector,
    )


def needed_bytes(
    engine: Engine, shapes: Mapping[str, Inspection], model: Model | None, *, fused: bool = False
) -> int:
    """Return what a bound engine needs, from the best that is known of its weights.

    An estimate from the files first; else what the engine, or its model, once reported.
    """
    known = shapes.get(engine.spec.source.text)
    if known is not None:
        spec = engine.spec
        return estimate_need(known, spec.context, spec.prefill, fused=fused).needed_bytes
    status = engine.status
    if status.weights_bytes:
        context_bytes = status.kv_bytes_per_token * engine.spec.context.min_tokens
        return max(status.footprint_bytes, status.weights_bytes + context_bytes)
    if model is not None and model.status.weights_bytes:
        context_bytes = model.status.kv_bytes_per_token * engine.spec.context.min_tokens
        return model.status.weights_bytes + context_bytes
    return status.footprint_bytes
