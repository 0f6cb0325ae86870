"""Every object of the fleet: reads and writes over the store, by the rules of the kinds.

Implements `controller.runtime.objects.Objects` for callers in this process and offers the
richer requests that the HTTP API serves. Writers without a resourceVersion never lose to
concurrent status reports: their change is decided again on the newest state.
"""

import secrets
import time
import uuid
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace

from controller.registry import refusals, rules
from controller.registry.admission import Admitted, FieldValidation
from controller.registry.query import (
    ListQuery,
    WatchQuery,
    list_kind,
    parse_selector,
    to_object,
    watch_kind,
)
from controller.store.base import (
    KeyExistsError,
    KeyNotFoundError,
    RevisionConflictError,
    Store,
    StoreError,
)
from manifests.kinds.meta import API_VERSION
from manifests.kinds.scheme import BY_PLURAL, Kind
from manifests.reading.merge import apply_merge_patch
from manifests.times import format_time
from manifests.wire.listwatch import ObjectList, RawObject, WatchEvent
from manifests.wire.status import ApiError

_SUFFIX_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
_NAME_ATTEMPTS = 8


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """How a write is to be done. `dry_run` decides everything and stores nothing."""

    subresource: str = ""
    dry_run: bool = False
    validation: FieldValidation = FieldValidation.STRICT


@dataclass(frozen=True, slots=True)
class DeleteOptions:
    """What a delete expects to find."""

    uid: str | None = None
    resource_version: str | None = None
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class Deleted:
    """The object after a delete; `gone` unless finalizers hold it."""

    object: RawObject
    gone: bool


@dataclass(frozen=True, slots=True)
class Sources:
    """Where times and chance come from. `now` tells seconds since the epoch."""

    now: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic
    uid: Callable[[], str] = lambda: str(uuid.uuid4())
    suffix: Callable[[], str] = lambda: "".join(secrets.choice(_SUFFIX_LETTERS) for _ in range(5))

    def stamp(self) -> str:
        """Return the time as it is written into objects."""
        return format_time(self.now())

    def birth(self) -> rules.Birth:
        """Return what a new object is given."""
        return rules.Birth(self.stamp(), self.uid(), self.suffix())


Change = Callable[[RawObject], RawObject]


