"""Writing what the agent sees to the API: engine statuses, finalizers, events.

Owns when and in which order to write, and what was written last. A controller that is down
costs one failed write and a pause, never the serving. Called by the sync's report loop.
"""

import asyncio
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

import structlog

from manifests.wire.status import ApiError
from node_agent.sync.client import ApiClient
from node_agent.sync.occurrences import (
    Occurrence,
    build_event,
    merge_occurrence,
    plan_repeat,
)
from node_agent.sync.plan import FinalizerRemoval, Sent, StatusReport, SyncPlan, is_report_due

_LOG = structlog.get_logger(__name__)
_MOST_WAITING_EVENTS = 100
# The object changed under us or is gone; the next look at the world decides anew.
_OUTDATED = frozenset({404, 409})


@dataclass(frozen=True, slots=True)
class ReportRules:
    """Units: seconds between writes of figures that changed without a transition."""

    figures_seconds: float = 10.0
    progress_seconds: float = 2.0


class Reporter:
    """The agent's pen."""

    def __init__(self, client: ApiClient, node: str, rules: ReportRules | None = None) -> None:
        self._client, self._node = client, node
        self._rules = rules or ReportRules()
        self._sent: dict[str, Sent] = {}
        self._events: deque[Occurrence] = deque(maxlen=_MOST_WAITING_EVENTS)
        self._writing = asyncio.Lock()
        self._closed = False

    def note(self, occurrences: Iterable[Occurrence]) -> None:
        """Keep events to post, repeats counted into one; the oldest are dropped at a limit."""
        for occurrence in occurrences:
            merged = merge_occurrence(self._events, occurrence)
            self._events = deque(merged, maxlen=_MOST_WAITING_EVENTS)

    async def write(self, plan: SyncPlan, now: float) -> None:
        """Write what is due. Raises OSError, ApiError when the controller does not take it."""
        async with self._writing:
            if not self._closed:
                await self._write(plan, now)

    async def write_last(self, plan: SyncPlan, now: float) -> None:
        """Write and never again, so that nothing overwrites the last words."""
        async with self._writing:
            self._closed = True
            await self._write(plan, now)

    async def _write(self, plan: SyncPlan, now: float) -> None:
        names = {report.name for report in plan.reports}
        self._sent = {name: sent for name, sent in self._sent.items() if name in names}
        for report in plan.reports:
            loading = report.status.progress is not None
            every = self._rules.progress_seconds if loading else self._rules.figures_seconds
            if is_report_due(self._sent.get(report.name), report, now, every):
                await self._write_status(report, now)
        for removal in plan.removals:
            await self._remove_finalizer(removal)
        while self._events:
            occurrence = self._events.popleft()
            try:
                await self._post(occurrence, now)
            except (ApiError, OSError):
                self._events.appendleft(occurrence)
                raise

    async def _write_status(self, report: StatusReport, now: float) -> None:
        status = report.status.model_dump(mode="json", by_alias=True)
        body = {"metadata": {"uid": report.uid}, "status": status}
        try:
            await self._client.patch_status("engines", report.name, body)
        except ApiError as fault:
            if fault.code not in _OUTDATED:
                raise
            _LOG.debug("status not written", engine=report.name, fault=fault.message)
        self._sent[report.name] = Sent(report.uid, report.status, now)

    async def _remove_finalizer(self, removal: FinalizerRemoval) -> None:
        body = {"metadata": {"uid": removal.uid, "finalizers": list(removal.finalizers)}}
        try:
            await self._client.patch("engines", removal.name, body)
        except ApiError as fault:
            if fault.code not in _OUTDATED:
                raise
            return
        _LOG.info("engine gone", engine=removal.name)

    async def _post(self, occurrence: Occurrence, now: float) -> None:
        """Create an event or count a repeat; an event the API refuses is dropped."""
        event = build_event(occurrence, self._node, now)
        name = event["metadata"]["name"]
        try:
            try:
                await self._client.create("events", event)
            except ApiError as fault:
                if fault.code != 409:
                    raise
                existing = await self._client.get("events", name)
                await self._client.patch("events", name, plan_repeat(existing, event))
        except ApiError as fault:
            if fault.code >= 500:
                raise
            _LOG.warning("event refused", reason=occurrence.reason, fault=fault.message)
