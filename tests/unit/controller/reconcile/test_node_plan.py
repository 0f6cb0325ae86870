from typing import Any, cast

import pytest

from controller.reconcile.leases import NodeHealth
from controller.reconcile.node_plan import NodeNews, plan_node, plan_releases
from controller.reconcile.observe import observe_node
from manifests.kinds.engine import ENGINE_FINALIZER, Engine
from manifests.kinds.meta import Condition, ConditionStatus, find_condition
from manifests.kinds.node import Node, NodeInfo
from manifests.kinds.scheme import parse_object

NOW = "2026-01-02T03:04:05Z"
API = "mlxfleet.dev/v1alpha1"


def a_node(status: str = "True", reason: str = "AgentReady", message: str = "") -> Node:
    ready = {"type": "Ready", "status": status, "reason": reason, "message": message}
    other = {"type": "DiskPressure", "status": "False", "reason": "Enough"}
    raw = {
        "apiVersion": API,
        "kind": "Node",
        "metadata": {"name": "a"},
        "status": {"conditions": [other, ready]},
    }
    return cast(Node, parse_object(raw))


def with_news(node: Node, news: NodeNews) -> Node:
    status = node.status.model_copy(update={"conditions": news.conditions})
    return node.model_copy(update={"status": status})


def an_engine(name: str, *finalizers: str, terminating: bool = True) -> Engine:
    meta: dict[str, Any] = {
        "name": name,
        "resourceVersion": "7",
        "finalizers": list(finalizers),
    }
    if terminating:
        meta["deletionTimestamp"] = NOW
    spec = {"model": "m", "node": "a", "revision": "r", "source": {"path": "/x"}}
    raw = {"apiVersion": API, "kind": "Engine", "metadata": meta, "spec": spec}
    return cast(Engine, parse_object(raw))


@pytest.mark.parametrize("health", [NodeHealth.FRESH, NodeHealth.UNPROVEN])
def test_a_node_that_reports_is_taken_at_its_word(health: NodeHealth) -> None:
    assert plan_node(a_node(), health, 3, NOW) is None
    assert plan_node(a_node("False", "Draining"), health, 3, NOW) is None


def test_a_silent_node_becomes_unknown_once_and_its_other_conditions_stay() -> None:
    news = plan_node(a_node(), NodeHealth.EXPIRED, 31, NOW)
    assert news is not None
    ready = find_condition(news.conditions, "Ready")
    assert ready is not None
    assert (ready.status, ready.reason) == (ConditionStatus.UNKNOWN, "LeaseExpired")
    assert ready.message == "no lease for 31s; it gets no new work"
    assert find_condition(news.conditions, "DiskPressure") is not None
    assert plan_node(with_news(a_node(), news), NodeHealth.EXPIRED, 45, NOW) is None


def test_a_lost_node_is_told_of_once_more() -> None:
    silent = plan_node(a_node(), NodeHealth.EXPIRED, 31, NOW)
    assert silent is not None
    lost = plan_node(with_news(a_node(), silent), NodeHealth.LOST, 91, NOW)
    assert lost is not None
    assert (lost.reason, lost.warning) == ("NodeLost", True)
    assert plan_node(with_news(a_node(), lost), NodeHealth.LOST, 200, NOW) is None


def test_a_node_that_renews_its_lease_is_ready_again_without_being_asked() -> None:
    silent = plan_node(a_node(), NodeHealth.EXPIRED, 31, NOW)
    assert silent is not None
    unknown = with_news(a_node(), silent)
    assert plan_node(unknown, NodeHealth.UNPROVEN, 0, NOW) is None
    news = plan_node(unknown, NodeHealth.FRESH, 0, NOW)
    assert news is not None
    ready = find_condition(news.conditions, "Ready")
    assert ready is not None
    assert (ready.status, ready.reason) == (ConditionStatus.TRUE, "LeaseRenewed")


def test_after_a_controller_restart_a_dead_node_is_not_taken_for_alive() -> None:
    unknown = a_node("Unknown", "LeaseExpired", "no lease for 31s; it gets no new work")
    assert not observe_node(unknown, NodeHealth.UNPROVEN).ready
    assert observe_node(unknown, NodeHealth.FRESH).ready
    assert observe_node(a_node(), NodeHealth.UNPROVEN).ready
    assert not observe_node(a_node(), NodeHealth.EXPIRED).ready


def test_placement_hears_that_a_node_must_be_rebooted() -> None:
    node = a_node()
    stranded = Condition(
        type="RebootNeeded", status=ConditionStatus.TRUE, reason="Stranded", message="3 GiB wired"
    )
    told = node.status.model_copy(update={"conditions": (*node.status.conditions, stranded)})
    after = observe_node(node.model_copy(update={"status": told}), NodeHealth.FRESH)
    assert after.why_reboot == "3 GiB wired"
    assert not observe_node(node, NodeHealth.FRESH).why_reboot


def test_placement_hears_from_the_node_whether_its_engines_are_fused() -> None:
    node = a_node()
    told = node.status.model_copy(update={"info": NodeInfo(fused=True)})
    assert not observe_node(node, NodeHealth.FRESH).fused
    assert observe_node(node.model_copy(update={"status": told}), NodeHealth.FRESH).fused


def test_engines_being_deleted_on_a_lost_node_are_let_go_of() -> None:
    """B79: the delete completes although the node never answers; unknown finalizers stay."""
    engines = [
        an_engine("gone", ENGINE_FINALIZER),
        an_engine("held", "example.com/backup", ENGINE_FINALIZER),
        an_engine("kept", ENGINE_FINALIZER, terminating=False),
        an_engine("released", "example.com/backup"),
    ]
    releases = plan_releases(engines, NodeHealth.LOST)
    assert [(item.name, item.finalizers) for item in releases] == [
        ("gone", ()),
        ("held", ("example.com/backup",)),
    ]
    assert plan_releases(engines, NodeHealth.EXPIRED) == ()