class Registry:
    """Implements `Objects`. Raises ApiError for every refusal."""

    def __init__(self, store: Store, sources: Sources | None = None) -> None:
        self._store = store
        self._sources = sources or Sources()

    async def list_page(self, plural: str, query: ListQuery) -> ObjectList:
        """Return one page of objects."""
        return await list_kind(self._store, find_kind(plural), query)

    async def list_objects(
        self, plural: str, *, label_selector: str = "", field_selector: str = ""
    ) -> ObjectList:
        """Return all matching objects."""
        selector = parse_selector(find_kind(plural), label_selector, field_selector)
        return await self.list_page(plural, ListQuery(selector))

    async def watch(self, plural: str, query: WatchQuery) -> AsyncGenerator[WatchEvent, None]:
        """Yield what happens to matching objects; ApiError 410 when the version is too old."""
        kind = find_kind(plural)
        events = watch_kind(self._store, kind, query, clock=self._sources.monotonic)
        async with aclosing(events):
            async for event in events:
                yield event

    async def watch_objects(
        self,
        plural: str,
        *,
        resource_version: str,
        label_selector: str = "",
        field_selector: str = "",
    ) -> AsyncGenerator[WatchEvent, None]:
        """Yield changes after a version."""
        selector = parse_selector(find_kind(plural), label_selector, field_selector)
        query = WatchQuery(selector, resource_version)
        async with aclosing(self.watch(plural, query)) as events:
            async for event in events:
                yield event

    async def get(self, plural: str, name: str) -> RawObject:
        """Return one object; 404 when missing."""
        kind = find_kind(plural)
        record = await self._store.get(_key(kind, name))
        if record is None:
            raise refusals.not_found(kind, name)
        return to_object(record)

    async def create(self, plural: str, obj: RawObject) -> RawObject:
        """Store a new object; 409 AlreadyExists when the name is taken."""
        return (await self.create_with(plural, obj, WriteOptions())).object

    async def replace(
        self, plural: str, name: str, obj: RawObject, *, subresource: str = ""
    ) -> RawObject:
        """Replace spec (or status with subresource="status"); 409 on a stale resourceVersion."""
        options = WriteOptions(subresource)
        return (await self.update_with(plural, name, lambda _: obj, options)).object

    async def patch(
        self, plural: str, name: str, patch: RawObject, *, subresource: str = ""
    ) -> RawObject:
        """Apply an RFC 7386 merge patch."""
        options = WriteOptions(subresource)
        return (await self.update_with(plural, name, merging(patch), options)).object

    async def delete(self, plural: str, name: str, *, uid: str | None = None) -> None:
        """Delete, or mark for deletion while finalizers remain; 409 when `uid` differs."""
        await self.delete_with(plural, name, DeleteOptions(uid))

    async def create_with(self, plural: str, obj: RawObject, options: WriteOptions) -> Admitted:
        """Store a new object under its name or a generated one."""
        kind = find_kind(plural)
        for _ in range(_NAME_ATTEMPTS if rules.asks_for_name(obj) else 1):
            birth = self._sources.birth()
            admitted = rules.plan_create(kind, obj, birth, options.validation)
            name = admitted.object["metadata"]["name"]
            try:
                if not options.dry_run:
                    record = await self._store.create(_key(kind, name), admitted.object)
                    return replace(admitted, object=to_object(record))
                if await self._store.get(_key(kind, name)) is None:
                    return admitted
            except KeyExistsError:
                continue
            except StoreError as fault:
                raise _unavailable(fault) from fault
        raise refusals.already_exists(kind, name)

    async def update_with(
        self, plural: str, name: str, change: Change, options: WriteOptions
    ) -> Admitted:
        """Store what `change` makes of the current object, tried again when it has moved on."""
        kind = find_kind(plural)
        if options.subresource and not (options.subresource == rules.STATUS and kind.has_status):
            raise refusals.unknown_resource()
        while True:
            old = await self.get(plural, name)
            wanted = change(old)
            admitted = rules.plan_update(kind, old, wanted, options.subresource, options.validation)
            if rules.same_content(old, admitted.object):
                return replace(admitted, object=old)
            if options.dry_run:
                version = int(old["metadata"]["resourceVersion"])
                return replace(admitted, object=rules.with_version(admitted.object, version))
            stored = await self._swap(kind, old, admitted.object)
            if stored is not None:
                return replace(admitted, object=stored)

    async def delete_with(self, plural: str, name: str, options: DeleteOptions) -> Deleted:
        """Remove an object, or mark it while finalizers remain; doing it twice is no change."""
        kind = find_kind(plural)
        while True:
            old = await self.get(plural, name)
            rules.check_preconditions(kind, old, options.uid, options.resource_version)
            marked = rules.plan_termination(old, self._sources.stamp())
            if options.dry_run or (marked is not None and rules.same_content(old, marked)):
                return Deleted(old, marked is None)
            stored = await self._swap(kind, old, marked)
            if stored is not None:
                return Deleted(stored, marked is None)

    async def _swap(self, kind: Kind, old: RawObject, new: RawObject | None) -> RawObject | None:
        """Put `new` (None: nothing) in the place of `old`; None when `old` has moved on."""
        key = _key(kind, old["metadata"]["name"])
        expected = int(old["metadata"]["resourceVersion"])
        try:
            if new is None or rules.completes_deletion(new):
                gone = await self._store.delete(key, expected_revision=expected)
                return rules.with_version(new or gone.value, gone.revision)
            return to_object(await self._store.update(key, new, expected_revision=expected))
        except RevisionConflictError:
            return None
        except KeyNotFoundError as fault:
            raise refusals.not_found(kind, old["metadata"]["name"]) from fault
        except StoreError as fault:
            raise _unavailable(fault) from fault


def merging(patch: RawObject) -> Change:
    """Return the change that an RFC 7386 merge patch makes."""

    def change(old: RawObject) -> RawObject:
        merged: RawObject = apply_merge_patch(old, patch)
        return {"apiVersion": API_VERSION, **merged}

    return change


def find_kind(plural: str) -> Kind:
    """Return the kind served under a plural. Raises: ApiError 404."""
    kind = BY_PLURAL.get(plural)
    if kind is None:
        raise refusals.unknown_resource()
    return kind


def _key(kind: Kind, name: str) -> str:
    return f"{kind.plural}/{name}"


def _unavailable(fault: StoreError) -> ApiError:
    return ApiError(503, f"the store does not take writes: {fault}")
