"""Whether one object is well-formed: the same verdict for the command line and for the API.

Owns every rule about a single object. It reads nothing but the object, stores nothing, and
knows nothing of files; `reading.load` adds positions, the API adds what needs other objects.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping
from itertools import chain, islice
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from manifests.kinds.meta import API_VERSION, ObjectMeta
from manifests.kinds.scheme import BY_NAME, KINDS, Kind
from manifests.reading.field_errors import ErrorCode, FieldError, Path, format_path
from manifests.reading.suggest import nearest, nearest_kind
from manifests.reading.translate import Written, show, translate, value_at, wrong_type

MAX_DEPTH = 100
MAX_ERRORS = 100
_MAX_INTEGER = (1 << 63) - 1
_MAX_ANNOTATIONS_BYTES = 256 * 1024
_LABEL_TEXT = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?", re.ASCII)
_LABEL_PREFIX = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", re.ASCII)
_LABEL_RULE = "allowed are letters, digits, '-', '_' and '.', with a letter or digit at each end"
_LABEL_PATHS: tuple[Path, ...] = (("metadata", "labels"), ("spec", "nodeSelector"))
_LONGEST_LABEL = 63
_LONGEST_PREFIX = 253
_TYPE = ErrorCode.TYPE_INVALID
_UNSUPPORTED = ErrorCode.NOT_SUPPORTED


def _nothing_said(_path: Path) -> str | None:
    return None


def validate_object(
    raw: Mapping[str, Any], written: Written = _nothing_said
) -> tuple[FieldError, ...]:
    """Return the faults of one object in document order; empty when it is valid.

    Pure. At most 100 faults and a note that there are more: a hostile object costs no more.
    `written` returns the text of a scalar as it stood in the file, so that a message can quote
    `no` where the value is False.
    """
    if not isinstance(raw, Mapping):
        return (wrong_type((), raw, "a mapping", written),)
    # What JSON cannot carry cannot be stored, nor handed to the classes of the kinds.
    unsuited = list(islice(_check_suited(raw, ()), MAX_ERRORS))
    checks = [_check_type(raw, written), _check_name_is_set(raw)]
    if not unsuited:
        checks += [
            _check_fields(raw, _kind_of(raw), written),
            _check_labels(raw),
            _check_annotations(raw),
            _check_keyed_lists(raw),
        ]
    found = list(islice(chain(*checks, unsuited), MAX_ERRORS + 1))
    errors = _in_document_order(raw, _drop_echoes(found[:MAX_ERRORS]))
    if len(found) <= MAX_ERRORS:
        return errors
    return (*errors, FieldError.at((), f"more than {MAX_ERRORS} errors; the rest is not shown"))


def _kind_of(raw: Mapping[str, Any]) -> Kind | None:
    name = raw.get("kind")
    return BY_NAME.get(name) if isinstance(name, str) else None


def _check_suited(value: Any, path: Path) -> Iterator[FieldError]:
    """Find what JSON cannot carry: other key types, NaN, huge integers, deep nesting."""
    if len(path) > MAX_DEPTH:
        yield FieldError.at(path[:3], f"nested more than {MAX_DEPTH} levels deep")
    elif isinstance(value, Mapping):
        for key, item in value.items():
            if isinstance(key, str):
                yield from _check_suited(key, (*path, "?"))
                yield from _check_suited(item, (*path, key))
            else:
                yield FieldError.at(
                    path, f"the key {key!r} is not text", f'quote it: "{key}"', _TYPE
                )
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _check_suited(item, (*path, index))
    elif isinstance(value, float) and not math.isfinite(value):
        yield FieldError.at(path, "must be a finite number")
    elif isinstance(value, str):
        if not _is_unicode(value):
            yield FieldError.at(path, "has half of a surrogate pair, which is no character")
    elif isinstance(value, int) and not -_MAX_INTEGER <= value <= _MAX_INTEGER:
        yield FieldError.at(path, "is larger than a 64-bit integer")
    elif value is not None and not isinstance(value, int | float):
        yield FieldError.at(path, f"{type(value).__name__} is no type of a manifest", "", _TYPE)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _check_type(raw: Mapping[str, Any], said: Written) -> Iterator[FieldError]:
    """Check apiVersion and kind."""
    version, kind = raw.get("apiVersion"), raw.get("kind")
    if "apiVersion" not in raw:
        yield _missing(raw, "apiVersion", f"add apiVersion: {API_VERSION}")
    elif not isinstance(version, str):
        yield wrong_type(("apiVersion",), version, "text", said)
    elif version != API_VERSION:
        message = f"{show(version)} is not supported"
        yield FieldError.at(("apiVersion",), message, f"write {API_VERSION}", _UNSUPPORTED)
    known = ", ".join(item.name for item in KINDS if item.declared_by_users)
    if "kind" not in raw:
        yield _missing(raw, "kind", f"the kinds are {known}")
    elif not isinstance(kind, str):
        yield wrong_type(("kind",), kind, "text", said)
    elif kind not in BY_NAME:
        near = nearest_kind(kind)
        hint = f"did you mean {near}?" if near else f"the kinds are {known}"
        yield FieldError.at(("kind",), f"unknown kind {show(kind)}", hint, _UNSUPPORTED)


def _missing(raw: Mapping[str, Any], name: str, hint: str) -> FieldError:
    misspelt = nearest(name, (key for key in raw if isinstance(key, str)))
    hint = f"rename {misspelt} to {name}" if misspelt else hint
    return FieldError.at((name,), "required but missing", hint, ErrorCode.REQUIRED)


def _check_name_is_set(raw: Mapping[str, Any]) -> Iterator[FieldError]:
    """Demand metadata.name; its form is checked with the other fields."""
    metadata = raw.get("metadata", {})
    if isinstance(metadata, Mapping) and metadata.get("name") in (None, ""):
        hint = "add metadata.name"
        if "generateName" in metadata:
            hint = "generateName alone does not identify an object; add metadata.name"
        yield FieldError.at(("metadata", "name"), "required but missing", hint, ErrorCode.REQUIRED)


def _check_fields(raw: Mapping[str, Any], kind: Kind | None, said: Written) -> Iterator[FieldError]:
    """Check every field against the class of the kind, or the metadata alone without one."""
    if kind is not None:
        for detail in _faults(kind.model, raw):
            if detail["loc"] not in {("apiVersion",), ("kind",)}:
                yield translate(detail, kind, raw, said)
    elif isinstance(raw.get("metadata"), Mapping):
        for detail in _faults(ObjectMeta, raw["metadata"]):
            detail["loc"] = ("metadata", *detail["loc"])
            yield translate(detail, KINDS[0], raw, said)


def _faults(model: type[BaseModel], raw: Mapping[str, Any]) -> list[ErrorDetails]:
    try:
        # JSON mode: strict about numbers and text, yet arrays may become tuples.
        model.model_validate_json(json.dumps(raw))
    except ValidationError as faults:
        return faults.errors(include_url=False)
    return []


def _check_labels(raw: Mapping[str, Any]) -> Iterator[FieldError]:
    """Check keys and values of labels and node selectors by Kubernetes' rules."""
    for path in _LABEL_PATHS:
        labels = value_at(raw, path)
        if not isinstance(labels, Mapping):
            continue
        for key, value in labels.items():
            yield from _check_label_key((*path, key), key)
            if not isinstance(value, str) or not value:
                continue
            if len(value) > _LONGEST_LABEL:
                message = f"has {len(value)} characters; at most {_LONGEST_LABEL} are allowed"
                yield FieldError.at((*path, key), message, "use an annotation for long text")
            elif not _LABEL_TEXT.fullmatch(value):
                yield FieldError.at(
                    (*path, key), f"{show(value)} is not a label value: {_LABEL_RULE}"
                )


