"""Small files that would become large objects are refused fast and small (B87)."""

import time
import tracemalloc
from itertools import pairwise

import pytest

from manifests.reading.load import load_text
from manifests.reading.yaml_text import MAX_BYTES

ONE_MIB = 1 << 20


def alias_bomb() -> str:
    levels = "abcdefghij"
    text = "a: &a [x, x, x, x, x, x, x, x, x]\n"
    for inner, outer in pairwise(levels):
        text += f"{outer}: &{outer} [{', '.join(['*' + inner] * 9)}]\n"
    return text


def many_small_bombs() -> str:
    inner, outer = ",".join("1" * 300), ",".join(["*a"] * 300)
    return f"a: &a [{inner}]\nb: [{outer}]\n---\n" * 1000


def long_text_repeated() -> str:
    return "a: &a " + "x" * ONE_MIB + "\nb: [" + "*a, " * 1000 + "]\n"


def alias_chain() -> str:
    text = "x0: &x0 1\n"
    for level in range(1, 60):
        text += f"x{level}: &x{level} {'[' * 50}*x{level - 1}{']' * 50}\n"
    return text


HOSTILE = {
    "a chain of aliases": (alias_chain(), "nested more than 100 levels deep"),
    "an alias bomb": (alias_bomb(), "expands to more than 100000 values"),
    "many small bombs": (many_small_bombs(), "expands to more than 100000 values"),
    "long text repeated": (long_text_repeated(), "expands to more than 4194304 characters"),
    "a recursive alias": ("a: &a [*a]\n", "*a refers to a value that contains it"),
    "a recursive mapping": ("&a {b: {c: *a}}\n", "*a refers to a value that contains it"),
    "open brackets": ("[" * 100_000, "nested"),
    "open braces": ("{a: " * 100_000, "nested more than 100 levels deep"),
    "dashes": ("- " * (ONE_MIB // 2), "nested more than 100 levels deep"),
    "question marks": ("? " * (ONE_MIB // 2), "nested more than 100 levels deep"),
    "depth through aliases": (
        "a: &a " + "[" * 60 + "]" * 60 + "\nb: " + "[" * 60 + "*a" + "]" * 60,
        "nested more than 100 levels deep",
    ),
    "a large file": ("#" * (MAX_BYTES + 1), "larger than 4 MiB"),
    "a long key": ("k" * (2 * ONE_MIB) + ": 1\n", "not expected here"),
    "many documents": ("---\n" * ONE_MIB, "expands to more than 100000 values"),
    "many values": ("[" + "a," * ONE_MIB + "]", "expands to more than 100000 values"),
    "many broken documents": ("---\n[\n" * 100_000, "not YAML"),
    "many repeated keys": ("a: 1\n" * 90_000, "more than 1000 faults"),
    "many bad objects": (
        "apiVersion: v1\nkind: List\nitems:\n" + "- {a: 1}\n" * 30_000,
        "more than 1000 faults",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_is_refused_within_a_second(name: str) -> None:
    text, part = HOSTILE[name]
    began = time.process_time()
    result = load_text(text, "f.yaml")
    spent_seconds = time.process_time() - began
    assert result.objects == ()
    assert any(part in error.message for error in result.errors), result.errors[:3]
    assert len(result.errors) < 1200
    # A second on an idle machine; the rest is room for a busy one.
    assert spent_seconds < 5


@pytest.mark.parametrize(
    "name",
    ["an alias bomb", "long text repeated", "depth through aliases", "many values", "dashes"],
)
def test_hostile_text_takes_little_memory(name: str) -> None:
    tracemalloc.start()
    try:
        load_text(HOSTILE[name][0])
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 100 * ONE_MIB


def test_a_few_nested_anchors_are_no_bomb() -> None:
    text = (
        "apiVersion: mlxfleet.dev/v1alpha1\nkind: Model\nmetadata: {name: a}\n"
        "spec:\n  source: {path: /x}\n"
        "  chatTemplate: {variables: {a: &a {b: [1, 2]}, c: &c [*a, *a], d: {e: *c}}}\n"
    )
    (loaded,) = load_text(text).objects
    variables = loaded.raw["spec"]["chatTemplate"]["variables"]
    assert variables["d"]["e"] == [{"b": [1, 2]}, {"b": [1, 2]}]
    assert variables["d"]["e"][0] is not variables["a"]
