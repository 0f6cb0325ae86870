"""Manifests from files, directories, standard input and text, as typed objects with places.

Owns which documents become objects and where each fault stands. It collects every fault of
every file and applies nothing; the rules about fields are those of `reading.validate`. Called by
the command line before anything is sent.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any, BinaryIO

from manifests.kinds.meta import FleetObject
from manifests.kinds.scheme import BY_NAME, parse_object
from manifests.reading.field_errors import ErrorCode, FieldError, Path, format_path
from manifests.reading.files import STDIN, read_files
from manifests.reading.validate import validate_object
from manifests.reading.yaml_nodes import MAX_FAULTS, Document, Node, read_documents
from manifests.reading.yaml_syntax import Mark
from manifests.reading.yaml_text import MAX_BYTES, TextError, decode

_MADE_BY_THE_FLEET = {
    "Engine": "declare a Model; the controller makes its Engines",
    "Event": "remove it; the fleet records events itself",
}


@dataclass(frozen=True, slots=True, order=True)
class Location:
    """A place in a file; lines, columns and documents count from 1, line 0 is the whole file."""

    file: str
    line: int = 0
    column: int = 0
    document: int = 0

    def __str__(self) -> str:
        name = "stdin" if self.file == STDIN else self.file
        return f"{name}:{self.line}:{self.column}" if self.line else name


@dataclass(frozen=True, slots=True, order=True)
class ManifestError:
    """One fault of a manifest. `subject` is the object as `Model/name`, empty when unknown."""

    where: Location
    path: str
    message: str
    suggestion: str = ""
    subject: str = ""

    def render(self) -> str:
        """Return one readable line: place, object, path, fault and what to do."""
        document = f"document {self.where.document}" if self.where.document else ""
        heading = [str(self.where), self.subject or document, self.path]
        text = f"{self.message}; {self.suggestion}" if self.suggestion else self.message
        return f"{' '.join(filter(None, heading))}: {text}"


@dataclass(frozen=True, slots=True)
class LoadedObject:
    """A valid object: as the user wrote it, typed, and where it begins."""

    raw: dict[str, Any]
    obj: FleetObject
    where: Location


@dataclass(frozen=True, slots=True)
class LoadResult:
    """Every valid object in the order read, and every fault by file and line.

    Apply nothing when there are errors: the objects are then only a part of what was meant.
    """

    objects: tuple[LoadedObject, ...]
    errors: tuple[ManifestError, ...]


@dataclass(frozen=True, slots=True)
class _Item:
    """One object of a document, valid or not. `prefix` leads to it inside a List."""

    node: Node
    where: Location
    raw: Any
    prefix: Path = ()

    @property
    def identity(self) -> tuple[str, str] | None:
        raw = self.raw if isinstance(self.raw, dict) else {}
        metadata = raw.get("metadata")
        kind = raw.get("kind")
        name = metadata.get("name") if isinstance(metadata, dict) else None
        return (kind, name) if isinstance(kind, str) and isinstance(name, str) else None

    @property
    def subject(self) -> str:
        return "/".join(self.identity) if self.identity else ""

    @property
    def is_model(self) -> bool:
        return isinstance(self.raw, dict) and self.raw.get("kind") == "Model"

    def written(self, steps: Path) -> str | None:
        """Return the text of an unquoted scalar as it stands in the file."""
        node = self.node
        for step in steps:
            entry = node.child(step)
            if entry is None:
                return None
            node = entry[1]
        return node.written if node.plain else None

    def echoes(self, found: FieldError, spoilt: set[Path], broken: set[Mark]) -> bool:
        """Whether a field's error only repeats a fault in the text, seen here or at an anchor."""
        path = (*self.prefix, *found.steps)
        if path in spoilt or (found.code is ErrorCode.REQUIRED and path[:-1] in spoilt):
            return True
        places = {_find_mark(self.node, found.steps, of_key=choice) for choice in (True, False)}
        return not places.isdisjoint(broken)

    def error(self, found: FieldError) -> ManifestError:
        """Return a field's error with its place in the file."""
        mark = _find_mark(self.node, found.steps, of_key=found.code is ErrorCode.UNKNOWN)
        where = Location(self.where.file, mark.line, mark.column, self.where.document)
        return ManifestError(where, found.path, found.message, found.suggestion, self.subject)


def load_paths(paths: Iterable[str | FilePath], stdin: BinaryIO | None = None) -> LoadResult:
    """Load every manifest under the paths; `-` is standard input. Bad input gives errors.

    A file named by the user must hold an object; one found in a directory may be empty.
    """
    loading = _Loading()
    for file in read_files(paths, stdin, MAX_BYTES):
        if file.fault:
            loading.errors.append(ManifestError(Location(file.name), "", file.fault))
        else:
            loading.add(file.name, file.body, must_hold=file.named)
    return loading.conclude()


def load_text(text: str | bytes, file: str = STDIN) -> LoadResult:
    """Load the manifests in a text; `file` is the name that errors give it."""
    loading = _Loading()
    loading.add(file, text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text)
    return loading.conclude()