def _check_label_key(path: Path, key: str) -> Iterator[FieldError]:
    prefix, slash, name = key.rpartition("/")
    if slash and (not _LABEL_PREFIX.fullmatch(prefix) or len(prefix) > _LONGEST_PREFIX):
        yield FieldError.at(path, f"the part before '/' of the key {show(key)} is no domain name")
    elif len(name) > _LONGEST_LABEL:
        message = f"the key has {len(name)} characters; at most {_LONGEST_LABEL} are allowed"
        yield FieldError.at(path, message)
    elif not _LABEL_TEXT.fullmatch(name):
        yield FieldError.at(path, f"{show(key)} is not a valid key: {_LABEL_RULE}")


def _check_annotations(raw: Mapping[str, Any]) -> Iterator[FieldError]:
    path: Path = ("metadata", "annotations")
    annotations = value_at(raw, path)
    if not isinstance(annotations, Mapping):
        return
    for key in annotations:
        yield from _check_label_key((*path, key), key)
    total = sum(len(f"{key}{value}".encode()) for key, value in annotations.items())
    if total > _MAX_ANNOTATIONS_BYTES:
        message = f"{total} bytes in all; at most {_MAX_ANNOTATIONS_BYTES} are allowed"
        yield FieldError.at(path, message)


def _check_keyed_lists(raw: Mapping[str, Any]) -> Iterator[FieldError]:
    """Refuse repeats in lists whose items are told apart by a key."""
    if raw.get("kind") in {"Model", "Route"}:
        seen = {value_at(raw, ("metadata", "name")): f"the {str(raw['kind']).lower()}'s own name"}
        for index, alias in enumerate(_items(raw, "aliases")):
            path: Path = ("spec", "aliases", index)
            if alias == "":
                yield FieldError.at(path, "must not be empty")
            elif isinstance(alias, str) and alias in seen:
                yield FieldError.at(path, f"{show(alias)} repeats {seen[alias]}", "remove it")
            elif isinstance(alias, str):
                seen[alias] = format_path(path)
    if raw.get("kind") == "Route":
        yield from _check_backends(raw)
    if raw.get("kind") == "Node":
        marks: dict[tuple[str, str], str] = {}
        for index, taint in enumerate(_items(raw, "taints")):
            if not isinstance(taint, Mapping):
                continue
            mark = (str(taint.get("key")), str(taint.get("effect", "NoSchedule")))
            path = ("spec", "taints", index)
            if mark in marks:
                message = f"repeats the key and effect of {marks[mark]}"
                yield FieldError.at(path, message, "keep one of the two")
            marks.setdefault(mark, format_path(path))


