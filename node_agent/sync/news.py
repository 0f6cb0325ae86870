"""What happened on this node, put into events for people.

Compares looks at the pool, and takes in what the enforcer did and which conditions came true.
It keeps no event itself: the reporter posts them. Called by the sync, the lease keeper and the
enforcer's hooks.
"""

from collections.abc import Callable, Mapping

from manifests.kinds.meta import Condition
from manifests.kinds.node import PressureLevel
from manifests.units import format_bytes
from node_agent.memory.arbiter import Arbiter
from node_agent.memory.enforcer_plan import Action, ShrinkHotCache
from node_agent.pool.base import Pool
from node_agent.sync.occurrences import (
    Occurrence,
    Seen,
    Subject,
    look,
    plan_action_occurrence,
    plan_condition_occurrences,
    plan_level_occurrence,
    plan_occurrences,
)

Conditions = tuple[Condition, ...]


class News:
    """The agent's account of what it did and saw."""

    def __init__(
        self,
        node: str,
        node_uid: Callable[[], str],
        pool: Pool,
        arbiter: Arbiter,
        post: Callable[[tuple[Occurrence, ...]], None],
    ) -> None:
        """`post` takes events to write; `node_uid` is empty before the node is registered."""
        self._node, self._node_uid = node, node_uid
        self._pool, self._arbiter, self._post = pool, arbiter, post
        self._seen: Mapping[str, Seen] = {}

    def look_at_pool(self) -> None:
        """Tell what changed since the last look. Mutates: what was seen."""
        views = self._pool.views()
        self._post(plan_occurrences(self._seen, views))
        self._seen = look(views)

    def note_action(self, action: Action) -> None:
        """Tell of one measure of the enforcer."""
        about = self._subject()
        if not isinstance(action, ShrinkHotCache):
            uids = {view.want.name: view.want.uid for view in self._pool.views()}
            about = Subject("Engine", action.engine, uids.get(action.engine, ""))
        told = plan_action_occurrence(action, about)
        self._post(() if told is None else (told,))

    def note_level(self, before: PressureLevel, after: PressureLevel) -> None:
        """Tell that admission was paused, or taken up again."""
        memory = self._arbiter.state()
        words = (
            f"engines hold {format_bytes(memory.used_bytes)} of "
            f"{format_bytes(memory.ceilings.hard_bytes)} ({memory.ceilings.binding.value} ceiling)"
        )
        told = plan_level_occurrence(before, after, words, self._subject())
        if told is not None:
            self._post((told,))

    def note_conditions(self, before: Conditions, after: Conditions) -> None:
        """Tell of conditions of the node that came true."""
        self._post(plan_condition_occurrences(before, after, self._subject()))

    def _subject(self) -> Subject:
        return Subject("Node", self._node, self._node_uid())
