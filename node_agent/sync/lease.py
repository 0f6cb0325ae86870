"""Registering the node and renewing its lease.

Owns the node's object as far as an agent may: labels, identity, status. It goes on through
outages of the controller, waiting a jittered while between attempts, and gives up only when
another agent holds the name.
"""

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import structlog

from manifests.errors import Code, FleetError, Refusal
from manifests.kinds.meta import Condition
from manifests.kinds.node import Node, NodeStatus
from manifests.kinds.scheme import dump_object, parse_object
from manifests.wire.status import ApiError
from node_agent.sync.client import ApiClient
from node_agent.sync.conditions import NodeNow
from node_agent.sync.register import (
    Adopt,
    Create,
    NodeFacts,
    Taken,
    judge_other_agent,
    plan_node_status,
    plan_registration,
)

_LOG = structlog.get_logger(__name__)
_ATTEMPTS = 5

Conditions = tuple[Condition, ...]


class NodeTakenError(FleetError):
    """Another agent speaks for this node's name; the message says what to do."""

    def __init__(self, message: str) -> None:
        super().__init__(Refusal(Code.INVALID_VALUE, message, param="name"))


@dataclass(frozen=True, slots=True)
class LeaseClock:
    """Time as the lease keeper sees it. Units: seconds."""

    epoch: Callable[[], float] = time.time
    random: Callable[[], float] = random.random
    retry_least_seconds: float = 0.5
    retry_most_seconds: float = 3.0


@dataclass(frozen=True, slots=True)
class NodeSources:
    """Where the changing part comes from; `newest` is the watched object, None when unknown.

    `wrote` is told the conditions before and after each status that the controller took.
    """

    state: Callable[[], NodeNow]
    newest: Callable[[], Node | None] = field(default=lambda: None)
    wrote: Callable[[Conditions, Conditions], None] = field(default=lambda _, __: None)


class LeaseKeeper:
    """The agent's word about its node."""

    def __init__(
        self,
        client: ApiClient,
        facts: NodeFacts,
        sources: NodeSources,
        clock: LeaseClock | None = None,
    ) -> None:
        self._client, self._facts, self._sources = client, facts, sources
        self._clock = clock or LeaseClock()
        self._registered = asyncio.Event()
        self._node: Node | None = None
        self._wake = asyncio.Event()

    @property
    def registered(self) -> bool:
        """Whether the controller knows this agent."""
        return self._registered.is_set()

    @property
    def node_uid(self) -> str:
        """The uid of the node's object as last read or written; empty before that."""
        known = self._sources.newest() or self._node
        return "" if known is None else known.metadata.uid or ""

    async def wait_registered(self) -> None:
        """Return once the node's object is ours."""
        await self._registered.wait()

    def hurry(self) -> None:
        """Report at once instead of at the next renewal."""
        self._wake.set()

    async def run(self) -> None:
        """Register, then renew until cancelled. Raises NodeTakenError."""
        faults = 0
        while True:
            try:
                await self.renew()
                wait, faults = self._facts.lease_seconds, 0
            except (ApiError, OSError) as fault:
                faults += 1
                wait = self._backoff_seconds(faults)
                _LOG.warning("lease not renewed", fault=str(fault), retry_in_seconds=round(wait, 1))
            await self._sleep(wait)

    async def renew(self) -> None:
        """Write the status once, registering first if need be.

        Raises: NodeTakenError; ApiError and OSError when the controller does not take it.
        """
        newest = self._sources.newest()
        if newest is not None:
            taken = judge_other_agent(newest, self._facts, self._clock.epoch())
            if taken is not None and taken.certain:
                raise NodeTakenError(taken.message)
        if not self.registered:
            await self.register()
        try:
            await self._write()
        except ApiError as fault:
            if fault.code != 404:
                raise
            _LOG.warning("the node object is gone; registering anew")
            self._registered.clear()
            await self.register()
            await self._write()

    async def register(self) -> None:
        """Create or adopt the node's object. Raises NodeTakenError, ApiError, OSError."""
        seen_lease = ""
        for _ in range(_ATTEMPTS):
            existing = await self._read()
            plan = plan_registration(existing, self._facts, self._clock.epoch())
            if isinstance(plan, Taken):
                if plan.certain or (seen_lease and seen_lease != plan.lease_time):
                    raise NodeTakenError(plan.message)
                if not seen_lease:
                    seen_lease = plan.lease_time
                    await asyncio.sleep(1.5 * plan.lease_seconds)
                    continue
                # Nobody renewed it while we watched: the name is free.
                plan = plan_registration(_abandoned(existing), self._facts, self._clock.epoch())
            try:
                self._node = await self._carry_out(plan, existing)
            except ApiError as fault:
                if fault.code not in {404, 409}:
                    raise
                continue
            self._registered.set()
            _LOG.info("registered", node=self._facts.name, address=self._facts.address)
            return
        raise ApiError(409, f"node {self._facts.name} keeps changing while this agent registers")

    async def _read(self) -> Node | None:
        try:
            raw = await self._client.get("nodes", self._facts.name)
        except ApiError as fault:
            if fault.code == 404:
                return None
            raise
        return _typed(raw)

    async def _carry_out(self, plan: Create | Adopt | Taken, existing: Node | None) -> Node | None:
        if isinstance(plan, Create):
            return _typed(await self._client.create("nodes", dump_object(plan.node)))
        if isinstance(plan, Adopt) and plan.patch is not None:
            return _typed(await self._client.patch("nodes", self._facts.name, plan.patch))
        return existing

    async def _write(self) -> None:
        known = self._sources.newest() or self._node
        current = NodeStatus() if known is None else known.status
        generation = 0 if known is None else known.metadata.generation or 0
        status = plan_node_status(
            current, self._facts, self._sources.state(), generation, self._clock.epoch()
        )
        body: dict[str, Any] = {"status": status.model_dump(mode="json", by_alias=True)}
        self._node = _typed(await self._client.patch_status("nodes", self._facts.name, body))
        self._sources.wrote(current.conditions, status.conditions)

    def _backoff_seconds(self, faults: int) -> float:
        clock = self._clock
        ceiling = min(clock.retry_most_seconds, clock.retry_least_seconds * 2.0 ** min(faults, 10))
        return ceiling * (0.5 + 0.5 * clock.random())

    async def _sleep(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()


def _typed(raw: dict[str, Any]) -> Node | None:
    """Return the typed node, or None when this version cannot read it."""
    try:
        parsed = parse_object(raw)
    except (KeyError, ValueError, TypeError):
        return None
    return parsed if isinstance(parsed, Node) else None


def _abandoned(node: Node | None) -> Node | None:
    """Return the node as if nobody had ever renewed its lease."""
    if node is None:
        return None
    return node.model_copy(update={"status": node.status.model_copy(update={"lease_time": ""})})
