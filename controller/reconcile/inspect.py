"""Asking nodes what they know of a model's weights.

Owns the requests to `POST /fleet/v1/inspect` and how long an answer is believed. It must never
fail a reconcile: what a node cannot tell becomes a SourceFault that placement reports.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

import aiohttp

from controller.placement.filters import Reason
from controller.placement.fleet import NodeView, SourceFault, SourceKey
from manifests.kinds.model import Source
from manifests.wire.error_body import parse_openai_error
from manifests.wire.report import INSPECT_PATH, Inspection

Answer = Inspection | SourceFault


class SourceInspector(Protocol):
    """Where placement learns the size and shape of a model."""

    async def inspect(self, nodes: Iterable[NodeView], source: Source) -> None:
        """Ask every node whose answer is missing or old; all at once, bounded in time."""
        ...

    @property
    def answers(self) -> Mapping[SourceKey, Answer]:
        """What each node last answered for each source."""
        ...

    @property
    def shapes(self) -> Mapping[str, Inspection]:
        """The last inspection of each source by any node; never forgotten."""
        ...


class HttpInspector:
    """Asks agents over HTTP. The session belongs to the caller."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        *,
        timeout_seconds: float = 5.0,
        fresh_seconds: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Believe an answer for `fresh_seconds`, a refusal for a third of that."""
        self._session = session
        self._timeout = aiohttp.ClientTimeout(total=timeout_seconds)
        self._fresh_seconds, self._clock = fresh_seconds, clock
        self._answers: dict[SourceKey, Answer] = {}
        self._asked: dict[SourceKey, tuple[str, float]] = {}
        self._shapes: dict[str, Inspection] = {}

    @property
    def answers(self) -> Mapping[SourceKey, Answer]:
        """What each node last answered for each source."""
        return dict(self._answers)

    @property
    def shapes(self) -> Mapping[str, Inspection]:
        """The last inspection of each source by any node."""
        return dict(self._shapes)

    async def inspect(self, nodes: Iterable[NodeView], source: Source) -> None:
        """Ask every node whose answer is missing or old; all at once, bounded in time."""
        due = [node for node in nodes if node.address and self._is_due(node, source)]
        answers = await asyncio.gather(*(self._ask(node, source) for node in due))
        for node, answer in zip(due, answers, strict=True):
            key = (node.name, source.text)
            self._answers[key] = answer
            self._asked[key] = (node.instance, self._clock())
            if isinstance(answer, Inspection):
                self._shapes[source.text] = answer

    def _is_due(self, node: NodeView, source: Source) -> bool:
        key = (node.name, source.text)
        asked = self._asked.get(key)
        if asked is None or asked[0] != node.instance:
            return True
        known = isinstance(self._answers.get(key), Inspection)
        believed_seconds = self._fresh_seconds if known else self._fresh_seconds / 3
        return self._clock() - asked[1] >= believed_seconds

    async def _ask(self, node: NodeView, source: Source) -> Answer:
        body = source.model_dump(mode="json", by_alias=True, exclude_none=True)
        try:
            async with self._session.post(
                node.address.rstrip("/") + INSPECT_PATH, json=body, timeout=self._timeout
            ) as response:
                if response.status == 200:
                    return Inspection.model_validate_json(await response.read())
                refusal = parse_openai_error(response.status, await response.json())
                reason = Reason.SOURCE_MISSING if response.status == 404 else Reason.SOURCE_UNKNOWN
                return SourceFault(reason, refusal.message)
        except TimeoutError:
            return SourceFault(Reason.SOURCE_UNKNOWN, f"{node.name} did not say in time")
        except (aiohttp.ClientError, OSError, ValueError) as fault:
            return SourceFault(Reason.SOURCE_UNKNOWN, f"{node.name} could not be asked: {fault}")
