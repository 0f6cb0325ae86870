"""Which guard a node follows."""

from typing import Any

from manifests.kinds.guard import MemoryGuard, MemoryGuardSpec, Tier
from manifests.kinds.scheme import parse_object
from node_agent.memory.guards import FollowedGuard, choose_guard

DEFAULT = MemoryGuardSpec()


def guard(name: str, tier: str, created: int = 0, **meta: Any) -> MemoryGuard:
    selector = meta.pop("selector", {})
    stamp = f"2026-11-01T00:00:{created:02d}Z"
    parsed = parse_object(
        {
            "apiVersion": "mlxfleet.dev/v1alpha1",
            "kind": "MemoryGuard",
            "metadata": {"name": name, "creationTimestamp": stamp, **meta},
            "spec": {"tier": tier, "nodeSelector": selector},
        }
    )
    assert isinstance(parsed, MemoryGuard)
    return parsed


def test_without_a_matching_guard_the_default_holds() -> None:
    other = guard("a", "safe", selector={"room": "lab"})
    assert choose_guard([], {}, DEFAULT) == FollowedGuard("", DEFAULT)
    assert choose_guard([other], {"room": "office"}, DEFAULT) == FollowedGuard("", DEFAULT)


def test_the_newest_matching_guard_counts() -> None:
    guards = [guard("old", "safe", 1), guard("new", "aggressive", 2)]
    assert choose_guard(guards, {}, DEFAULT).spec.tier is Tier.AGGRESSIVE


def test_a_guard_that_names_labels_stands_before_one_for_every_node() -> None:
    guards = [guard("lab", "safe", 1, selector={"room": "lab"}), guard("all", "aggressive", 2)]
    assert choose_guard(guards, {"room": "lab", "x": "y"}, DEFAULT).spec.tier is Tier.SAFE


def test_a_guard_being_deleted_no_longer_counts() -> None:
    leaving = guard("a", "safe", deletionTimestamp="2026-11-01T00:00:00Z", finalizers=["x/y"])
    assert choose_guard([leaving], {}, DEFAULT) == FollowedGuard("", DEFAULT)
