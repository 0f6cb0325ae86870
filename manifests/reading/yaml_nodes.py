"""YAML documents as trees that remember where each key and value stands.

Owns the walk over the parser's events: duplicate keys, aliases, tags, and the limits that keep
a small file from becoming a large object. It knows nothing of kinds. Called by `reading.load`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

from manifests.reading.field_errors import Path
from manifests.reading.yaml_scalars import Scalar, read_plain
from manifests.reading.yaml_syntax import Fault, Mark, explain_syntax

MAX_DEPTH = 100
MAX_VALUES = 100_000
MAX_CHARACTERS = 4 * 1024 * 1024
MAX_FAULTS = 1000
_MAX_BROKEN_DOCUMENTS = 20

# libyaml is many times faster, and present in every wheel; the pure parser gives the same events.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_CORE = "tag:yaml.org,2002:"


@dataclass(slots=True)
class Node:
    """One value: a scalar, or a collection in `items`. Aliases share the node of their anchor.

    `values` and `characters` measure it with every alias expanded; `height` is its nesting.
    """

    mark: Mark
    value: Scalar = None
    written: str = ""
    plain: bool = False
    items: "dict[str, tuple[Mark, Node]] | list[Node] | None" = None
    values: int = 1
    characters: int = 0
    height: int = 0

    def measure(self, child: "Node") -> None:
        """Count a child's size into this node's."""
        self.values += child.values
        self.characters += child.characters
        self.height = max(self.height, child.height + 1)

    def to_plain(self) -> Any:
        """Return the value as dicts, lists and scalars of its own, sharing nothing."""
        if isinstance(self.items, dict):
            return {key: node.to_plain() for key, (_, node) in self.items.items()}
        if isinstance(self.items, list):
            return [node.to_plain() for node in self.items]
        return self.value

    def child(self, step: str | int) -> "tuple[Mark, Node] | None":
        """Return the mark of a key (or item) and its node, or None."""
        if isinstance(self.items, dict) and isinstance(step, str):
            return self.items.get(step)
        if isinstance(self.items, list) and isinstance(step, int) and step < len(self.items):
            return self.items[step].mark, self.items[step]
        return None


@dataclass(frozen=True, slots=True)
class Document:
    """One document of a stream; numbers count from 1, empty documents included."""

    number: int
    root: Node | None
    faults: tuple[Fault, ...] = ()


@dataclass(slots=True)
class _Frame:
    """A collection whose end has not been seen."""

    node: Node
    anchor: str | None
    key: str | None = None
    key_mark: Mark | None = None


class _LimitError(Exception):
    """The document is larger than allowed, or refers to itself."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.message)
        self.fault = fault


@dataclass(slots=True)
class _Spent:
    """What a whole stream has used of its limits, aliases expanded."""

    values: int = 0
    characters: int = 0
    faults: int = 0


