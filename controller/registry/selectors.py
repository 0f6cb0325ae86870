"""Label and field selectors: parsing and matching.

Owns the grammar of `labelSelector` and `fieldSelector`. Bad syntax is an error with a position,
never "match everything". An absent label matches `!=` and `notin`, as in Kubernetes.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

_TOKEN = re.compile(r"\s*(?:(?P<op>==|!=|=|!|,|\(|\))|(?P<word>[^\s=!,()<>]+))")
_KEY = re.compile(
    r"(?:(?P<prefix>[a-z0-9](?:[-a-z0-9.]*[a-z0-9])?)/)?[A-Za-z0-9](?:[-\w.]*[A-Za-z0-9])?",
    re.ASCII,
)
_VALUE = re.compile(r"(?:[A-Za-z0-9](?:[-\w.]*[A-Za-z0-9])?)?", re.ASCII)
_PART_LENGTH, _PREFIX_LENGTH = 63, 253


class SelectorError(ValueError):
    """A selector that cannot be read; says where."""

    def __init__(self, selector: str, position: int, problem: str) -> None:
        super().__init__(f"selector {selector!r}, position {position + 1}: {problem}")
        self.position = position


class Operator(StrEnum):
    """How a requirement compares."""

    IN = "in"
    NOT_IN = "notin"
    EXISTS = "exists"
    ABSENT = "!"


@dataclass(frozen=True, slots=True)
class Requirement:
    """One term of a label selector."""

    key: str
    operator: Operator
    values: frozenset[str] = frozenset()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether the labels satisfy this term."""
        if self.operator is Operator.EXISTS:
            return self.key in labels
        if self.operator is Operator.ABSENT:
            return self.key not in labels
        found = self.key in labels and labels[self.key] in self.values
        return found is (self.operator is Operator.IN)


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """All terms must hold; without terms everything matches."""

    requirements: tuple[Requirement, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether the labels satisfy every term."""
        return all(term.matches(labels) for term in self.requirements)


@dataclass(frozen=True, slots=True)
class FieldTerm:
    """One term of a field selector: `path` equals, or does not equal, `value`."""

    path: str
    value: str
    equal: bool


@dataclass(frozen=True, slots=True)
class FieldSelector:
    """All terms must hold; an absent field reads as the empty text."""

    terms: tuple[FieldTerm, ...] = ()

    def matches(self, obj: Mapping[str, Any]) -> bool:
        """Whether the object satisfies every term."""
        return all((read_field(obj, term.path) == term.value) is term.equal for term in self.terms)


@dataclass(frozen=True, slots=True)
class Selector:
    """A label and a field selector together."""

    labels: LabelSelector = LabelSelector()
    fields: FieldSelector = FieldSelector()

    def matches(self, obj: Mapping[str, Any]) -> bool:
        """Whether the object satisfies both."""
        metadata = obj.get("metadata") or {}
        return self.labels.matches(metadata.get("labels") or {}) and self.fields.matches(obj)


EVERYTHING = Selector()

FIELDS: Mapping[str, tuple[str, ...]] = {
    "engines": ("spec.node", "spec.model", "status.phase"),
    "nodes": ("spec.unschedulable",),
    "events": (
        "involvedObject.kind",
        "involvedObject.name",
        "involvedObject.namespace",
        "involvedObject.uid",
        "involvedObject.apiVersion",
        "type",
        "reason",
    ),
}
COMMON_FIELDS = ("metadata.name", "metadata.namespace")


def check_label_key(key: str) -> str | None:
    """Return what is wrong with a label key, or None."""
    match = _KEY.fullmatch(key)
    if match is None:
        return f"{key!r} is not a label key; write for example tier or example.com/tier"
    prefix = match["prefix"] or ""
    if len(prefix) > _PREFIX_LENGTH or len(key.rpartition("/")[2]) > _PART_LENGTH:
        return f"the label key {key[:20]!r}... is longer than {_PART_LENGTH} characters"
    return None


def check_label_value(value: str) -> str | None:
    """Return what is wrong with a label value, or None."""
    if len(value) > _PART_LENGTH:
        return f"the label value {value[:20]!r}... is longer than {_PART_LENGTH} characters"
    if _VALUE.fullmatch(value) is None:
        return f"{value!r} is not a label value; use letters, digits, '-', '_' and '.'"
    return None


def read_field(obj: Mapping[str, Any], path: str) -> str:
    """Return the field at a dotted path as text, empty when absent."""
    value: Any = obj
    for part in path.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return ""
        value = value[part]
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


def parse_label_selector(text: str) -> LabelSelector:
    """Return the selector that a text such as `env in (a, b),!old` means. Raises SelectorError."""
    return _LabelParser(text).parse()


def parse_field_selector(text: str, plural: str) -> FieldSelector:
    """Return the selector that a text such as `spec.node=mini` means. Raises SelectorError."""
    terms: list[FieldTerm] = []
    known = (*COMMON_FIELDS, *FIELDS.get(plural, ()))
    position = 0
    for part in text.split(",") if text.strip() else ():
        match = re.fullmatch(r"\s*(?P<path>[\w.]+)\s*(?P<op>==|!=|=)(?P<value>[^=!]*)", part)
        if match is None:
            raise SelectorError(text, position, "expected FIELD=VALUE or FIELD!=VALUE")
        if match["path"] not in known:
            choice = ", ".join(known)
            problem = f"field {match['path']!r} cannot be selected by; choose {choice}"
            raise SelectorError(text, position, problem)
        terms.append(FieldTerm(match["path"], match["value"].strip(), match["op"] != "!="))
        position += len(part) + 1
    return FieldSelector(tuple(terms))


@dataclass(frozen=True, slots=True)
class _Token:
    text: str
    position: int
    word: bool


class _LabelParser:
    """Recursive descent over the tokens of one label selector."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = self._split()
        self._index = 0

    def parse(self) -> LabelSelector:
        if not self._text.strip():
            return LabelSelector()
        terms = [self._requirement()]
        while not self._at_end():
            self._expect(",")
            terms.append(self._requirement())
        return LabelSelector(tuple(terms))

    def _split(self) -> list[_Token]:
        tokens: list[_Token] = []
        position, end = 0, len(self._text.rstrip())
        while position < end:
            match = _TOKEN.match(self._text, position)
            if match is None:
                bad = position + len(self._text[position:]) - len(self._text[position:].lstrip())
                problem = f"unexpected {self._text[bad]!r}; operators are = == != in notin ! exists"
                raise SelectorError(self._text, bad, problem)
            kind = "word" if match["word"] else "op"
            tokens.append(_Token(match[kind], match.start(kind), kind == "word"))
            position = match.end()
        return tokens

    def _requirement(self) -> Requirement:
        if self._take("!"):
            return Requirement(self._word(check_label_key, "a label key"), Operator.ABSENT)
        key = self._word(check_label_key, "a label key")
        if self._at_end() or self._peek(","):
            return Requirement(key, Operator.EXISTS)
        if self._take("=") or self._take("=="):
            return Requirement(key, Operator.IN, frozenset({self._value()}))
        if self._take("!="):
            return Requirement(key, Operator.NOT_IN, frozenset({self._value()}))
        if self._take("in"):
            return Requirement(key, Operator.IN, self._values())
        if self._take("notin"):
            return Requirement(key, Operator.NOT_IN, self._values())
        raise self._unexpected("an operator (= == != in notin) or ','")

    def _values(self) -> frozenset[str]:
        self._expect("(")
        values = {self._word(check_label_value, "a value")}
        while self._take(","):
            values.add(self._word(check_label_value, "a value"))
        self._expect(")")
        return frozenset(values)

    def _value(self) -> str:
        if self._at_end() or self._peek(","):
            return ""
        return self._word(check_label_value, "a value")

    def _word(self, check: Callable[[str], str | None], wanted: str) -> str:
        if self._at_end() or not self._tokens[self._index].word:
            raise self._unexpected(wanted)
        token = self._tokens[self._index]
        problem = check(token.text)
        if problem is not None:
            raise SelectorError(self._text, token.position, problem)
        self._index += 1
        return token.text

    def _at_end(self) -> bool:
        return self._index >= len(self._tokens)

    def _peek(self, text: str) -> bool:
        return not self._at_end() and self._tokens[self._index].text == text

    def _take(self, text: str) -> bool:
        found = self._peek(text)
        self._index += found
        return found

    def _expect(self, text: str) -> None:
        if not self._take(text):
            raise self._unexpected(repr(text))

    def _unexpected(self, wanted: str) -> SelectorError:
        if self._at_end():
            return SelectorError(self._text, len(self._text), f"expected {wanted}, found the end")
        token = self._tokens[self._index]
        return SelectorError(self._text, token.position, f"expected {wanted}, found {token.text!r}")
