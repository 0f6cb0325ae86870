"""Faults in the text of a manifest, and the parser's complaints in plain words.

Owns places, faults and the wording of syntax errors. Called by manifests.reading.yaml_nodes.
"""

import re
from dataclasses import dataclass

import yaml

from manifests.reading.field_errors import Path


@dataclass(frozen=True, slots=True, order=True)
class Mark:
    """A place in a file; lines and columns count from 1."""

    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with the text itself, apart from what its fields mean.

    `spoils`: there is no telling what the value at `path` was meant to be.
    """

    mark: Mark
    message: str
    hint: str = ""
    path: Path = ()
    spoils: bool = True


_NO_SPACE = re.compile(r"(\s*(?:- +)*[A-Za-z_][\w.-]*:)[^\s/:]\S*\s*(#.*)?")
# By a part of the parser's problem: what to say (with {line} of the opening), and the hint.
_WORDS: tuple[tuple[str, str, str], ...] = (
    ("did not find expected ',' or", "the bracket opened in line {line} is not closed", ""),
    ("unexpected end of stream", "the quote opened in line {line} is not closed", ""),
    ("unexpected document indicator", "the quote opened in line {line} is not closed", ""),
    (
        "mapping values are not allowed",
        "a ':' is not expected here",
        "check the indentation, or quote text that holds ': '",
    ),
    (
        "could not find expected ':'",
        "this line is no 'key: value'",
        "put a colon and a space after the key",
    ),
    (
        "did not find expected key",
        "this line does not fit the block that began in line {line}",
        "check its indentation",
    ),
    (
        "did not find expected '-' indicator",
        "a key stands where the list that began in line {line} goes on",
        "check the indentation",
    ),
    (
        "expected <document start>",
        "the document has ended before this line",
        "check the indentation and the brackets; separate documents with ---",
    ),
    (
        "unknown escape character",
        "unknown escape in double quotes",
        "use single quotes, or double the backslash",
    ),
    ("maximum nesting depth", "nested too deeply", ""),
    ("invalid Unicode character escape", "the escape names no character", ""),
)


def explain_syntax(fault: yaml.YAMLError, lines: list[str], line_offset: int) -> Fault:
    """Return a parser's error as a fault with its place in the whole file and a hint.

    `line_offset` is how many lines of the file lie above the text that was parsed.
    """
    problem_mark = getattr(fault, "problem_mark", None)
    if problem_mark is None:
        return Fault(Mark(line_offset + 1, 1), f"not YAML: {fault}")
    context_mark = getattr(fault, "context_mark", None) or problem_mark
    problem = str(getattr(fault, "problem", "") or "not YAML")
    mark = Mark(problem_mark.line + 1 + line_offset, problem_mark.column + 1)
    text = lines[mark.line - 1] if mark.line <= len(lines) else ""
    indentation = text[: len(text) - len(text.lstrip())]
    if "\t" in indentation:
        place = Mark(mark.line, indentation.index("\t") + 1)
        return Fault(place, "a tab is used for indentation", "use spaces")
    missing = _missing_space(lines, mark.line)
    if missing is not None and ("mapping values" in problem or "expected ':'" in problem):
        return Fault(missing, "no space after ':'", "write key: value")
    if "cannot start any token" in problem:
        sign = text[mark.column - 1 : mark.column]
        return Fault(mark, f"{sign!r} cannot begin a value", "quote the text")
    opened = context_mark.line + 1 + line_offset
    for part, words, hint in _WORDS:
        if part in problem:
            return Fault(mark, words.format(line=opened), hint)
    return Fault(mark, f"not YAML: {problem}")


def _missing_space(lines: list[str], line: int) -> Mark | None:
    """Find `key:value` in a line or the one above it, which reads as text."""
    for number in (line, line - 1):
        found = _NO_SPACE.fullmatch(lines[number - 1]) if 0 < number <= len(lines) else None
        if found is not None:
            return Mark(number, found.end(1) + 1)
    return None
