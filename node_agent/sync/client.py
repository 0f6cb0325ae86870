"""The controller's API over HTTP, as the agent uses it.

Owns the wire: paths, timeouts, error mapping. Answers other than success become `ApiError`;
a lost link becomes `OSError`; nothing else comes out. It retries nothing: informer, lease and
sync have their own patience.
"""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

from manifests.kinds.meta import API_VERSION
from manifests.wire.listwatch import ObjectList, RawObject, WatchEvent, WatchType
from manifests.wire.status import ApiError

_PAGE_OBJECTS = 500
_MAX_LINE_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class ClientTimeouts:
    """Units: seconds.

    A watch is ended by the server after `watch_seconds` and given up a little later, so a link
    that died in silence (a Mac that slept, a lost route) is noticed within that time.
    """

    connect_seconds: float = 5.0
    request_seconds: float = 20.0
    watch_seconds: int = 60
    watch_slack_seconds: float = 15.0


class ApiClient:
    """One connection pool to one controller."""

    def __init__(
        self, base_url: str, session: aiohttp.ClientSession, timeouts: ClientTimeouts | None = None
    ) -> None:
        """Use a session that the caller opens and closes."""
        self._root = f"{base_url.rstrip('/')}/apis/{API_VERSION}"
        self._session = session
        self._timeouts = timeouts or ClientTimeouts()

    async def list_objects(
        self, plural: str, *, label_selector: str = "", field_selector: str = ""
    ) -> ObjectList:
        """Return all matching objects, page by page. Raises ApiError, OSError."""
        items: list[RawObject] = []
        query = _selectors(label_selector, field_selector) | {"limit": str(_PAGE_OBJECTS)}
        while True:
            body = await self._call("GET", f"/{plural}", query=query)
            metadata = body.get("metadata") or {}
            # Items of a list leave out what the list says once, as Kubernetes allows.
            shared = {"apiVersion": body.get("apiVersion", API_VERSION)}
            kind = str(body.get("kind", "")).removesuffix("List")
            items.extend({**shared, "kind": kind, **item} for item in body.get("items") or ())
            if not metadata.get("continue"):
                return ObjectList(tuple(items), str(metadata.get("resourceVersion", "")))
            query["continue"] = metadata["continue"]

    async def watch_objects(
        self,
        plural: str,
        *,
        resource_version: str,
        label_selector: str = "",
        field_selector: str = "",
    ) -> AsyncIterator[WatchEvent]:
        """Yield changes after a version until the server ends the watch.

        Raises: ApiError, with code 410 when the version is too old; OSError on a lost link.
        """
        timeouts = self._timeouts
        query = _selectors(label_selector, field_selector) | {
            "watch": "1",
            "resourceVersion": resource_version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(timeouts.watch_seconds),
        }
        limits = aiohttp.ClientTimeout(
            total=None,
            sock_connect=timeouts.connect_seconds,
            sock_read=timeouts.watch_seconds + timeouts.watch_slack_seconds,
        )
        async with self._open("GET", f"/{plural}", query=query, timeout=limits) as response:
            async for line in _lines(response.content):
                yield _parse_event(line)

    async def get(self, plural: str, name: str) -> RawObject:
        """Return one object; 404 when missing."""
        return await self._call("GET", f"/{plural}/{name}")

    async def create(self, plural: str, obj: RawObject) -> RawObject:
        """Store a new object; 409 when the name is taken."""
        return await self._call("POST", f"/{plural}", body=obj)

    async def patch(self, plural: str, name: str, patch: RawObject) -> RawObject:
        """Apply an RFC 7386 merge patch to everything but the status."""
        return await self._call("PATCH", f"/{plural}/{name}", body=patch)

    async def patch_status(self, plural: str, name: str, patch: RawObject) -> RawObject:
        """Apply an RFC 7386 merge patch to the status alone."""
        return await self._call("PATCH", f"/{plural}/{name}/status", body=patch)

    async def _call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: RawObject | None = None,
    ) -> dict[str, Any]:
        limits = aiohttp.ClientTimeout(
            total=self._timeouts.request_seconds, sock_connect=self._timeouts.connect_seconds
        )
        async with self._open(method, path, query=query, body=body, timeout=limits) as response:
            parsed = _parse_json(await response.read())
        if not isinstance(parsed, dict):
            raise ApiError(502, f"{method} {path} did not answer a JSON object")
        return parsed

    @asynccontextmanager
    async def _open(
        self,
        method: str,
        path: str,
        *,
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - aiohttp's own value
        query: Mapping[str, str] | None = None,
        body: RawObject | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send one request; yield its successful answer. Raises ApiError, OSError."""
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        try:
            async with self._session.request(
                method,
                self._root + path,
                params=query,
                data=None if body is None else json.dumps(body).encode(),
                headers={"Content-Type": kind} if body is not None else None,
                timeout=timeout,
            ) as response:
                if response.status >= 400:
                    raise ApiError.from_status(response.status, _parse_json(await response.read()))
                yield response
        except aiohttp.ClientError as fault:
            raise ConnectionError(f"{method} {path}: {type(fault).__name__}: {fault}") from fault
        except TimeoutError as fault:
            raise TimeoutError(f"{method} {path}: no answer in time") from fault


def _selectors(label_selector: str, field_selector: str) -> dict[str, str]:
    query = {"labelSelector": label_selector, "fieldSelector": field_selector}
    return {key: value for key, value in query.items() if value}


def _parse_json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        return None


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Yield whole lines of any length up to a bound. Raises ConnectionError beyond it."""
    rest = b""
    async for piece in content.iter_any():
        *whole, rest = (rest + piece).split(b"\n")
        for line in whole:
            if line.strip():
                yield line
        if len(rest) > _MAX_LINE_BYTES:
            raise ConnectionError(f"a watch line is longer than {_MAX_LINE_BYTES} bytes")


def _parse_event(line: bytes) -> WatchEvent:
    """Return the event of one line; an ERROR line is raised as what it says."""
    parsed = _parse_json(line)
    if not isinstance(parsed, dict) or not isinstance(parsed.get("object"), dict):
        raise ConnectionError("a watch line is not a JSON event")
    if parsed.get("type") not in WatchType.__members__:
        raise ConnectionError(f"unknown watch event {parsed.get('type')!r}")
    event = WatchEvent(WatchType(parsed["type"]), parsed["object"])
    if event.type is WatchType.ERROR:
        raise ApiError.from_status(int(event.object.get("code") or 500), event.object)
    return event
