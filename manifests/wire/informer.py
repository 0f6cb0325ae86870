"""A live, local copy of the objects of one kind, kept by list and watch.

Owns the copy and the rules of staying current: list, watch from that version, list again when
the version is too old, back off on faults. It must not write, and it never empties the copy
because the source is down: the data plane outlives the control plane. Used by the agent's
sync, the gateway and the reconcilers.
"""

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from manifests.kinds.meta import FleetObject
from manifests.kinds.scheme import parse_object
from manifests.wire.listwatch import ObjectSource, RawObject, WatchEvent, WatchType
from manifests.wire.status import ApiError

_LOG = logging.getLogger(__name__)

Callback = Callable[[str], None]
Parse = Callable[[Mapping[str, Any]], FleetObject]


@dataclass(frozen=True, slots=True)
class Retry:
    """When to try again after a fault. Units: seconds; `steady_seconds` forgives past faults."""

    least_seconds: float = 0.2
    most_seconds: float = 5.0
    steady_seconds: float = 10.0
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    random: Callable[[], float] = random.random

    def delay_seconds(self, faults: int) -> float:
        """Return the jittered wait after so many faults in a row."""
        ceiling = min(self.most_seconds, self.least_seconds * 2.0 ** min(faults, 16))
        return float(max(self.least_seconds, ceiling * (0.5 + 0.5 * self.random())))


@dataclass(frozen=True, slots=True)
class InformerCounts:
    """What happened so far, for metrics."""

    lists: int = 0
    events: int = 0
    faults: int = 0
    unparsable: int = 0


@dataclass(frozen=True, slots=True)
class _Entry:
    """One object: as sent, and typed."""

    raw: RawObject
    typed: FleetObject
    identity: tuple[str, str]


class _Copy:
    """The objects by name, and a snapshot of them for readers."""

    def __init__(self, plural: str, parse: Parse) -> None:
        self.entries: dict[str, _Entry] = {}
        self.unparsable = 0
        self._plural, self._parse = plural, parse
        self._view: Mapping[str, FleetObject] | None = None

    def view(self) -> Mapping[str, FleetObject]:
        """Return a snapshot; the same one until something changes."""
        if self._view is None:
            self._view = MappingProxyType({n: entry.typed for n, entry in self.entries.items()})
        return self._view

    def remove(self, name: str) -> bool:
        """Forget one object; whether it was there."""
        self._view = None
        return self.entries.pop(name, None) is not None

    def put(self, name: str, raw: RawObject) -> bool:
        """Store one object; whether the copy changed.

        An object this program cannot read keeps the form last understood, so that a newer
        writer does not make an agent stop what it runs; another uid is another object.
        """
        meta = _meta(raw)
        identity = (str(meta.get("uid", "")), str(meta.get("resourceVersion", "")))
        known = self.entries.get(name)
        if known is not None and known.identity == identity:
            return False
        try:
            typed = self._parse(raw)
        except (KeyError, ValueError, TypeError) as fault:
            self.unparsable += 1
            _LOG.warning(
                "skipping %s/%s, which this version cannot read: %s", self._plural, name, fault
            )
            if known is None or known.identity[0] == identity[0]:
                return False
            return self.remove(name)
        self.entries[name] = _Entry(raw, typed, identity)
        self._view = None
        return True


class GarbledWatchError(Exception):
    """A watch said something that names no object; what it meant is lost, so list again."""


