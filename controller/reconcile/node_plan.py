"""What a node's silence or return means for its object and its engines. Pure."""

from dataclasses import dataclass

from controller.reconcile.leases import NodeHealth
from controller.reconcile.observe import LEASE_EXPIRED
from manifests.kinds.engine import ENGINE_FINALIZER, Engine
from manifests.kinds.meta import Condition, ConditionStatus, find_condition, set_condition
from manifests.kinds.node import Node
from manifests.units import format_duration


@dataclass(frozen=True, slots=True)
class NodeNews:
    """A change of readiness, and the node's conditions that carry it."""

    conditions: tuple[Condition, ...]
    reason: str
    message: str
    warning: bool


@dataclass(frozen=True, slots=True)
class Release:
    """An engine whose agent will not answer, and the finalizers that stay on it."""

    name: str
    resource_version: str
    finalizers: tuple[str, ...]


def plan_node(node: Node, health: NodeHealth, silence_seconds: float, now: str) -> NodeNews | None:
    """Return the condition to write, or None when the node's own word stands.

    Units: `silence_seconds` in seconds of listened time; `now` is an RFC 3339 time.
    """
    said = find_condition(node.status.conditions, "Ready")
    ours = said is not None and said.reason == LEASE_EXPIRED
    if health is NodeHealth.FRESH and ours:
        message = "the node renews its lease again"
        new = _ready(ConditionStatus.TRUE, "LeaseRenewed", message, node)
        return NodeNews(_put(node, new, now), "NodeReady", message, warning=False)
    if health not in {NodeHealth.EXPIRED, NodeHealth.LOST}:
        return None
    lost = health is NodeHealth.LOST
    outcome = "its engines are replaced elsewhere" if lost else "it gets no new work"
    if ours and said is not None and outcome in said.message:
        return None
    message = f"no lease for {format_duration(silence_seconds)}; {outcome}"
    new = _ready(ConditionStatus.UNKNOWN, LEASE_EXPIRED, message, node)
    reason = "NodeLost" if lost else LEASE_EXPIRED
    return NodeNews(_put(node, new, now), reason, message, warning=True)


def plan_releases(
    engines: list[Engine], health: NodeHealth, *, agent_stopped: bool = False
) -> tuple[Release, ...]:
    """Return the engines to let go of: being deleted, and their node lost or its agent stopped.

    Only our own finalizer goes; one that we do not know is somebody's and stays.
    """
    if health is not NodeHealth.LOST and not agent_stopped:
        return ()
    return tuple(
        Release(
            str(engine.metadata.name),
            engine.metadata.resource_version or "",
            tuple(item for item in engine.metadata.finalizers if item != ENGINE_FINALIZER),
        )
        for engine in engines
        if engine.metadata.deletion_timestamp is not None
        and ENGINE_FINALIZER in engine.metadata.finalizers
    )


def _ready(status: ConditionStatus, reason: str, message: str, node: Node) -> Condition:
    return Condition(
        type="Ready",
        status=status,
        reason=reason,
        message=message,
        observed_generation=node.metadata.generation,
    )


def _put(node: Node, new: Condition, now: str) -> tuple[Condition, ...]:
    return set_condition(node.status.conditions, new, now)
