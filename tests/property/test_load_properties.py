"""Loading as a whole: round trips, no exceptions on any bytes, lines that point at the fault."""

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from manifests.kinds.scheme import dump_object, parse_object
from manifests.reading.dump import dump_yaml
from manifests.reading.load import load_text
from manifests.reading.strict_json import parse_json_strict
from manifests.reading.validate import validate_object

API = "mlxfleet.dev/v1alpha1"
MARKS = (
    *("a", ": ", "\n", "  ", "- ", "[", "]", "{", "}", ",", "&x ", "*x", "'", '"', "|\n", "? "),
    *("!!str ", "!t ", "---\n", "...\n", "#", "\t", "<<", "0755", "%YAML 1.1\n", "\ufeff", "\r"),
    *("@", "kind: Model\n", "kind: List\n", "items:\n", "spec:\n", "metadata:\n", "name: "),
)

names = st.from_regex(r"[a-z0-9]([a-z0-9.-]{0,20}[a-z0-9])?", fullmatch=True)
mistakable = st.sampled_from(["1e3", "no", "0755", "12:30", "~", "", ".nan", "2026-01-01", "<<"])
texts = mistakable | st.text(st.characters(codec="utf-8"), max_size=30)
label_values = st.from_regex(r"([A-Za-z0-9]([A-Za-z0-9._-]{0,20}[A-Za-z0-9])?)?", fullmatch=True)
quantities = st.one_of(
    st.integers(0, 1 << 50),
    st.builds("{}{}".format, st.integers(0, 9999), st.sampled_from(["", "Ki", "Mi", "Gi", "G"])),
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 53), 1 << 53) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
models = st.fixed_dictionaries(
    {"source": st.fixed_dictionaries({"path": texts})},
    optional={
        "replicas": st.integers(0, 1000),
        "engineType": st.sampled_from(["batched", "speculative"]),
        "nodeSelector": st.dictionaries(names, label_values, max_size=3),
        "sampling": st.fixed_dictionaries({"temperature": st.floats(0, 2)}),
        "chatTemplate": st.fixed_dictionaries(
            {"variables": st.dictionaries(texts, json_values, max_size=3)}
        ),
        "keep": st.fixed_dictionaries(
            {"pinned": st.booleans()}, optional={"idleTTL": st.sampled_from(["0", "5m", "1h30m"])}
        ),
    },
)
guards = st.fixed_dictionaries(
    {}, optional={"staticReserve": quantities, "tier": st.sampled_from(["safe", "aggressive"])}
)


@st.composite
def objects(draw: st.DrawFn) -> dict[str, Any]:
    kind, spec = draw(
        st.one_of(st.tuples(st.just("Model"), models), st.tuples(st.just("MemoryGuard"), guards))
    )
    metadata = {
        "name": draw(names),
        "labels": draw(st.dictionaries(names, label_values, max_size=3)),
        "annotations": draw(st.dictionaries(names, texts, max_size=3)),
    }
    return {"apiVersion": API, "kind": kind, "metadata": metadata, "spec": spec}


@given(objects())
def test_what_is_dumped_as_yaml_or_json_loads_as_the_same_object(raw: dict[str, Any]) -> None:
    assert validate_object(raw) == ()
    for text in (
        dump_yaml([raw]),
        json.dumps(raw),
        json.dumps(raw, indent="\t"),
    ):
        result = load_text(text)
        assert result.errors == (), [error.render() for error in result.errors]
        assert result.objects[0].raw == raw
        assert result.objects[0].obj == parse_object(raw)
    assert parse_json_strict(json.dumps(raw).encode()) == raw


@given(objects())
def test_an_object_with_its_defaults_filled_in_is_still_valid(raw: dict[str, Any]) -> None:
    filled = dump_object(parse_object(raw))
    assert validate_object(filled) == ()
    assert parse_object(filled) == parse_object(raw)


@given(st.binary(max_size=200) | st.text(max_size=200))
def test_no_bytes_raise(body: bytes | str) -> None:
    result = load_text(body)
    assert result.objects or result.errors
    for error in result.errors:
        assert error.render()


@given(st.lists(st.sampled_from(MARKS), max_size=40).map("".join))
@settings(max_examples=300)
def test_no_arrangement_of_yaml_marks_raises(text: str) -> None:
    result = load_text(text)
    assert result.objects or result.errors


@given(json_values | objects())
def test_no_json_value_makes_validation_raise(value: Any) -> None:
    for error in validate_object(value):
        assert str(error)


@given(objects(), st.data())
def test_a_fault_is_reported_at_the_line_of_its_key(
    raw: dict[str, Any], data: st.DataObject
) -> None:
    fields = [*raw["spec"].items(), ("zzzz", data.draw(json_values))]
    raw["spec"] = dict(data.draw(st.permutations(fields)))
    text = dump_yaml([raw])
    (line,) = [n for n, row in enumerate(text.split("\n"), 1) if row.startswith("  zzzz:")]
    result = load_text(text)
    (error,) = result.errors
    assert (error.where.line, error.where.column, error.path) == (line, 3, "spec.zzzz")


@given(objects(), st.sampled_from(["\r\n", "\r"]), st.sampled_from(["", "\ufeff"]), st.booleans())
def test_line_endings_and_marks_do_not_change_the_objects(
    raw: dict[str, Any], ending: str, mark: str, twice: bool
) -> None:
    other = {**raw, "metadata": {"name": "other-" + raw["metadata"]["name"]}}
    plain = dump_yaml((raw, other)[: 1 + twice])
    clean, dressed = load_text(plain), load_text(mark + plain.replace("\n", ending))
    assert dressed.errors == clean.errors == ()
    assert [item.raw for item in dressed.objects] == [item.raw for item in clean.objects]
    assert [item.where for item in dressed.objects] == [item.where for item in clean.objects]