class Informer:
    """The live copy. All methods belong to one event loop."""

    def __init__(
        self,
        source: ObjectSource,
        plural: str,
        *,
        label_selector: str = "",
        field_selector: str = "",
        parse: Parse = parse_object,
        retry: Retry | None = None,
    ) -> None:
        """Prepare an empty copy; `run` fills it."""
        self.plural = plural
        self._source = source
        self._label_selector, self._field_selector = label_selector, field_selector
        self._copy = _Copy(plural, parse)
        self._retry = retry or Retry()
        self._callbacks: list[Callback] = []
        self._synced = asyncio.Event()
        self._version = ""
        self._connected = False
        self._faults_in_row = 0
        self._lists = self._events = self._faults = 0

    @property
    def objects(self) -> Mapping[str, FleetObject]:
        """The objects by name, typed: a snapshot that later changes do not touch."""
        return self._copy.view()

    def raw(self, name: str) -> RawObject | None:
        """Return one object as it was sent, or None; callers must not change it."""
        entry = self._copy.entries.get(name)
        return None if entry is None else entry.raw

    @property
    def synced(self) -> bool:
        """Whether a list has succeeded once; stays true when the source goes down later."""
        return self._synced.is_set()

    @property
    def connected(self) -> bool:
        """Whether the last list or watch ended without a fault."""
        return self._connected

    @property
    def counts(self) -> InformerCounts:
        """What happened so far."""
        return InformerCounts(self._lists, self._events, self._faults, self._copy.unparsable)

    async def wait_synced(self) -> None:
        """Return once the first list is in."""
        await self._synced.wait()

    def subscribe(self, callback: Callback) -> Callable[[], None]:
        """Call `callback` with the name of every object that appears, changes or goes.

        The callback runs on the loop after the copy has changed and must not block. Returns a
        function that ends the subscription.
        """
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback)

    async def run(self) -> None:
        """Keep the copy current until cancelled."""
        while True:
            started = self._retry.clock()
            try:
                if not self._version:
                    await self._relist()
                events_before = self._events
                await self._follow()
                # A source that hangs up at once is as good as a fault: do not spin on it.
                lasted = self._retry.clock() - started
                if self._events > events_before or lasted >= self._retry.steady_seconds:
                    self._faults_in_row = 0
            except (ApiError, GarbledWatchError) as fault:
                # 410, or anything else the server refuses: a fresh list repairs it.
                self._version = ""
                self._note(fault)
            except OSError as fault:
                self._note(fault)
            except Exception as fault:  # noqa: BLE001 - task root: a dead informer freezes its owner
                self._version = ""
                self._note(fault)
            await self._retry.sleep(self._retry.delay_seconds(self._faults_in_row))
            self._faults_in_row += 1

    def _note(self, fault: Exception) -> None:
        self._connected = False
        self._faults += 1
        _LOG.warning("watch of %s: %s: %s", self.plural, type(fault).__name__, fault)

    async def _relist(self) -> None:
        """Replace the copy by a fresh list and tell what differs, deletes included."""
        listed = await self._source.list_objects(
            self.plural,
            label_selector=self._label_selector,
            field_selector=self._field_selector,
        )
        self._lists += 1
        names = [_name_of(item) for item in listed.items]
        gone = self._copy.entries.keys() - set(names)
        for name in gone:
            self._copy.remove(name)
        changed = [
            name
            for name, item in zip(names, listed.items, strict=True)
            if self._copy.put(name, item)
        ]
        self._version = listed.resource_version
        self._connected = True
        self._synced.set()
        self._tell([*sorted(gone), *changed])

    async def _follow(self) -> None:
        watch = self._source.watch_objects(
            self.plural,
            resource_version=self._version,
            label_selector=self._label_selector,
            field_selector=self._field_selector,
        )
        try:
            async for event in watch:
                self._take(event)
        finally:
            await _close(watch)

    def _take(self, event: WatchEvent) -> None:
        """Take one watch event into the copy. Raises ApiError, GarbledWatchError."""
        if event.type is WatchType.ERROR:
            code = event.object.get("code")
            raise ApiError.from_status(code if isinstance(code, int) else 500, event.object)
        version = _meta(event.object).get("resourceVersion")
        if not isinstance(version, str) or not version:
            raise GarbledWatchError(f"a {event.type} event has no resourceVersion")
        changed = ""
        if event.type is not WatchType.BOOKMARK:
            name = _name_of(event.object)
            if event.type is WatchType.DELETED:
                changed = name if self._copy.remove(name) else ""
            elif self._copy.put(name, event.object):
                changed = name
        self._version = version
        self._events += 1
        self._connected = True
        self._faults_in_row = 0
        if changed:
            self._tell([changed])

    def _tell(self, names: list[str]) -> None:
        for name in names:
            for callback in tuple(self._callbacks):
                try:
                    callback(name)
                except Exception:  # noqa: BLE001 - one subscriber must not starve the others
                    _LOG.exception("a subscriber of %s failed on %s", self.plural, name)


def _meta(raw: RawObject) -> Mapping[str, Any]:
    meta = raw.get("metadata")
    return meta if isinstance(meta, Mapping) else {}


def _name_of(raw: RawObject) -> str:
    name = _meta(raw).get("name")
    if not isinstance(name, str) or not name:
        raise GarbledWatchError("an object has no name")
    return name


async def _close(watch: AsyncIterator[WatchEvent]) -> None:
    """End a watch now rather than when it is collected; only generators have an end."""
    close = getattr(watch, "aclose", None)
    if close is not None:
        await close()