@dataclass(slots=True)
class _Builder:
    """Builds the tree of one document from its events, without recursion."""

    line_offset: int
    spent: _Spent
    root: Node | None = None
    faults: list[Fault] = field(default_factory=list)
    stack: list[_Frame] = field(default_factory=list)
    anchors: dict[str, Node] = field(default_factory=dict)

    def take(self, event: Any) -> None:
        """Add one event to the tree. Raises _LimitError."""
        mark = Mark(event.start_mark.line + 1 + self.line_offset, event.start_mark.column + 1)
        if isinstance(event, yaml.ScalarEvent):
            self._place(self._scalar(event, mark), event.anchor)
        elif isinstance(event, yaml.CollectionStartEvent):
            self._open(event, mark)
        elif isinstance(event, yaml.CollectionEndEvent):
            frame = self.stack.pop()
            self._place(frame.node, frame.anchor)
        elif isinstance(event, yaml.AliasEvent):
            self._alias(str(event.anchor), mark)

    def _open(self, event: Any, mark: Mark) -> None:
        is_map = isinstance(event, yaml.MappingStartEvent)
        own_tag = _CORE + ("map" if is_map else "seq")
        if event.tag not in {None, "!", own_tag}:
            self._refuse_tag(event.tag, mark)
        if len(self.stack) >= MAX_DEPTH:
            self._stop(mark, f"nested more than {MAX_DEPTH} levels deep")
        node = Node(mark, items={} if is_map else [])
        self._spend(node, mark)
        self.stack.append(_Frame(node, event.anchor))

    def _scalar(self, event: Any, mark: Mark) -> Node:
        text, tag = event.value, event.tag
        plain = bool(event.implicit[0]) and tag is None
        node = Node(mark, value=text, written=text, plain=plain, characters=len(text))
        if tag not in {None, "!", _CORE + "str"}:
            self._refuse_tag(tag, mark)
        elif plain and not self._expects_key():
            reading = read_plain(text)
            node.value = reading.value
            if reading.fault:
                self._fault(mark, reading.fault, reading.hint)
        self._spend(node, mark)
        return node

    def _alias(self, name: str, mark: Mark) -> None:
        node = self.anchors.get(name)
        if any(frame.anchor == name for frame in self.stack):
            self._stop(mark, f"*{name} refers to a value that contains it")
        if node is None:
            self._fault(mark, f"*{name} has no &{name} before it", f'quote it if text: "*{name}"')
            node = Node(mark, value=f"*{name}", written=f"*{name}")
        if len(self.stack) + node.height > MAX_DEPTH:
            self._stop(mark, f"nested more than {MAX_DEPTH} levels deep")
        self._spend(node, mark)
        self._place(node, None, mark)

    def _place(self, node: Node, anchor: str | None, alias_mark: Mark | None = None) -> None:
        """Put a finished node into the collection it belongs to."""
        if anchor is not None:
            self.anchors[anchor] = node
        if not self.stack:
            self.root = node
            return
        frame, mark = self.stack[-1], alias_mark or node.mark
        if self._expects_key():
            self._take_key(frame, node, mark)
            return
        frame.node.measure(node)
        if isinstance(frame.node.items, list):
            frame.node.items.append(node)
        elif isinstance(frame.node.items, dict):
            # A repeated or unusable key keeps its first value; its fault is already noted.
            if frame.key is not None and frame.key_mark is not None:
                frame.node.items.setdefault(frame.key, (frame.key_mark, node))
            frame.key = frame.key_mark = None

    def _expects_key(self) -> bool:
        return (
            bool(self.stack)
            and isinstance(self.stack[-1].node.items, dict)
            and self.stack[-1].key_mark is None
        )

    def _take_key(self, frame: _Frame, node: Node, mark: Mark) -> None:
        frame.key_mark = mark
        frame.node.measure(node)
        if node.items is not None:
            hint = "quote text that begins with a brace, a bracket or '? '"
            self._fault(mark, "a key must be text", hint)
            return
        key = frame.key = node.written
        if node.plain and key == "<<":
            frame.key = None
            self._fault(mark, "merge keys (<<) are not supported", "write the fields out")
            return
        if node.plain and not isinstance(read_plain(key).value, str):
            message = f"the key {key or '(nothing)'} is not text"
            self._fault(mark, message, f'quote it: "{key}"', spoils=False)
        items = frame.node.items
        if isinstance(items, dict) and key in items:
            first = items[key][0]
            message = f"the key {key} is already set in line {first.line}"
            self._fault(mark, message, "keep one of the two", spoils=False)

    def _spend(self, node: Node, mark: Mark) -> None:
        self.spent.values += node.values
        self.spent.characters += node.characters
        if self.spent.values > MAX_VALUES:
            self._stop(mark, f"expands to more than {MAX_VALUES} values")
        if self.spent.characters > MAX_CHARACTERS:
            self._stop(mark, f"expands to more than {MAX_CHARACTERS} characters")

    def _refuse_tag(self, tag: str, mark: Mark) -> None:
        shown = tag.replace(_CORE, "!!")
        self._fault(mark, f"the tag {shown} is not supported", "remove it")

    def _path(self) -> Path:
        steps: list[str | int] = []
        for frame in self.stack:
            if isinstance(frame.node.items, list):
                steps.append(len(frame.node.items))
            elif frame.key is not None:
                steps.append(frame.key)
        return tuple(steps)

    def _fault(self, mark: Mark, message: str, hint: str = "", *, spoils: bool = True) -> None:
        self.faults.append(Fault(mark, message, hint, self._path(), spoils))
        self.spent.faults += 1
        if self.spent.faults >= MAX_FAULTS:
            self._stop(mark, f"more than {MAX_FAULTS} faults; the rest is not shown")

    def _stop(self, mark: Mark, message: str) -> None:
        raise _LimitError(Fault(mark, message, "", self._path()[:3]))


def read_documents(text: str) -> Iterator[Document]:
    """Yield every document of a YAML stream, empty ones with no root.

    After a fault in the syntax, reading goes on at the next `---`, so that one bad document
    does not hide the faults of the others. After a breach of a limit it ends.
    """
    number, line_offset, lines, spent = 0, 0, text.split("\n"), _Spent()
    for _ in range(_MAX_BROKEN_DOCUMENTS):
        builder = _Builder(line_offset, spent)
        try:
            for event in yaml.parse("\n".join(lines[line_offset:]), Loader=_LOADER):
                if isinstance(event, yaml.DocumentStartEvent):
                    builder = _Builder(line_offset, spent)
                elif isinstance(event, yaml.DocumentEndEvent):
                    number += 1
                    yield _finish(number, builder)
                else:
                    builder.take(event)
        except _LimitError as limit:
            yield Document(number + 1, None, (*builder.faults, limit.fault))
            return
        except yaml.YAMLError as fault:
            number += 1
            found = explain_syntax(fault, lines, line_offset)
            yield Document(number, None, (*builder.faults, found))
            following = _next_document(lines, max(found.mark.line - 1, line_offset + 1))
            if following is None:
                return
            line_offset = following
        else:
            return


def _finish(number: int, builder: _Builder) -> Document:
    root = builder.root
    empty = root is None or (root.items is None and root.plain and root.value is None)
    return Document(number, None if empty else root, tuple(builder.faults))


def _next_document(lines: list[str], start: int) -> int | None:
    """Return the index of the first document marker from an index on, or None."""
    for index in range(start, len(lines)):
        if lines[index].startswith("---") and lines[index][3:4] in {"", " ", "\t"}:
            return index
    return None
