"""From what a client sent to what may be stored: checks, defaults, unknown fields.

Pure. Users' spelling of quantities is kept; defaults are filled in; nulls and empty metadata
are left out. Called by the registry for every write, after a patch has been merged.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from controller.registry import refusals
from manifests.kinds.meta import API_VERSION
from manifests.kinds.scheme import Kind, dump_object, parse_object
from manifests.reading.field_errors import ErrorCode, FieldError
from manifests.reading.validate import validate_object
from manifests.wire.listwatch import RawObject


class FieldValidation(StrEnum):
    """What happens to a field that the kind does not have."""

    STRICT = "Strict"
    WARN = "Warn"
    IGNORE = "Ignore"


@dataclass(frozen=True, slots=True)
class Admitted:
    """An object ready to be stored, and what to warn its writer of."""

    object: RawObject
    warnings: tuple[str, ...] = ()


def admit(kind: Kind, raw: RawObject, validation: FieldValidation) -> Admitted:
    """Return the object with defaults, checked. Raises: ApiError 400, 422."""
    check_type(kind, raw)
    clean: RawObject = without_nulls(raw)
    errors = validate_object(clean)
    unknown = [error for error in errors if error.code is ErrorCode.UNKNOWN]
    warnings: tuple[str, ...] = ()
    if unknown:
        if validation is FieldValidation.STRICT:
            raise refusals.unknown_fields(kind, unknown)
        if validation is FieldValidation.WARN:
            warnings = tuple(refusals.unknown_field_text(error) for error in unknown)
        clean = _without_fields(clean, unknown)
        errors = validate_object(clean)
    if errors:
        raise refusals.invalid(kind, _name_of(clean), errors)
    return Admitted(_dump(clean), warnings)


def check_type(kind: Kind, raw: RawObject) -> None:
    """Check that apiVersion and kind are those of the URL. Raises: ApiError 400."""
    for field, wanted in (("apiVersion", API_VERSION), ("kind", kind.name)):
        found = raw.get(field)
        if found != wanted:
            said = "is missing" if found is None else f"is {found!r}"
            raise refusals.bad_request(
                f"{field} {said}, but this address holds objects of {field} {wanted!r}"
            )


def check_same(kind: Kind, old: RawObject, new: RawObject) -> None:
    """Refuse changes of fields that are fixed for life. Raises: ApiError 422."""
    errors = []
    for field in _IMMUTABLE.get(kind.name, ()):
        before, after = old["spec"].get(field), new["spec"].get(field)
        if before != after:
            errors.append(
                FieldError.at(
                    ("spec", field),
                    f"is {before!r} and cannot become {after!r}: the field is immutable",
                    "delete the object and create it anew",
                )
            )
    if errors:
        raise refusals.invalid(kind, _name_of(new), errors)


def means_the_same(old: RawObject, new: RawObject) -> bool:
    """Whether two admitted objects declare the same, however their quantities are spelt."""
    if old.get("spec") == new.get("spec"):
        return True
    before, after = parse_object(old), parse_object(new)
    return bool(getattr(before, "spec", None) == getattr(after, "spec", None))


def without_nulls(value: Any) -> Any:
    """Return a deep copy without the keys whose value is null; a null asks for the default."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value


_IMMUTABLE: dict[str, tuple[str, ...]] = {"Engine": ("node", "model")}


def _dump(raw: RawObject) -> RawObject:
    dumped = dump_object(parse_object(raw))
    metadata = dumped["metadata"]
    dumped["metadata"] = {key: value for key, value in metadata.items() if value not in ({}, [])}
    return dumped


def _without_fields(raw: RawObject, errors: Sequence[FieldError]) -> RawObject:
    pruned = copy.deepcopy(raw)
    for error in errors:
        *way, last = error.steps
        parent: Any = pruned
        for step in way:
            parent = parent[step]
        del parent[last]
    return pruned


def _name_of(raw: RawObject) -> str:
    metadata = raw.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return name if isinstance(name, str) else ""
