"""What an unknown name most likely meant: nearest field, right place, right kind.

Pure look-ups over the declared classes; validation turns the answers into messages.
"""

import difflib
import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, get_args

from pydantic import BaseModel

from manifests.kinds.scheme import KINDS, Kind, resolve_kind
from manifests.reading.field_errors import Path, format_path

_CLOSE_ENOUGH = 0.7
_MAX_LISTED = 12
# What people write in good faith and must not, with what to do instead.
_ADVICE: dict[tuple[str, Path], str] = {
    ("ApiKey", ("spec", "secret")): (
        "a secret is never stored: remove it here and anywhere it was saved, and let `mlxctl "
        "create key NAME` make one, or set hash to the SHA-256 of a long random secret in hex"
    ),
}


def nearest(word: str, known: Iterable[str]) -> str:
    """Return the known name that `word` most likely meant, or an empty string."""
    by_folded = {_fold(name): name for name in known}
    folded = _fold(word)
    if folded in by_folded:
        return by_folded[folded]
    close = difflib.get_close_matches(folded[:100], by_folded, n=1, cutoff=_CLOSE_ENOUGH)
    return by_folded[close[0]] if close else ""


def nearest_kind(word: str) -> str:
    """Return the kind that a plural, short or misspelt name means, or an empty string."""
    kind = resolve_kind(word)
    return kind.name if kind is not None else nearest(word, (item.name for item in KINDS))


def fields_of(model: type[BaseModel]) -> dict[str, Any]:
    """Return the annotation of each field by the name users write."""
    return {info.alias or name: info.annotation for name, info in model.model_fields.items()}


def model_at(model: type[BaseModel], path: Path) -> type[BaseModel] | None:
    """Return the class that describes the mapping at `path`, or None for a free-form one."""
    found: type[BaseModel] | None = model
    for step in path:
        if isinstance(step, int):
            continue
        if found is None:
            return None
        found = _nested(fields_of(found).get(step))
    return found


def advise(kind: Kind, path: Path) -> str:
    """Say what to do instead of writing a field that must never be stored; empty for others."""
    return _ADVICE.get((kind.name, path), "")


def suggest_field(kind: Kind, parent: Path, name: str) -> str:
    """Say what the unknown field `name` under `parent` of a kind should have been.

    Tries, in turn: the same name elsewhere in the kind, a near name here, the same name in
    another kind, a near name elsewhere; else lists what is known here.
    """
    model = model_at(kind.model, parent)
    here = tuple(fields_of(model)) if model is not None else ()
    near = nearest(name, here)
    elsewhere = _places(kind.name)
    if name in elsewhere:
        return f"{name} belongs in {_name_places(elsewhere[name])}"
    if near:
        return f"did you mean {near}?"
    for other in KINDS:
        if other.declared_by_users and other is not kind and name in _places(other.name):
            where = format_path(_places(other.name)[name][0])
            return f"{name} is a field of {other.name} ({where})"
    far = nearest(name, elsewhere)
    if far:
        return f"did you mean {' or '.join(format_path(path) for path in elsewhere[far][:2])}?"
    if 0 < len(here) <= _MAX_LISTED:
        return f"the fields here are {', '.join(here)}"
    return ""


def _fold(name: str) -> str:
    return re.sub(r"[-_ ]", "", name).lower()


def _name_places(paths: tuple[Path, ...]) -> str:
    return " or ".join(format_path(path[:-1]) or "the top level" for path in paths[:2])


def _nested(annotation: Any) -> type[BaseModel] | None:
    """Return the model inside an annotation such as `X | None` or `list[X]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_nested, get_args(annotation))), None)


@cache
def _places(kind_name: str) -> dict[str, tuple[Path, ...]]:
    """Return, by field name, every path of a kind that users may write, shallow ones first."""
    kind = next(item for item in KINDS if item.name == kind_name)
    places: dict[str, list[Path]] = {}
    for path in sorted(_walk(kind.model, ()), key=len):
        # Names of bookkeeping and of what programs report would only mislead.
        if path[0] == "status" or path[:2] in {
            ("metadata", "managedFields"),
            ("metadata", "ownerReferences"),
        }:
            continue
        places.setdefault(str(path[-1]), []).append(path)
    return {name: tuple(paths) for name, paths in places.items()}


def _walk(model: type[BaseModel], prefix: Path) -> Iterator[Path]:
    for name, annotation in fields_of(model).items():
        path = (*prefix, name)
        yield path
        inner = _nested(annotation)
        if inner is not None:
            yield from _walk(inner, path)
