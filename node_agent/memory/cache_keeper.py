"""Keeps every engine's prefix cache within the budgets in force and the memory that is free.

A thin shell around `cache_budgets.py`. It owns what each engine was told; engines own their blocks,
the book the budgets in force. The sync sets budgets, the guard calls `publish` after each sample,
the enforcer shrinks the hot tiers through it, the pool asks for terms. All on the event loop.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from node_agent.engine.messages import CacheLimits, Command
from node_agent.memory.cache_book import CacheBook
from node_agent.memory.cache_budgets import (
    FollowedBudget,
    HotUse,
    plan_cut,
    plan_hot_limits,
    plan_room_bytes,
    plan_shares,
    plan_terms,
)
from node_agent.pool.base import EngineView
from node_agent.pool.cache_side import CacheTerms

# What a shrunk tier gave up shows in the node's figures once the last samples before it are gone.
SETTLE_SECONDS = 3.0

Key = tuple[str, int]


class CachedPool(Protocol):
    """What the keeper needs of the pool."""

    def views(self) -> Sequence[EngineView]:
        """Return every engine."""
        ...

    def send(self, name: str, command: Command) -> bool:
        """Pass a command to a running engine."""
        ...


@dataclass(frozen=True, slots=True)
class FreeMemory:
    """What the keeper needs of the node's memory. Units: bytes."""

    headroom_bytes: int
    soft_bytes: int
    used_bytes: int


class CacheKeeper:
    """The prefix caches of this node, as far as the agent has a say."""

    def __init__(
        self,
        book: CacheBook,
        memory: Callable[[], FreeMemory | None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`memory` answers None where nobody guards it: hot tiers then take their whole size."""
        self.book = book
        self._memory, self._clock = memory, clock
        self._pool: CachedPool | None = None
        self._sent: dict[Key, CacheLimits] = {}
        self._cut: dict[Key, int] = {}
        self._coming: list[tuple[float, int]] = []

    def attach(self, pool: CachedPool) -> None:
        """Watch over this pool."""
        self._pool = pool

    def set_budgets(self, node: FollowedBudget, engines: Mapping[str, FollowedBudget]) -> None:
        """Follow new budgets at once; an engine without its own follows the node's."""
        if self.book.set(node, engines):
            self.publish()

    def terms(self, engine: str) -> CacheTerms:
        """Return what an engine may cache now."""
        followed = self._followed(engine)
        one, share_bytes = followed[engine], plan_shares(followed)[engine]
        disk = self.book.disk_limits(followed, self.book.directory_of(engine))
        hot = plan_hot_limits({engine: HotUse(0, share_bytes)}, self._room_bytes())
        return plan_terms(one, disk, hot[engine], self.book.places)

    def publish(self) -> None:
        """Send each running engine its limits if they changed. Mutates: what was sent."""
        views = self._running()
        followed = self._followed()
        shares, uses = plan_shares(followed), {}
        for view in views:
            name = view.want.name
            uses[name] = HotUse(self._held_bytes(view), shares[name])
        hot = plan_hot_limits(uses, self._room_bytes())
        for view in views:
            name, key = view.want.name, _key(view)
            if key in self._cut and self._cut[key] < view.cache.hot_used_bytes:
                # Its own figures do not show the cut yet; until then nothing is given back.
                hot[name] = self._cut[key]
            else:
                self._cut.pop(key, None)
            began = view.cache.began
            directory = "" if began is None else began.settings.directory
            disk = self.book.disk_limits(followed, directory)
            self._send(view, replace_hot(disk, hot[name]))
        alive = {_key(view) for view in views}
        self._sent = {key: limits for key, limits in self._sent.items() if key in alive}
        self._cut = {key: size for key, size in self._cut.items() if key in alive}

    def size_bytes(self) -> int:
        """Return what all hot tiers hold, once they have done what they were told."""
        return sum(self._held_bytes(view) for view in self._running())

    def coming_bytes(self) -> int:
        """Return what hot tiers were told to give up and the node's figures may not show yet."""
        now = self._clock()
        self._coming = [(until, size) for until, size in self._coming if now < until]
        return sum(size for _, size in self._coming)

    def shrink(self, target_bytes: int) -> None:
        """Have the hot tiers give up their least recently used blocks, down to a size."""
        views = self._running()
        held = {view.want.name: self._held_bytes(view) for view in views}
        kept = plan_cut(held, target_bytes)
        given_up = sum(held.values()) - sum(kept.values())
        if given_up <= 0:
            return
        self._coming.append((self._clock() + SETTLE_SECONDS, given_up))
        for view in views:
            name, key = view.want.name, _key(view)
            if kept[name] < held[name]:
                self._cut[key] = kept[name]
                self._send(view, replace_hot(self._sent.get(key, CacheLimits()), kept[name]))

    def _send(self, view: EngineView, limits: CacheLimits) -> None:
        key = _key(view)
        known = self._sent.get(key)
        if known is None and view.cache.began is not None:
            known = _limits_of(view.cache.began)
        told = known == limits
        if not told and self._pool is not None:
            told = self._pool.send(view.want.name, limits)
        if told:
            self._sent[key] = limits

    def _running(self) -> list[EngineView]:
        views = () if self._pool is None else self._pool.views()
        return [view for view in views if view.pid is not None and view.cache.began is not None]

    def _followed(self, also: str = "") -> dict[str, FollowedBudget]:
        """Return what each engine that runs, or is about to, follows."""
        names = {view.want.name for view in self._running()} | ({also} if also else set())
        return {name: self.book.of(name) for name in sorted(names)}

    def _held_bytes(self, view: EngineView) -> int:
        return min(view.cache.hot_used_bytes, self._cut.get(_key(view), view.cache.hot_used_bytes))

    def _room_bytes(self) -> int | None:
        memory = self._memory()
        if memory is None:
            return None
        return plan_room_bytes(memory.headroom_bytes, memory.soft_bytes, memory.used_bytes)


def replace_hot(limits: CacheLimits, hot_bytes: int) -> CacheLimits:
    """Return limits with another size of the hot tier. Pure."""
    return CacheLimits(
        size_bytes=limits.size_bytes,
        leave_free_bytes=limits.leave_free_bytes,
        hot_bytes=hot_bytes,
        retention_seconds=limits.retention_seconds,
    )


def _limits_of(terms: CacheTerms) -> CacheLimits:
    return CacheLimits(
        size_bytes=terms.settings.size_bytes,
        leave_free_bytes=terms.settings.leave_free_bytes,
        hot_bytes=terms.settings.hot_bytes,
        retention_seconds=terms.settings.retention_seconds,
    )


def _key(view: EngineView) -> Key:
    return (view.want.name, view.pid or 0)