class _Loading:
    """Collects the objects and the faults of one call."""

    def __init__(self) -> None:
        self.errors: list[ManifestError] = []
        self._objects: list[LoadedObject] = []
        self._items: list[_Item] = []

    def add(self, name: str, body: bytes, *, must_hold: bool = True) -> None:
        """Read one file."""
        try:
            text = decode(body)
        except TextError as fault:
            where = Location(name, fault.line, fault.column)
            self.errors.append(ManifestError(where, "", fault.message, fault.hint))
            return
        before = len(self._items), len(self.errors)
        for document in read_documents(text):
            if len(self.errors) > MAX_FAULTS:
                break
            self._add_document(name, document)
        if must_hold and before == (len(self._items), len(self.errors)):
            self.errors.append(ManifestError(Location(name), "", "holds no object"))

    def conclude(self) -> LoadResult:
        """Compare the objects with each other and return what was found."""
        self.errors += _find_repeated_objects(self._items)
        self.errors += _find_repeated_aliases(self._items)
        kept: dict[tuple[str, str | None], LoadedObject] = {}
        for item in self._objects:
            kept.setdefault((item.obj.kind, item.obj.metadata.name), item)
        return LoadResult(tuple(kept.values()), tuple(sorted(self.errors)))

    def _add_document(self, name: str, document: Document) -> None:
        items = list(self._unpack(name, document))
        owners = {item.prefix: item for item in items}
        damaged: set[Path] = set()
        for fault in document.faults:
            # An item of a List is two steps further down: items, index.
            prefixes = (fault.path[:length] for length in range(0, len(fault.path) + 1, 2))
            owner = next((owners[prefix] for prefix in prefixes if prefix in owners), None)
            where = Location(name, fault.mark.line, fault.mark.column, document.number)
            path, subject = fault.path, ""
            if owner is not None:
                path, subject = path[len(owner.prefix) :], owner.subject
                damaged.add(owner.prefix)
            self.errors.append(
                ManifestError(where, format_path(path), fault.message, fault.hint, subject)
            )
        self._items += items
        spoiling = [fault for fault in document.faults if fault.spoils]
        spoilt, broken = {fault.path for fault in spoiling}, {fault.mark for fault in spoiling}
        for item in items:
            if len(self.errors) > MAX_FAULTS:
                message = f"more than {MAX_FAULTS} faults; the rest is not checked"
                self.errors.append(ManifestError(item.where, "", message))
                return
            found = [e for e in _check_item(item) if not item.echoes(e, spoilt, broken)]
            self.errors += [item.error(error) for error in found]
            if not found and item.prefix not in damaged:
                self._objects.append(LoadedObject(item.raw, parse_object(item.raw), item.where))

    def _unpack(self, name: str, document: Document) -> Iterator[_Item]:
        """Yield the objects of a document: itself, or the items of a List."""
        pending: list[tuple[Path, Node]] = [((), document.root)] if document.root else []
        while pending:
            prefix, node = pending.pop(0)
            where = Location(name, node.mark.line, node.mark.column, document.number)
            item = _Item(node, where, node.to_plain(), prefix)
            if not _is_list(item.raw):
                yield item
                continue
            self.errors += [item.error(error) for error in _check_list(item.raw)]
            entry = node.child("items")
            if entry is not None and isinstance(entry[1].items, list):
                pending += [
                    ((*prefix, "items", index), inner) for index, inner in enumerate(entry[1].items)
                ]


def _is_list(raw: Any) -> bool:
    kind = raw.get("kind") if isinstance(raw, dict) else None
    if not isinstance(kind, str) or not kind.endswith("List"):
        return False
    return kind == "List" or kind.removesuffix("List") in BY_NAME


def _check_list(raw: Mapping[str, Any]) -> Iterator[FieldError]:
    for key in raw:
        if key not in {"apiVersion", "kind", "metadata", "items"}:
            hint = "a List has apiVersion, kind and items"
            yield FieldError.at((key,), "unknown field", hint, ErrorCode.UNKNOWN)
    if "items" not in raw:
        yield FieldError.at(("items",), "required but missing", "add items", ErrorCode.REQUIRED)
    elif not isinstance(raw["items"], list):
        yield FieldError.at(("items",), "expected a list", "", ErrorCode.TYPE_INVALID)


def _check_item(item: _Item) -> Iterator[FieldError]:
    """Check one object, and whether users may declare its kind."""
    kind = item.raw.get("kind") if isinstance(item.raw, dict) else None
    if isinstance(kind, str) and kind in BY_NAME and not BY_NAME[kind].declared_by_users:
        message = f"{kind} objects are not declared by users"
        yield FieldError.at(("kind",), message, _MADE_BY_THE_FLEET[kind], ErrorCode.NOT_SUPPORTED)
        return
    yield from validate_object(item.raw, item.written)


def _find_repeated_objects(items: list[_Item]) -> Iterator[ManifestError]:
    first: dict[tuple[str, str], _Item] = {}
    for item in items:
        if item.identity is None:
            continue
        if item.identity in first:
            other = first[item.identity].where
            yield item.error(
                FieldError.at(
                    ("metadata", "name"), f"already declared at {other}", "rename or remove one"
                )
            )
        first.setdefault(item.identity, item)


def _find_repeated_aliases(items: list[_Item]) -> Iterator[ManifestError]:
    """Refuse an alias that is another model's name or alias: requests could mean either."""
    owners = {item.identity[1]: item for item in items if item.identity and item.is_model}
    for item in items:
        spec = item.raw.get("spec") if item.is_model else None
        aliases = spec.get("aliases") if isinstance(spec, dict) else None
        for index, alias in enumerate(aliases if isinstance(aliases, list) else []):
            if not isinstance(alias, str):
                continue
            owner = owners.setdefault(alias, item)
            if owner is not item and owner.identity != item.identity:
                message = f"{alias} is a name of {owner.subject} at {owner.where} too"
                yield item.error(
                    FieldError.at(("spec", "aliases", index), message, "choose another name")
                )


def _find_mark(node: Node, steps: Path, *, of_key: bool) -> Mark:
    """Return where a path stands; for a missing field, where the object around it does."""
    mark = node.mark
    for step in steps:
        entry = node.child(step)
        if entry is None:
            return mark
        mark, node = entry
    return mark if of_key or node.items is not None else node.mark
