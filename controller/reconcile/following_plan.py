"""What the status of a MemoryGuard or CacheBudget says: who follows it, and whether it took effect.

Pure. Which one a node follows is the node's own decision, by labels; it stands in the node's
status together with the generation it follows. Called by `reconcile.following`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

from manifests.kinds.cache_budget import CacheBudget
from manifests.kinds.engine import Engine
from manifests.kinds.guard import MemoryGuard
from manifests.kinds.meta import Condition, ConditionStatus, set_condition
from manifests.kinds.node import CacheInForce, GuardInForce, Node

IN_FORCE = "InForce"
_MOST_NAMES = 3

Policy = TypeVar("Policy", MemoryGuard, CacheBudget)


@dataclass(frozen=True, slots=True)
class Follower:
    """A node, and the generation of the spec that it follows."""

    node: str
    generation: int


@dataclass(frozen=True, slots=True)
class Following:
    """Who goes by one guard or budget.

    `engines` follow it because their Model names it; `pending` says, by engine, what of it takes
    effect when the engine starts anew.
    """

    followers: tuple[Follower, ...] = ()
    engines: tuple[str, ...] = ()
    pending: tuple[str, ...] = ()


def observe_guard(name: str, nodes: Iterable[Node], engines: Iterable[Engine]) -> Following:
    """Return who follows a memory guard."""
    named = sorted(str(one.metadata.name) for one in engines if one.spec.memory_guard == name)
    return Following(_followers(name, nodes, cache=False), tuple(named))


def observe_budget(name: str, nodes: Iterable[Node], engines: Iterable[Engine]) -> Following:
    """Return who follows a cache budget."""
    named, pending = [], []
    for engine in engines:
        if engine.spec.cache_budget == name:
            named.append(str(engine.metadata.name))
        cache = engine.status.cache
        # With a reason the message tells of a fault, which the node's conditions show.
        if cache is not None and cache.budget == name and cache.message and not cache.reason:
            pending.append(f"{engine.metadata.name}: {cache.message}")
    return Following(
        _followers(name, nodes, cache=True), tuple(sorted(named)), tuple(sorted(pending))
    )


def plan_following(policy: Policy, following: Following, now: str) -> Policy:
    """Return the guard or budget with the status that these facts amount to.

    `now` is an RFC 3339 time.
    """
    generation = policy.metadata.generation or 0
    condition = _in_force(generation, following).model_copy(
        update={"observed_generation": generation}
    )
    status = policy.status.model_copy(
        update={
            "observed_generation": generation,
            "nodes": tuple(one.node for one in following.followers),
            "conditions": set_condition(policy.status.conditions, condition, now),
        }
    )
    return policy.model_copy(update={"status": status})


def _followers(name: str, nodes: Iterable[Node], *, cache: bool) -> tuple[Follower, ...]:
    found = []
    for node in nodes:
        told: CacheInForce | GuardInForce = node.status.cache if cache else node.status.guard
        if told.name == name and not node.agent_stopped:
            found.append(Follower(str(node.metadata.name), told.generation))
    return tuple(sorted(found, key=lambda one: one.node))


def _in_force(generation: int, following: Following) -> Condition:
    followers, engines = following.followers, following.engines
    if not followers and not engines:
        message = "no node follows it: its nodeSelector fits none, or another stands before it"
        return _condition(ConditionStatus.FALSE, "NotFollowed", message)
    behind = [one.node for one in followers if one.generation != generation]
    if behind:
        message = f"{len(behind)} of {_count(len(followers), 'node')} did not take in the newest "
        message += f"version yet: {_names(behind)}"
        return _condition(ConditionStatus.FALSE, "NodesBehind", message)
    if following.pending:
        return _condition(ConditionStatus.FALSE, "EnginesBehind", _names(following.pending, "; "))
    parts = [f"followed by {_count(len(followers), 'node')}"] if followers else []
    parts += [f"named by the Model of {_count(len(engines), 'engine')}"] if engines else []
    return _condition(ConditionStatus.TRUE, IN_FORCE, ", ".join(parts))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _names(names: Iterable[str], separator: str = ", ") -> str:
    """Return the first few, and how many more there are."""
    every = list(names)
    more = len(every) - _MOST_NAMES
    shown = separator.join(every[:_MOST_NAMES])
    return f"{shown} and {more} more" if more > 0 else shown


def _condition(status: ConditionStatus, reason: str, message: str) -> Condition:
    return Condition(type=IN_FORCE, status=status, reason=reason, message=message)
