"""Lists and watches over the store: selectors, pages, versions, and what a change means.

Owns the resourceVersion rules of reads. It writes nothing. Called by the registry.
"""

import asyncio
import base64
import binascii
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, cast

from controller.registry import refusals
from controller.registry.rules import with_version
from controller.registry.selectors import (
    EVERYTHING,
    Selector,
    SelectorError,
    parse_field_selector,
    parse_label_selector,
)
from controller.store.base import (
    Change,
    ChangeType,
    CompactedError,
    FutureRevisionError,
    Record,
    Store,
)
from manifests.kinds.meta import API_VERSION
from manifests.kinds.scheme import Kind
from manifests.wire.listwatch import ObjectList, RawObject, WatchEvent, WatchType

INITIAL_EVENTS_END = "k8s.io/initial-events-end"
BOOKMARK_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class ListQuery:
    """What a list asks for; limit 0 means everything."""

    selector: Selector = EVERYTHING
    limit: int = 0
    continue_token: str = ""
    resource_version: str = ""
    version_match: str = ""


@dataclass(frozen=True, slots=True)
class WatchQuery:
    """What a watch asks for.

    `initial_events` True sends what exists first and marks its end, False sends none of it,
    None sends it only when no resourceVersion is given.
    """

    selector: Selector = EVERYTHING
    resource_version: str = ""
    initial_events: bool | None = None
    bookmarks: bool = True


def parse_selector(kind: Kind, labels: str, fields: str) -> Selector:
    """Return both selectors as one. Raises: ApiError 400."""
    try:
        return Selector(parse_label_selector(labels), parse_field_selector(fields, kind.plural))
    except SelectorError as fault:
        raise refusals.bad_request(str(fault)) from fault


def parse_version(text: str) -> int:
    """Return the revision that a resourceVersion names; 0 when absent. Raises: ApiError 400."""
    if text in {"", "0"}:
        return 0
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise refusals.bad_request(f"resourceVersion {text!r} is not one that this server gave out")
    return int(text)


def prefix_of(kind: Kind) -> str:
    """Return the keys' prefix of a kind."""
    return f"{kind.plural}/"


def to_object(record: Record) -> RawObject:
    """Return a stored record as clients see it."""
    return with_version(record.value, record.revision)


async def list_kind(store: Store, kind: Kind, query: ListQuery) -> ObjectList:
    """Return one page of matching objects. Raises: ApiError 400, 410."""
    after, since = _parse_continue(query.continue_token)
    wanted = parse_version(query.resource_version)
    page = await store.list(prefix_of(kind), after_key=after)
    newest = max(page.revision, await store.revision())
    if wanted > newest:
        raise refusals.expired(f"resourceVersion {wanted} is newer than the latest, {newest}")
    if query.version_match == "Exact" and not after and wanted != page.revision:
        raise refusals.expired(
            f"the state at resourceVersion {wanted} is not kept, only the latest, {page.revision}"
        )
    found = [record for record in page.records if query.selector.matches(to_object(record))]
    taken = found[: query.limit] if query.limit else found
    left = len(found) - len(taken)
    # A watch that starts at the first page's version sees what changed while paging.
    version = since or page.revision
    token = _continue_token(taken[-1].key, version) if left else ""
    return ObjectList(tuple(to_object(record) for record in taken), str(version), token, left)


async def watch_kind(
    store: Store,
    kind: Kind,
    query: WatchQuery,
    *,
    clock: Callable[[], float],
    bookmark_seconds: float = BOOKMARK_SECONDS,
) -> AsyncGenerator[WatchEvent, None]:
    """Yield what happens to matching objects. Raises: ApiError 400, 410."""
    version = parse_version(query.resource_version)
    if not version and query.initial_events is False:
        version = await store.revision()
    elif query.initial_events or not version:
        if version > await store.revision():
            raise refusals.expired(f"resourceVersion {version} does not exist yet")
        listed = await list_kind(store, kind, ListQuery(query.selector))
        for item in listed.items:
            yield WatchEvent(WatchType.ADDED, item)
        version = int(listed.resource_version)
        if query.initial_events and query.bookmarks:
            yield bookmark(kind, version, initial=True)
    due = clock() + bookmark_seconds
    async with aclosing(_steps(store, version, bookmark_seconds)) as steps:
        async for change in steps:
            if change is not None:
                version = change.record.revision
                event = describe_change(kind, query.selector, change)
                if event is not None:
                    yield event
            if clock() >= due:
                due = clock() + bookmark_seconds
                if query.bookmarks:
                    yield bookmark(kind, version)


def describe_change(kind: Kind, selector: Selector, change: Change) -> WatchEvent | None:
    """Return what a watch with this selector tells of a change, or None. Pure."""
    if not change.record.key.startswith(prefix_of(kind)):
        return None
    now = to_object(change.record)
    before = None if change.previous is None else to_object(change.previous)
    matched = before is not None and selector.matches(before)
    matches = change.type is ChangeType.PUT and selector.matches(now)
    if matches:
        return WatchEvent(WatchType.MODIFIED if matched else WatchType.ADDED, now)
    if matched and before is not None:
        # The last state that matched, at the version at which it ceased to.
        last = now if change.type is ChangeType.DELETE else before
        return WatchEvent(WatchType.DELETED, with_version(last, change.record.revision))
    return None


def bookmark(kind: Kind, version: int, *, initial: bool = False) -> WatchEvent:
    """Return the event that says how far a watch has come. Pure."""
    metadata: dict[str, Any] = {"resourceVersion": str(version)}
    if initial:
        metadata["annotations"] = {INITIAL_EVENTS_END: "true"}
    return WatchEvent(
        WatchType.BOOKMARK,
        {"kind": kind.name, "apiVersion": API_VERSION, "metadata": metadata},
    )


async def _steps(
    store: Store, after: int, tick_seconds: float
) -> AsyncGenerator[Change | None, None]:
    """Yield every change of the store, and None when none came for a tick.

    The whole key space is watched, so that a bookmark can vouch for changes of other kinds.
    """
    changes = store.watch("", after_revision=after)
    pending: asyncio.Future[Change | None] | None = None
    try:
        while True:
            if pending is None:
                pending = asyncio.ensure_future(_next(changes))
            await asyncio.wait({pending}, timeout=tick_seconds)
            if not pending.done():
                yield None
                continue
            done, pending = pending, None
            change = done.result()
            if change is None:
                return
            yield change
    except CompactedError as gone:
        raise refusals.expired(
            f"too old resource version: {gone.asked} ({gone.oldest}); list again"
        ) from gone
    except FutureRevisionError as early:
        raise refusals.expired(
            f"resource version {after} does not exist yet, as after a restored backup; list again"
        ) from early
    finally:
        if pending is not None:
            pending.cancel()
            await asyncio.gather(pending, return_exceptions=True)
        await cast(AsyncGenerator[Change, None], changes).aclose()


async def _next(changes: AsyncIterator[Change]) -> Change | None:
    return await anext(changes, None)


def _continue_token(key: str, version: int) -> str:
    text = json.dumps({"after": key, "rv": version}, separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode()


def _parse_continue(token: str) -> tuple[str | None, int]:
    if not token:
        return None, 0
    try:
        value = json.loads(base64.urlsafe_b64decode(token.encode()))
        return str(value["after"]), int(value["rv"])
    except (binascii.Error, ValueError, KeyError, TypeError) as fault:
        raise refusals.bad_request("the continue token is not one that this server gave out") from (
            fault
        )
