"""Who may speak for a node's name, and what the agent writes about it (B67)."""

from typing import Any

import pytest

from manifests.kinds.meta import Condition, ConditionStatus, find_condition
from manifests.kinds.node import Ceilings, Node, NodeInfo, NodeStatus, PressureLevel
from manifests.kinds.scheme import parse_object
from manifests.times import format_micro_time
from node_agent.memory.books import MemoryState
from node_agent.sync.conditions import HealthNow, NodeNow
from node_agent.sync.register import (
    IDENTITY_ANNOTATION,
    Adopt,
    Create,
    NodeFacts,
    Taken,
    plan_node_status,
    plan_registration,
)

NOW = 1_800_000_000.0
FACTS = NodeFacts(
    name="mac",
    identity="me",
    instance="i1",
    address="http://10.0.0.1:7071",
    info=NodeInfo(os="darwin", arch="arm64"),
    labels={"room": "lab"},
)


def node(
    *, owner: str = "other", lease_age: float = 1.0, ready: str | None = "True", **labels: str
) -> Node:
    conditions = [] if ready is None else [{"type": "Ready", "status": ready, "reason": "r"}]
    raw: dict[str, Any] = {
        "apiVersion": "mlxfleet.dev/v1alpha1",
        "kind": "Node",
        "metadata": {
            "name": "mac",
            "uid": "u1",
            "resourceVersion": "9",
            "labels": labels,
            "annotations": {IDENTITY_ANNOTATION: owner} if owner else {},
        },
        "spec": {"unschedulable": True},
        "status": {
            "address": "http://10.0.0.2:7071",
            "leaseTime": format_micro_time(NOW - lease_age),
            "conditions": conditions,
        },
    }
    parsed = parse_object(raw)
    assert isinstance(parsed, Node)
    return parsed


def test_an_unknown_node_is_created_with_labels_and_identity() -> None:
    plan = plan_registration(None, FACTS, NOW)
    assert isinstance(plan, Create)
    assert plan.node.metadata.labels["room"] == "lab"
    assert plan.node.metadata.annotations == {IDENTITY_ANNOTATION: "me"}


def test_our_own_node_is_adopted_whatever_its_lease() -> None:
    plan = plan_registration(node(owner="me", **FACTS.all_labels), FACTS, NOW)
    assert plan == Adopt(None)


def test_a_node_made_by_a_person_is_adopted_and_its_spec_left_alone() -> None:
    plan = plan_registration(node(owner="", color="red"), FACTS, NOW)
    assert isinstance(plan, Adopt)
    assert plan.patch is not None
    assert "spec" not in plan.patch
    assert plan.patch["metadata"]["resourceVersion"] == "9"
    assert plan.patch["metadata"]["labels"] == FACTS.all_labels


def test_another_agent_with_a_fresh_lease_keeps_the_name() -> None:
    plan = plan_registration(node(), FACTS, NOW)
    assert isinstance(plan, Taken)
    assert plan.certain
    assert "10.0.0.2" in plan.message
    assert "--name" in plan.message


def test_an_old_lease_is_looked_at_again_because_clocks_differ() -> None:
    plan = plan_registration(node(lease_age=31.0), FACTS, NOW)
    assert isinstance(plan, Taken)
    assert not plan.certain


@pytest.mark.parametrize("ready", ["False", "Unknown"])
def test_an_agent_that_left_or_is_not_heard_any_more_has_left_the_name(ready: str) -> None:
    assert isinstance(plan_registration(node(ready=ready), FACTS, NOW), Adopt)


def memory() -> MemoryState:
    return MemoryState(
        capacity_bytes=100, ceilings=Ceilings(hard_bytes=90), used_bytes=50, reserved_bytes=10
    )


def test_the_status_holds_the_lease_the_figures_and_both_conditions() -> None:
    status = plan_node_status(NodeStatus(), FACTS, NodeNow(memory(), 2), 4, NOW)
    assert (status.capacity_bytes, status.headroom_bytes, status.engines) == (100, 30, 2)
    assert (status.lease_time, status.instance) == (format_micro_time(NOW), "i1")
    assert status.observed_generation == 4
    ready = find_condition(status.conditions, "Ready")
    pressure = find_condition(status.conditions, "MemoryPressure")
    assert ready is not None
    assert pressure is not None
    assert (ready.status, pressure.status) == ("True", "False")


def test_conditions_of_others_are_kept() -> None:
    disk = Condition(type="DiskSlow", status=ConditionStatus.TRUE, reason="Full")
    current = NodeStatus(conditions=(disk,))
    status = plan_node_status(current, FACTS, NodeNow(memory(), 0), 1, NOW)
    assert find_condition(status.conditions, "DiskSlow") == disk


def test_pressure_and_a_stop_show_as_conditions() -> None:
    now = NodeNow(memory(), 0, stopped=True, health=HealthNow(level=PressureLevel.HARD))
    status = plan_node_status(NodeStatus(), FACTS, now, 1, NOW)
    ready = find_condition(status.conditions, "Ready")
    pressure = find_condition(status.conditions, "MemoryPressure")
    assert ready is not None
    assert (ready.status, ready.reason) == ("False", "AgentStopped")
    assert pressure is not None
    assert (pressure.status, pressure.reason) == ("True", "PressureHard")
