"""What a node's object should say, and whether this agent may speak for it.

Pure. Called by the lease keeper. Units: seconds since the epoch for `now`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from manifests.kinds.engine import NODE_LABEL
from manifests.kinds.meta import ConditionStatus, ObjectMeta, find_condition
from manifests.kinds.node import Node, NodeInfo, NodeStatus
from manifests.times import format_micro_time, format_time, parse_time
from manifests.wire.listwatch import RawObject
from node_agent.sync.conditions import NodeNow, plan_conditions

IDENTITY_ANNOTATION = "mlxfleet.dev/agent-identity"
MISSED_LEASES = 3


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What this agent says of itself and does not change while it runs.

    `identity` is the same after every start, `instance` is not.
    """

    name: str
    identity: str
    instance: str
    address: str
    info: NodeInfo
    labels: Mapping[str, str] = field(default_factory=dict)
    lease_seconds: float = 10.0

    @property
    def all_labels(self) -> dict[str, str]:
        """The settings' labels and those every node has."""
        own = {NODE_LABEL: self.name, "mlxfleet.dev/os": self.info.os}
        return {**own, "mlxfleet.dev/arch": self.info.arch, **self.labels}


@dataclass(frozen=True, slots=True)
class Create:
    """No such node yet: make it."""

    node: Node


@dataclass(frozen=True, slots=True)
class Adopt:
    """The node is ours or nobody's; `patch` is None when it says so already."""

    patch: RawObject | None


@dataclass(frozen=True, slots=True)
class Taken:
    """Another agent speaks for this name.

    `certain` is false when its lease looks old by our clock, which may differ from its own:
    look again whether the lease moves.
    """

    message: str
    lease_time: str
    lease_seconds: float
    certain: bool


def plan_registration(
    existing: Node | None, facts: NodeFacts, now: float
) -> Create | Adopt | Taken:
    """Return what to do about the node's object; its spec is a person's and left alone."""
    annotations = {IDENTITY_ANNOTATION: facts.identity}
    if existing is None:
        metadata = ObjectMeta(name=facts.name, labels=facts.all_labels, annotations=annotations)
        return Create(Node(metadata=metadata))
    owner = existing.metadata.annotations.get(IDENTITY_ANNOTATION, "")
    if owner not in {"", facts.identity}:
        taken = judge_other_agent(existing, facts, now)
        if taken is not None:
            return taken
    labels = existing.metadata.labels
    missing = {k: v for k, v in facts.all_labels.items() if labels.get(k) != v}
    if owner == facts.identity and not missing:
        return Adopt(None)
    metadata_patch: RawObject = {
        "labels": missing,
        "annotations": annotations,
        "resourceVersion": existing.metadata.resource_version,
        "uid": existing.metadata.uid,
    }
    return Adopt({"metadata": metadata_patch})


def judge_other_agent(node: Node, facts: NodeFacts, now: float) -> Taken | None:
    """Return who holds the name while that agent may still be alive, else None.

    An agent that said goodbye, or that the controller no longer hears, has left the name.
    """
    owner = node.metadata.annotations.get(IDENTITY_ANNOTATION, "")
    ready = find_condition(node.status.conditions, "Ready")
    renewed = parse_time(node.status.lease_time)
    if owner in {"", facts.identity} or renewed is None:
        return None
    if ready is not None and ready.status is not ConditionStatus.TRUE:
        return None
    age = now - renewed
    lifetime = MISSED_LEASES * node.status.lease_seconds
    where = f" at {node.status.address}" if node.status.address else ""
    message = (
        f"node name {facts.name!r} is in use by another agent{where}, whose lease was renewed "
        f"{max(0.0, age):.0f} s ago. Start this one with another --name, or stop the other and "
        f"wait {lifetime:.0f} s. (A copied --data directory does not carry the identity along.)"
    )
    return Taken(message, node.status.lease_time, node.status.lease_seconds, age <= lifetime)


def plan_node_status(
    current: NodeStatus, facts: NodeFacts, state: NodeNow, observed_generation: int, now: float
) -> NodeStatus:
    """Return the status to write; conditions of other types are kept as they are."""
    memory = state.memory
    return NodeStatus(
        observed_generation=observed_generation,
        address=facts.address,
        capacity_bytes=memory.capacity_bytes,
        ceilings=memory.ceilings,
        used_bytes=memory.used_bytes,
        reserved_bytes=memory.reserved_bytes,
        headroom_bytes=memory.headroom_bytes,
        pressure=state.health.level,
        guard=state.guard,
        cache=state.cache,
        waiting=state.health.waiting,
        engines=state.engines,
        lease_time=format_micro_time(now),
        lease_seconds=facts.lease_seconds,
        instance=facts.instance,
        info=facts.info,
        conditions=plan_conditions(
            current.conditions, state, observed_generation, format_time(now)
        ),
    )
