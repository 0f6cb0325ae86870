"""Which memory guards this node and its engines follow, handed to the arbiter.

Owns the node's guard in force. The sync calls it whenever guards, engines or the node changed.
"""

from collections.abc import Callable, Mapping

import structlog

from manifests.kinds.engine import Engine
from manifests.kinds.guard import MemoryGuard, MemoryGuardSpec
from manifests.kinds.node import GuardInForce
from node_agent.memory.arbiter import Arbiter
from node_agent.memory.guards import FollowedGuard, choose_guard
from node_agent.sync.conditions import HealthNow, describe_guard

_LOG = structlog.get_logger(__name__)


class GuardFollower:
    """Keeps the arbiter under the declared guards."""

    def __init__(
        self, arbiter: Arbiter, default: MemoryGuardSpec, health: Callable[[], HealthNow]
    ) -> None:
        self._arbiter, self._default, self._health = arbiter, default, health
        self._followed = FollowedGuard("", default)

    def in_force(self) -> GuardInForce:
        """Return the node's guard with what it makes of the newest reading."""
        ceilings = self._arbiter.state().ceilings
        return describe_guard(self._followed, ceilings, self._health())

    def follow(
        self,
        guards: Mapping[str, MemoryGuard],
        labels: Mapping[str, str],
        engines: Mapping[str, Engine],
    ) -> bool:
        """Take in what is declared; return whether the node's guard changed."""
        before = self._followed
        self._followed = choose_guard(guards.values(), labels, self._default)
        named = {name: engine.spec.memory_guard for name, engine in engines.items()}
        self._arbiter.set_guards(
            self._followed.spec,
            {
                engine: guards[guard].spec
                for engine, guard in named.items()
                if guard is not None and guard in guards
            },
        )
        if self._followed == before:
            return False
        _LOG.info("memory guard", name=self._followed.name, tier=self._followed.spec.tier.value)
        return True
