"""GET on collections and objects: lists, tables, single objects, watches.

Translates requests into registry queries and objects into answers. Called by `resources.py`.
"""

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from controller.api.requests import JSON, parse_accept, parse_count, parse_flag
from controller.api.responses import answer
from controller.api.streams import PieceStream, watch_lines
from controller.api.tables import IncludeObject, render_table
from controller.registry.query import ListQuery, WatchQuery, parse_selector, parse_version
from controller.registry.registry import Registry
from manifests.kinds.meta import API_VERSION
from manifests.kinds.scheme import Kind
from manifests.reading.field_errors import ErrorCode
from manifests.wire.listwatch import ObjectList, RawObject, WatchEvent, WatchType
from manifests.wire.status import ApiError, Cause, StatusDetails

# Random, so that clients do not all come back at once.
_WATCH_SECONDS = (1800.0, 3600.0)


class Reader:
    """Answers GET requests."""

    def __init__(
        self,
        registry: Registry,
        stopping: asyncio.Event,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`clock` tells seconds since the epoch, for ages."""
        self._registry, self._stopping, self._clock = registry, stopping, clock

    async def get(self, request: Request, kind: Kind, name: str) -> Response:
        """Answer one object, or its one-row Table."""
        obj = await self._registry.get(kind.plural, name)
        if not parse_accept(request.headers.get("accept", "")).table:
            return answer(obj)
        table = self._table(kind, [obj], parse_include(request))
        table["metadata"] = {"resourceVersion": obj["metadata"]["resourceVersion"]}
        return answer(table)

    async def list(self, request: Request, kind: Kind) -> Response | PieceStream:
        """Answer a list, a Table, or a watch."""
        if parse_flag(request, "watch"):
            return self._watch(request, kind)
        refuse_initial_events(request)
        params = request.query_params
        query = ListQuery(
            parse_selector(kind, params.get("labelSelector", ""), params.get("fieldSelector", "")),
            parse_count(request, "limit") or 0,
            params.get("continue", ""),
            params.get("resourceVersion", ""),
            params.get("resourceVersionMatch", ""),
        )
        listed = await self._registry.list_page(kind.plural, query)
        if parse_accept(request.headers.get("accept", "")).table:
            table = self._table(kind, listed.items, parse_include(request))
            return answer({**table, "metadata": _list_metadata(listed)})
        body = {
            "kind": f"{kind.name}List",
            "apiVersion": API_VERSION,
            "metadata": _list_metadata(listed),
            "items": list(listed.items),
        }
        return answer(body)

    def _watch(self, request: Request, kind: Kind) -> PieceStream:
        query = parse_watch(request, kind)
        seconds = parse_count(request, "timeoutSeconds")
        events = self._registry.watch(kind.plural, query)
        if parse_accept(request.headers.get("accept", "")).table:
            events = self._tabled(kind, events, parse_include(request))
        limit = random.uniform(*_WATCH_SECONDS) if not seconds else float(seconds)
        return PieceStream(watch_lines(events), JSON, self._stopping, limit)

    async def _tabled(
        self, kind: Kind, events: AsyncGenerator[WatchEvent, None], include: IncludeObject
    ) -> AsyncGenerator[WatchEvent, None]:
        """Turn each event's object into a one-row Table; the first carries the columns."""
        first = True
        async with aclosing(events):
            async for event in events:
                metadata = event.object.get("metadata", {})
                rows = [] if event.type is WatchType.BOOKMARK else [event.object]
                table = self._table(kind, rows, include, headers=first)
                table["metadata"] = {"resourceVersion": metadata.get("resourceVersion", "")}
                first = False
                yield WatchEvent(event.type, table)

    def _table(
        self,
        kind: Kind,
        objects: Any,
        include: IncludeObject,
        *,
        headers: bool = True,
    ) -> dict[str, Any]:
        return render_table(kind, objects, self._clock(), include, headers=headers)


def parse_watch(request: Request, kind: Kind) -> WatchQuery:
    """Return what a watch asks for. Raises: ApiError 400, 422."""
    params = request.query_params
    selector = parse_selector(
        kind, params.get("labelSelector", ""), params.get("fieldSelector", "")
    )
    parse_version(params.get("resourceVersion", ""))
    initial = parse_flag(request, "sendInitialEvents")
    if initial is not None and params.get("resourceVersionMatch") != "NotOlderThan":
        raise _invalid_option(
            "resourceVersionMatch", "must be NotOlderThan when sendInitialEvents is set"
        )
    if initial is None and params.get("resourceVersionMatch"):
        raise _invalid_option("resourceVersionMatch", "is for a watch with sendInitialEvents only")
    return WatchQuery(
        selector,
        params.get("resourceVersion", ""),
        initial,
        bool(parse_flag(request, "allowWatchBookmarks")),
    )


def refuse_initial_events(request: Request) -> None:
    """Refuse what only a watch may ask for. Raises: ApiError 422."""
    if "sendInitialEvents" in request.query_params:
        raise _invalid_option("sendInitialEvents", "is for a watch only")


def parse_include(request: Request) -> IncludeObject:
    """Return how much of each object a Table carries. Raises: ApiError 400."""
    text = request.query_params.get("includeObject") or IncludeObject.METADATA.value
    if text not in set(IncludeObject):
        choice = ", ".join(IncludeObject)
        raise ApiError(400, f"includeObject={text!r} is not supported; choose {choice}")
    return IncludeObject(text)


def _invalid_option(field: str, problem: str) -> ApiError:
    cause = Cause(ErrorCode.INVALID.value, problem, field)
    details = StatusDetails(kind="ListOptions", group="meta.k8s.io", causes=(cause,))
    return ApiError(422, f"ListOptions is invalid: {field} {problem}", details=details)


def _list_metadata(listed: ObjectList) -> RawObject:
    metadata: RawObject = {"resourceVersion": listed.resource_version}
    if listed.continue_token:
        metadata["continue"] = listed.continue_token
        metadata["remainingItemCount"] = listed.remaining
    return metadata