def _check_backends(raw: Mapping[str, Any]) -> Iterator[FieldError]:
    """Refuse a Model named twice in one list, and weights that are all zero."""
    rules = [("spec", "rules", index, "backends") for index, _ in enumerate(_items(raw, "rules"))]
    for path in (("spec", "backends"), *rules):
        backends = value_at(raw, path)
        if not isinstance(backends, list):
            continue
        yield from _check_repeats(
            (*path,), [value_at(item, ("model",)) for item in backends], "model"
        )
        weights = [
            item.get("weight", 1) if isinstance(item, Mapping) else None for item in backends
        ]
        if weights and all(weight == 0 and weight is not False for weight in weights):
            yield FieldError.at(path, "every weight is 0", "give one of them a weight above 0")
    fallbacks: Path = ("spec", "fallbacks")
    yield from _check_repeats(fallbacks, _items(raw, "fallbacks"), "")


def _check_repeats(path: Path, names: list[Any], field: str) -> Iterator[FieldError]:
    seen: dict[str, str] = {}
    for index, name in enumerate(names):
        place: Path = (*path, index, field) if field else (*path, index)
        if isinstance(name, str) and name in seen:
            yield FieldError.at(place, f"{show(name)} repeats {seen[name]}", "remove it")
        elif isinstance(name, str):
            seen[name] = format_path(place)


def _items(raw: Mapping[str, Any], name: str) -> list[Any]:
    items = value_at(raw, ("spec", name))
    return items if isinstance(items, list) else []


def _drop_echoes(errors: list[FieldError]) -> list[FieldError]:
    """Keep one error per path, and none for a missing field that is there but misspelt."""
    renamed = {
        (*error.steps[:-1], error.suggestion[len("did you mean ") : -1])
        for error in errors
        if error.code is ErrorCode.UNKNOWN and error.suggestion.startswith("did you mean ")
    }
    kept: dict[Path, FieldError] = {}
    for error in errors:
        if not (error.code is ErrorCode.REQUIRED and error.steps in renamed):
            kept.setdefault(error.steps, error)
    return list(kept.values())


def _in_document_order(raw: Mapping[str, Any], errors: list[FieldError]) -> tuple[FieldError, ...]:
    return tuple(sorted(errors, key=lambda error: _position(raw, error.steps)))


def _position(value: Any, path: Path) -> tuple[int, ...]:
    """Return the place of a path in the order its object was written; missing fields first."""
    places: list[int] = []
    for step in path:
        if isinstance(step, int):
            places.append(step)
        else:
            keys = list(value) if isinstance(value, Mapping) else []
            places.append(keys.index(step) if step in keys else -1)
        value = value_at(value, (step,))
    return tuple(places)
