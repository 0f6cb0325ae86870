"""`Objects` over HTTP, for roles that run apart from the API and for the command line.

Owns the translation of calls into requests and of answers into values, ApiError or OSError. It
must not retry: callers know whether a repeat is safe. Called by the reconcilers, the gateway
and the CLI.
"""

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any
from urllib.parse import quote

import aiohttp

from manifests.kinds.meta import GROUP, VERSION
from manifests.wire.listwatch import ObjectList, RawObject, WatchEvent, WatchType
from manifests.wire.status import ApiError

API_PREFIX = f"/apis/{GROUP}/{VERSION}"
MERGE_PATCH = "application/merge-patch+json"
_REQUEST_TIMEOUT = aiohttp.ClientTimeout(total=30, sock_connect=5)
_WATCH_SECONDS = 120
# Longer than the watch itself: only a link that died without a word runs into it.
_WATCH_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=_WATCH_SECONDS + 15)


class RemoteObjects:
    """The API of one controller. The session, and its credentials, belong to the caller."""

    def __init__(self, session: aiohttp.ClientSession, base_url: str) -> None:
        """Talk to the API at `base_url`, such as http://127.0.0.1:7070."""
        self._session = session
        self._base_url = base_url.rstrip("/")

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "application/json",
    ) -> RawObject:
        """Send one request and return the JSON object it answers.

        Raises: ApiError for any answer but 2xx; OSError when there is no answer.
        """
        try:
            async with self._session.request(
                method,
                self._base_url + path,
                params=params,
                data=None if body is None else json.dumps(body).encode(),
                headers={"Content-Type": content_type, "Accept": "application/json"},
                timeout=_REQUEST_TIMEOUT,
            ) as response:
                raw = await response.read()
                status = response.status
        except aiohttp.ClientError as fault:
            raise ConnectionError(f"{method} {self._base_url}{path}: {fault}") from fault
        answer = _parse(raw)
        if status >= 300:
            raise ApiError.from_status(status, answer)
        if answer is None:
            raise ConnectionError(f"{method} {self._base_url}{path}: the answer is not JSON")
        return answer

    async def list_objects(
        self, plural: str, *, label_selector: str = "", field_selector: str = ""
    ) -> ObjectList:
        """Return all matching objects, page after page when the server pages."""
        params = _selectors(label_selector, field_selector)
        items: list[RawObject] = []
        while True:
            page = await self.request("GET", _path(plural), params=params)
            items.extend(page.get("items") or ())
            meta = page.get("metadata") or {}
            following = str(meta.get("continue") or "")
            if not following:
                return ObjectList(tuple(items), str(meta.get("resourceVersion", "")))
            params = {**params, "continue": following}

    async def watch_objects(
        self,
        plural: str,
        *,
        resource_version: str,
        label_selector: str = "",
        field_selector: str = "",
    ) -> AsyncIterator[WatchEvent]:
        """Yield changes after a version until the server ends the watch."""
        params = {
            **_selectors(label_selector, field_selector),
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(_WATCH_SECONDS),
        }
        try:
            async with self._session.get(
                self._base_url + _path(plural), params=params, timeout=_WATCH_TIMEOUT
            ) as response:
                if response.status >= 300:
                    raise ApiError.from_status(response.status, _parse(await response.read()))
                async for line in _lines(response.content):
                    yield _event(line)
        except aiohttp.ClientError as fault:
            raise ConnectionError(f"watch of {plural}: {fault}") from fault

    async def get(self, plural: str, name: str) -> RawObject:
        """Return one object; 404 when missing."""
        return await self.request("GET", _path(plural, name))

    async def create(self, plural: str, obj: RawObject) -> RawObject:
        """Store a new object; 409 AlreadyExists when the name is taken."""
        return await self.request("POST", _path(plural), body=obj)

    async def replace(
        self, plural: str, name: str, obj: RawObject, *, subresource: str = ""
    ) -> RawObject:
        """Replace spec (or status with subresource="status"); 409 on a stale resourceVersion."""
        return await self.request("PUT", _path(plural, name, subresource), body=obj)

    async def patch(
        self, plural: str, name: str, patch: RawObject, *, subresource: str = ""
    ) -> RawObject:
        """Apply an RFC 7386 merge patch."""
        path = _path(plural, name, subresource)
        return await self.request("PATCH", path, body=patch, content_type=MERGE_PATCH)

    async def delete(self, plural: str, name: str, *, uid: str | None = None) -> None:
        """Delete, or mark for deletion while finalizers remain; 409 when `uid` differs."""
        options: dict[str, Any] = {
            "kind": "DeleteOptions",
            "apiVersion": "v1",
            "propagationPolicy": "Background",
        }
        if uid is not None:
            options["preconditions"] = {"uid": uid}
        await self.request("DELETE", _path(plural, name), body=options)


def _path(plural: str, name: str = "", subresource: str = "") -> str:
    parts = [API_PREFIX, plural, *(quote(part, safe="") for part in (name, subresource) if part)]
    return "/".join(parts)


def _selectors(label_selector: str, field_selector: str) -> dict[str, str]:
    pairs = (("labelSelector", label_selector), ("fieldSelector", field_selector))
    return {key: value for key, value in pairs if value}


def _parse(raw: bytes) -> RawObject | None:
    try:
        value = json.loads(raw)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _event(line: bytes) -> WatchEvent:
    """Return the event of one line. Raises OSError: asking again is the only repair."""
    value = _parse(line)
    if value is None or not isinstance(value.get("object"), dict):
        raise ConnectionError("the watch sent a line that is no event")
    if value.get("type") not in set(WatchType):
        raise ConnectionError(f"the watch sent an unknown event type {value.get('type')!r}")
    return WatchEvent(WatchType(value["type"]), value["object"])


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Yield whole lines of any length; aiohttp's own reader refuses lines over its buffer."""
    rest = bytearray()
    async for chunk in content.iter_any():
        rest += chunk
        if b"\n" not in chunk:
            continue
        *whole, tail = bytes(rest).split(b"\n")
        rest = bytearray(tail)
        for line in whole:
            if line.strip():
                yield line
    if rest.strip():
        raise ConnectionError("the watch was cut inside a line")
