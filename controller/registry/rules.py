"""What a write does to an object: who owns which field, generations, finalizers, deletion.

Pure; `now`, uids and random suffixes are passed in. Called by the registry, which does the
reading and writing.
"""

from dataclasses import dataclass
from typing import Any

from controller.registry import refusals
from controller.registry.admission import Admitted, FieldValidation, admit, check_same, check_type
from controller.registry.admission import means_the_same as same_meaning
from manifests.kinds.meta import API_VERSION
from manifests.kinds.scheme import Kind
from manifests.wire.listwatch import RawObject

STATUS = "status"
NAME_LENGTH = 253

# Set by the server; what a client sends for them is dropped or compared, never stored.
_SERVER_OWNED = (
    "name",
    "uid",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "managedFields",
)
_NEVER_STORED = ("resourceVersion", "namespace", "selfLink")


@dataclass(frozen=True, slots=True)
class Birth:
    """What a new object is given. `suffix` completes a generateName."""

    now: str
    uid: str
    suffix: str


def plan_create(kind: Kind, raw: RawObject, birth: Birth, validation: FieldValidation) -> Admitted:
    """Return the object to store for a create request. Raises: ApiError 400, 422."""
    check_type(kind, raw)
    metadata = _metadata(raw)
    if metadata.get("resourceVersion") not in (None, ""):
        raise refusals.bad_request("resourceVersion should not be set on objects to be created")
    if asks_for_name(raw):
        prefix = metadata["generateName"][: NAME_LENGTH - len(birth.suffix)]
        metadata["name"] = prefix + birth.suffix
    for field in (*_SERVER_OWNED[1:], *_NEVER_STORED):
        metadata.pop(field, None)
    metadata |= {"uid": birth.uid, "generation": 1, "creationTimestamp": birth.now}
    content = {key: value for key, value in raw.items() if key != "metadata"}
    if kind.has_status:
        # An engine that claims at birth to be Ready would be routed to.
        content.pop(STATUS, None)
    return admit(kind, {**content, "metadata": metadata}, validation)


def asks_for_name(raw: RawObject) -> bool:
    """Whether a create request leaves the end of the name to the server."""
    metadata = raw.get("metadata")
    if not isinstance(metadata, dict) or metadata.get("name"):
        return False
    prefix = metadata.get("generateName")
    return isinstance(prefix, str) and bool(prefix)


def plan_update(
    kind: Kind, old: RawObject, wanted: RawObject, subresource: str, validation: FieldValidation
) -> Admitted:
    """Return the object to store in place of `old`; equal to `old` when nothing changes.

    `old` and `wanted` are whole objects; `old` carries its resourceVersion, the result does
    not. Raises: ApiError 400, 409, 422.
    """
    wanted = {"apiVersion": API_VERSION, "kind": kind.name, **wanted}
    check_type(kind, wanted)
    _check_identity(kind, old, wanted)
    if subresource == STATUS:
        stored = _stored_part(old)
        return admit(kind, {**stored, STATUS: wanted.get(STATUS) or {}}, validation)
    metadata = _metadata(wanted)
    for field in (*_SERVER_OWNED, *_NEVER_STORED):
        metadata.pop(field, None)
        if field in _SERVER_OWNED and field in old["metadata"]:
            metadata[field] = old["metadata"][field]
    composed = {**wanted, "metadata": metadata}
    if kind.has_status:
        composed[STATUS] = old.get(STATUS)
    admitted = admit(kind, composed, validation)
    new = admitted.object
    changed = not same_meaning(old, new)
    if changed:
        check_same(kind, old, new)
        new["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1
    if is_terminating(old):
        _check_terminating(kind, old, new, changed)
    return admitted


def plan_termination(old: RawObject, now: str) -> RawObject | None:
    """Return the object marked for deletion, or None when it can be removed at once."""
    if not old["metadata"].get("finalizers"):
        return None
    marks = {"deletionTimestamp": now, "deletionGracePeriodSeconds": 0}
    stored = _stored_part(old)
    return stored if is_terminating(old) else _with_metadata(stored, marks)


def is_terminating(obj: RawObject) -> bool:
    """Whether the object waits for its finalizers."""
    return "deletionTimestamp" in obj["metadata"]


def completes_deletion(obj: RawObject) -> bool:
    """Whether nothing holds back the removal any more."""
    return is_terminating(obj) and not obj["metadata"].get("finalizers")


def with_version(stored: RawObject, revision: int) -> RawObject:
    """Return the object as clients see it."""
    return _with_metadata(stored, {"resourceVersion": str(revision)})


def same_content(old: RawObject, new: RawObject) -> bool:
    """Whether a write would change nothing; `old` may carry its resourceVersion."""
    return _stored_part(old) == new


def check_preconditions(kind: Kind, obj: RawObject, uid: str | None, version: str | None) -> None:
    """Check what the caller expects to find. Raises: ApiError 409."""
    metadata = obj["metadata"]
    if uid and uid != metadata["uid"]:
        raise refusals.conflict(
            kind, metadata["name"], f"the object has uid {metadata['uid']}, not {uid}"
        )
    if version and version != metadata["resourceVersion"]:
        raise refusals.stale(kind, metadata["name"], version, metadata["resourceVersion"])


def _check_identity(kind: Kind, old: RawObject, wanted: RawObject) -> None:
    metadata = _metadata(wanted)
    name = old["metadata"]["name"]
    if metadata.get("name") not in (None, "", name):
        raise refusals.bad_request(
            f"the name of the object ({metadata['name']}) does not match the name on the URL "
            f"({name})"
        )
    check_preconditions(kind, old, metadata.get("uid"), metadata.get("resourceVersion"))


def _check_terminating(kind: Kind, old: RawObject, new: RawObject, changed: bool) -> None:
    name = old["metadata"]["name"]
    since = old["metadata"]["deletionTimestamp"]
    if changed:
        raise refusals.conflict(
            kind, name, f"it is being deleted since {since}; wait until it is gone, then apply"
        )
    held = set(old["metadata"].get("finalizers", ()))
    added = sorted(set(new["metadata"].get("finalizers", ())) - held)
    if added:
        raise refusals.conflict(
            kind, name, f"it is being deleted since {since}; no finalizer can be added: {added}"
        )


def _metadata(raw: RawObject) -> dict[str, Any]:
    metadata = raw.get("metadata")
    if metadata is not None and not isinstance(metadata, dict):
        raise refusals.bad_request("metadata must be a mapping")
    return dict(metadata or {})


def _stored_part(obj: RawObject) -> RawObject:
    metadata = {k: v for k, v in obj["metadata"].items() if k != "resourceVersion"}
    return {**obj, "metadata": metadata}


def _with_metadata(obj: RawObject, fields: dict[str, Any]) -> RawObject:
    return {**obj, "metadata": {**obj["metadata"], **fields}}
