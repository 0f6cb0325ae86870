"""Which nodes follow a guard or a budget, and whether what they follow is its newest version."""

from typing import Any, cast

import pytest

from controller.reconcile.following_plan import (
    Follower,
    Following,
    observe_budget,
    observe_guard,
    plan_following,
)
from manifests.kinds.cache_budget import CacheBudget
from manifests.kinds.engine import Engine
from manifests.kinds.guard import MemoryGuard
from manifests.kinds.meta import find_condition
from manifests.kinds.node import AGENT_STOPPED, Node
from manifests.kinds.scheme import parse_object

API = "mlxfleet.dev/v1alpha1"
NOW, LATER = "2026-01-02T03:04:05Z", "2026-01-02T03:05:05Z"


def make(kind: str, name: str, generation: int = 1, **fields: Any) -> Any:
    meta = {"name": name, "generation": generation}
    return parse_object({"apiVersion": API, "kind": kind, "metadata": meta, **fields})


def node(name: str, *, guard: str = "", cache: str = "", generation: int = 2, **more: Any) -> Node:
    told = {
        name: {"name": of, "generation": generation}
        for name, of in (("guard", guard), ("cache", cache))
    }
    return cast(Node, make("Node", name, status={**told, **more}))


def engine(name: str, cache: dict[str, Any] | None = None, **spec: str) -> Engine:
    full = {"model": "m", "node": "a", "revision": "r", "source": {"path": "/x"}, **spec}
    status = {} if cache is None else {"cache": cache}
    return cast(Engine, make("Engine", name, spec=full, status=status))


def in_force(policy: MemoryGuard | CacheBudget) -> tuple[str, str, str]:
    held = find_condition(policy.status.conditions, "InForce")
    assert held is not None
    assert held.observed_generation == policy.metadata.generation
    return held.status.value, held.reason, held.message


def planned(following: Following, generation: int = 2) -> MemoryGuard:
    return plan_following(cast(MemoryGuard, make("MemoryGuard", "g", generation)), following, NOW)


def test_nodes_are_those_that_say_so_by_name() -> None:
    stopped = [{"type": "Ready", "status": "False", "reason": AGENT_STOPPED}]
    nodes = [
        node("c", guard="g"),
        node("a", guard="g", cache="b", generation=1),
        node("other", guard="h", cache="c"),
        node("default"),
        node("gone", guard="g", cache="b", conditions=stopped),
    ]
    assert observe_guard("g", nodes, []).followers == (Follower("a", 1), Follower("c", 2))
    assert observe_budget("b", nodes, []).followers == (Follower("a", 1),)


def test_engines_follow_what_their_model_names() -> None:
    engines = [engine("two", memoryGuard="g"), engine("one", memoryGuard="g", cacheBudget="b")]
    assert observe_guard("g", [], engines).engines == ("one", "two")
    assert observe_budget("b", [], engines).engines == ("one",)


def test_what_waits_for_an_engines_next_start_is_pending_and_a_fault_is_not() -> None:
    later = "blockTokens of the cache budget take effect when the engine starts anew"
    engines = [
        engine("waits", {"budget": "b", "message": later}),
        engine("well", {"budget": "b"}),
        engine("broken", {"budget": "b", "reason": "DiskFull", "message": "no room"}),
        engine("other", {"budget": "c", "message": later}),
    ]
    assert observe_budget("b", [], engines).pending == (f"waits: {later}",)


@pytest.mark.parametrize(
    ("following", "status", "reason", "words"),
    [
        (Following(), "False", "NotFollowed", "no node follows it: its nodeSelector fits none"),
        (Following((Follower("a", 2),)), "True", "InForce", "followed by 1 node"),
        (
            Following((Follower("a", 2), Follower("b", 2)), ("e",)),
            "True",
            "InForce",
            "followed by 2 nodes, named by the Model of 1 engine",
        ),
        (Following((), ("e", "f")), "True", "InForce", "named by the Model of 2 engines"),
        (
            Following((Follower("a", 2), Follower("b", 1))),
            "False",
            "NodesBehind",
            "1 of 2 nodes did not take in the newest version yet: b",
        ),
        # An agent that does not say which version it follows proves nothing.
        (
            Following(tuple(Follower(name, 0) for name in "abcde")),
            "False",
            "NodesBehind",
            "5 of 5 nodes did not take in the newest version yet: a, b, c and 2 more",
        ),
        (
            Following((Follower("a", 2),), (), ("e: ssd.directory later",)),
            "False",
            "EnginesBehind",
            "e: ssd.directory later",
        ),
    ],
)
def test_it_is_in_force_where_all_who_follow_it_took_in_its_newest_version(
    following: Following, status: str, reason: str, words: str
) -> None:
    found = in_force(planned(following))
    assert found[:2] == (status, reason)
    assert found[2].startswith(words)


def test_the_same_facts_change_nothing_and_a_change_is_stamped() -> None:
    budget = cast(CacheBudget, make("CacheBudget", "b", 2))
    following = Following((Follower("a", 2), Follower("b", 2)))
    first = plan_following(budget, following, NOW)
    assert (first.status.nodes, first.status.observed_generation) == (("a", "b"), 2)
    assert plan_following(first, following, LATER) == first
    edited = first.model_copy(
        update={"metadata": first.metadata.model_copy(update={"generation": 3})}
    )
    behind = plan_following(edited, following, LATER)
    assert in_force(behind)[:2] == ("False", "NodesBehind")
    assert behind.status.observed_generation == 3
    held = find_condition(behind.status.conditions, "InForce")
    assert held is not None
    assert held.last_transition_time == LATER
