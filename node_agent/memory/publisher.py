"""Tells every engine what it may hold: at each sample, each promise, each change of a guard.

A thin shell around `budget.py`. It also answers what engines ask and passes on what they measure.
Everything happens on the event loop; a budget is sent before the request it was promised for.
"""

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec import structs

from manifests.errors import Refusal
from node_agent.engine.messages import Answer, Ask, ChunkMeasured, Command, Limits
from node_agent.memory.arbiter import Arbiter
from node_agent.memory.base import Reservation
from node_agent.memory.budget import STEP_BYTES, Turns, plan_limits, plan_turns
from node_agent.pool.base import EngineView


class LimitedPool(Protocol):
    """What the publisher needs of the pool."""

    def views(self) -> Sequence[EngineView]:
        """Return every engine."""
        ...

    def send(self, name: str, command: Command) -> bool:
        """Pass a command to a running engine."""
        ...


class Publisher:
    """Keeps every engine's limits as the arbiter's figures say."""

    def __init__(
        self,
        pool: LimitedPool,
        arbiter: Arbiter,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pool, self._arbiter, self._clock = pool, arbiter, clock
        self._turns = Turns()
        self._sent: dict[tuple[str, int], Limits] = {}
        self._grown: dict[tuple[str, str], list[Reservation]] = {}

    def publish(self) -> None:
        """Send each running engine its limits if they changed. Mutates: whose turn it is."""
        views = [view for view in self._pool.views() if view.pid is not None]
        self._give_back_growth(views)
        for view, limits in zip(views, self._plan(views), strict=True):
            key = (view.want.name, view.pid or 0)
            if self._sent.get(key) != limits and self._pool.send(view.want.name, limits):
                self._sent[key] = limits
        alive = {(view.want.name, view.pid or 0) for view in views}
        self._sent = {key: limits for key, limits in self._sent.items() if key in alive}

    def on_memory_event(self, engine: str, event: ChunkMeasured | Ask) -> None:
        """Learn from a measured chunk, or answer an engine that needs more for a row."""
        if isinstance(event, ChunkMeasured):
            self._arbiter.lessons.note(engine, event.predicted_bytes, event.actual_bytes)
            return
        # A step more: the engine asked for what a budget lacks that was rounded up, and one that
        # is rounded up anew may not have grown by that much.
        answer = self._arbiter.admit_growth(engine, event.more_bytes + STEP_BYTES)
        if isinstance(answer, Refusal):
            self._pool.send(
                engine,
                Answer(
                    request_id=event.request_id,
                    granted=False,
                    retryable=answer.retryable.value,
                    message=answer.message,
                ),
            )
            return
        self._grown.setdefault((engine, event.request_id), []).append(answer)
        # The new budget is on its way already: the arbiter told of the promise.
        self._pool.send(engine, Answer(request_id=event.request_id, granted=True))

    def _give_back_growth(self, views: Sequence[EngineView]) -> None:
        """Release what rows were promised in addition once no engine holds them any more."""
        alive = {(view.want.name, row.request_id) for view in views for row in view.rows}
        for key in [key for key in self._grown if key not in alive]:
            for held in self._grown.pop(key):
                held.release()

    def _plan(self, views: Sequence[EngineView]) -> list[Limits]:
        """Return every engine's limits, with the wired limit of its guard."""
        wired = self._arbiter.wired_limit_bytes
        return [
            structs.replace(one, wired_limit_bytes=wired(view.want.name))
            for view, one in zip(views, self._plan_budgets(views), strict=True)
        ]

    def _plan_budgets(self, views: Sequence[EngineView]) -> list[Limits]:
        if not self._arbiter.enforced:
            return [Limits() for _ in views]
        concurrency = self._arbiter.node_guard.prefill_concurrency
        feeding = [view.want.name for view in views if any(row.prefilling for row in view.rows)]
        self._turns = plan_turns(self._turns, feeding, concurrency, self._clock())
        abort_bytes = self._arbiter.state().ceilings.abort_bytes
        standings = self._arbiter.engine_standings()
        limits = plan_limits(standings, abort_bytes, self._turns, concurrency)
        # An engine that was never measured has nothing to serve yet; it loads within its claim.
        return [limits.get(view.want.name, Limits()) for view in views]
