"""What is wrong with one object, said so that its author can fix it (B75, B84)."""

import time
from typing import Any

import pytest

from manifests.kinds.scheme import KINDS
from manifests.reading.field_errors import ErrorCode, FieldError, format_path
from manifests.reading.validate import MAX_ERRORS, validate_object

API = "mlxfleet.dev/v1alpha1"


def model(spec: dict[str, Any] | None = None, **metadata: Any) -> dict[str, Any]:
    return {
        "apiVersion": API,
        "kind": "Model",
        "metadata": {"name": "smollm2", **metadata},
        "spec": {"source": {"path": "/models/a"}, **(spec or {})},
    }


def guard(**spec: Any) -> dict[str, Any]:
    return {"apiVersion": API, "kind": "MemoryGuard", "metadata": {"name": "g"}, "spec": spec}


def only(raw: Any) -> FieldError:
    errors = validate_object(raw)
    assert len(errors) == 1, [str(error) for error in errors]
    return errors[0]


@pytest.mark.parametrize(
    "raw",
    [
        model(),
        model({"replicas": 0, "sampling": {"temperature": 1, "topP": 0.5}}),
        model({"keep": {"idleTTL": "5m"}, "nodeSelector": {"mlxfleet.dev/chip": "m4"}}),
        model({"chatTemplate": {"variables": {"enable_thinking": False, "n": 1.5}}}),
        model(labels={"a": ""}, annotations={"note": "any text: {}"}, creationTimestamp=None),
        guard(tier="custom", customCeiling="40Gi"),
        {"apiVersion": API, "kind": "CacheBudget", "metadata": {"name": "c"}},
        {"apiVersion": API, "kind": "Node", "metadata": {"name": "n"}, "status": {"future": 1}},
    ],
)
def test_a_valid_object_has_no_errors(raw: dict[str, Any]) -> None:
    assert validate_object(raw) == ()


@pytest.mark.parametrize(
    ("spec", "path", "suggestion"),
    [
        ({"replcas": 3}, "spec.replcas", "did you mean replicas?"),
        ({"Replicas": 3}, "spec.Replicas", "did you mean replicas?"),
        ({"memory_guard": "g"}, "spec.memory_guard", "did you mean memoryGuard?"),
        ({"idleTTL": "5m"}, "spec.idleTTL", "idleTTL belongs in spec.keep"),
        ({"minTokens": 5}, "spec.minTokens", "minTokens belongs in spec.context"),
        ({"labels": {}}, "spec.labels", "labels belongs in metadata"),
        ({"tier": "safe"}, "spec.tier", "tier is a field of MemoryGuard (spec.tier)"),
        ({"keep": {"idleTtl": "5m"}}, "spec.keep.idleTtl", "did you mean idleTTL?"),
        (
            {"keep": {"wombat": 1}},
            "spec.keep.wombat",
            "the fields here are pinned, idleTTL",
        ),
        ({"keep": {"replicas": 1}}, "spec.keep.replicas", "replicas belongs in spec"),
    ],
)
def test_an_unknown_field_names_the_one_that_was_meant(
    spec: dict[str, Any], path: str, suggestion: str
) -> None:
    error = only(model(spec))
    assert (error.path, error.code, error.message) == (path, ErrorCode.UNKNOWN, "unknown field")
    assert error.suggestion == suggestion


def test_a_field_one_level_too_high_names_its_place() -> None:
    assert str(only({**model(), "replicas": 3})) == (
        "replicas: unknown field; replicas belongs in spec"
    )


def test_a_misspelt_required_field_is_one_error_not_two() -> None:
    raw = model()
    raw["spec"] = {"sorce": {"path": "/a"}}
    assert str(only(raw)) == "spec.sorce: unknown field; did you mean source?"


@pytest.mark.parametrize(
    ("value", "message", "suggestion"),
    [
        (True, "expected an integer, got a boolean", ""),
        (3.0, "expected an integer, got a decimal number", "write 3"),
        (3.5, "expected an integer, got a decimal number", "write a whole number"),
        ("3", "expected an integer, got text", "remove the quotes: 3"),
        ("three", "expected an integer, got text", ""),
        (None, "expected an integer, got nothing (null)", "write a value or remove the field"),
        ([], "expected an integer, got a list", ""),
        ({}, "expected an integer, got a mapping", ""),
        (-1, "must be at least 0, got -1", ""),
        (10**12, "must be at most 1000, got 1000000000000", ""),
        (10**30, "is larger than a 64-bit integer", ""),
        (float("nan"), "must be a finite number", ""),
    ],
)
def test_an_integer_refuses_what_is_not_one(value: Any, message: str, suggestion: str) -> None:
    error = only(model({"replicas": value}))
    assert (error.path, error.message, error.suggestion) == ("spec.replicas", message, suggestion)


@pytest.mark.parametrize(
    ("value", "suggestion"),
    [(False, 'quote it: "false"'), (7, 'quote it: "7"'), (1.1, 'quote it: "1.1"')],
)
def test_text_refuses_other_scalars_and_says_to_quote_them(value: Any, suggestion: str) -> None:
    for raw in (
        model(labels={"region": value}),
        model({"toolParser": value}),
        model({"nodeSelector": {"region": value}}),
    ):
        error = only(raw)
        assert (error.code, error.suggestion) == (ErrorCode.TYPE_INVALID, suggestion)


def test_the_text_as_written_is_what_the_hint_quotes() -> None:
    raw = model(labels={"region": False})
    (error,) = validate_object(raw, lambda path: "no" if path[-1] == "region" else None)
    assert error.text == 'expected text, got a boolean; quote it: "no"'


@pytest.mark.parametrize(
    ("raw", "path", "text"),
    [
        (
            model({"keep": {"pinned": "yes"}}),
            "spec.keep.pinned",
            "expected true or false, got text; write true",
        ),
        (
            model({"aliases": "chat"}),
            "spec.aliases",
            'expected a list, got text; write ["chat"]',
        ),
        (
            model({"engineType": "speculativ"}),
            "spec.engineType",
            '"speculativ" is not supported: write batched or speculative; '
            "did you mean speculative?",
        ),
        (
            model({"engineType": False}),
            "spec.engineType",
            'expected one of batched or speculative, got a boolean; quote it: "false"',
        ),
        (
            model({"sampling": {"temperature": "0.5"}}),
            "spec.sampling.temperature",
            "expected a number, got text; remove the quotes: 0.5",
        ),
        (
            model({"sampling": {"topP": 3}}),
            "spec.sampling.topP",
            "must be at most 1, got 3",
        ),
        (
            model({"keep": {"idleTTL": 300}}),
            "spec.keep.idleTTL",
            "a duration needs a unit; did you mean 300s?",
        ),
        (
            guard(staticReserve="8gi"),
            "spec.staticReserve",
            "unknown unit 'gi' in '8gi'; did you mean 8Gi?; units are Ki Mi Gi Ti, k M G T",
        ),
        (
            guard(staticReserve=1.5),
            "spec.staticReserve",
            "1.5 is not a number of bytes; write a whole number, or a unit as in 1.5Gi",
        ),
        (guard(tier="custom"), "spec", "tier custom needs customCeiling, such as 40Gi"),
        (
            model({"source": {"path": "/a", "hub": "b/c"}}),
            "spec.source",
            "set exactly one of path (a directory) and hub (a repository)",
        ),
        (model({"context": []}), "spec.context", "expected a mapping, got a list"),
    ],
)
def test_a_wrong_value_is_named_at_its_path_with_the_fix(
    raw: dict[str, Any], path: str, text: str
) -> None:
    error = only(raw)
    assert (error.path, error.text) == (path, text)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("My Model", "did you mean my-model?"),
        ("smol_lm", "did you mean smol-lm?"),
        ("-a", "did you mean a?"),
        ("a\n", "did you mean a?"),
        ("é", ""),
    ],
)
def test_a_bad_name_says_what_is_allowed(name: str, hint: str) -> None:
    raw = model()
    raw["metadata"]["name"] = name
    error = only(raw)
    assert error.path == "metadata.name"
    assert "allowed are lower-case letters, digits, '-' and '.'" in error.message
    assert error.suggestion == hint


@pytest.mark.parametrize("metadata", [{}, {"name": None}, {"name": ""}, {"generateName": "a-"}])
def test_an_object_needs_a_name(metadata: dict[str, Any]) -> None:
    raw = {**model(), "metadata": metadata}
    error = only(raw)
    assert (error.path, error.code) == ("metadata.name", ErrorCode.REQUIRED)


@pytest.mark.parametrize(
    ("labels", "part"),
    [
        ({"a b": "x"}, '"a b" is not a valid key'),
        ({"": "x"}, '"" is not a valid key'),
        ({"A_b/c": "x"}, "no domain name"),
        ({"a": "x y"}, '"x y" is not a label value'),
        ({"a": "-x"}, '"-x" is not a label value'),
        ({"a": "x" * 64}, "has 64 characters; at most 63"),
        ({"k" * 64: "x"}, "the key has 64 characters"),
    ],
)
def test_labels_follow_the_rules_of_kubernetes(labels: dict[str, str], part: str) -> None:
    assert part in only(model(labels=labels)).message
    assert part in only(model({"nodeSelector": labels})).message


def test_annotations_are_bounded_in_all() -> None:
    error = only(model(annotations={"a": "x" * 200_000, "b": "x" * 100_000}))
    assert error.path == "metadata.annotations"


def test_repeats_in_keyed_lists_are_refused_with_their_path() -> None:
    errors = validate_object(model({"aliases": ["a", "b", "a", "smollm2", ""]}))
    assert [(error.path, error.message) for error in errors] == [
        ("spec.aliases[2]", '"a" repeats spec.aliases[0]'),
        ("spec.aliases[3]", '"smollm2" repeats the model\'s own name'),
        ("spec.aliases[4]", "must not be empty"),
    ]
    taints = [{"key": "a"}, {"key": "a", "effect": "NoExecute"}, {"key": "a", "value": "x"}]
    raw = {"apiVersion": API, "kind": "Node", "metadata": {"name": "n"}, "spec": {"taints": taints}}
    assert only(raw).path == "spec.taints[2]"


@pytest.mark.parametrize(
    ("change", "path", "text"),
    [
        ({"kind": "models"}, "kind", 'unknown kind "models"; did you mean Model?'),
        ({"kind": "Modell"}, "kind", 'unknown kind "Modell"; did you mean Model?'),
        (
            {"kind": "Deployment"},
            "kind",
            'unknown kind "Deployment"; the kinds are Model, Route, MemoryGuard, CacheBudget, '
            "ApiKey, Node",
        ),
        ({"kind": 3}, "kind", 'expected text, got an integer; quote it: "3"'),
        ({"apiVersion": "v1"}, "apiVersion", f'"v1" is not supported; write {API}'),
        ({"apiVersion": 1}, "apiVersion", 'expected text, got an integer; quote it: "1"'),
    ],
)
def test_a_wrong_type_of_object_names_the_right_one(
    change: dict[str, Any], path: str, text: str
) -> None:
    error = only({**model(), **change})
    assert (error.path, error.text) == (path, text)


def test_metadata_is_checked_even_when_the_kind_is_unknown() -> None:
    errors = validate_object({**model(labels={"a": 1}), "kind": "Modle"})
    assert [error.path for error in errors] == ["kind", "metadata.labels.a"]


@pytest.mark.parametrize("raw", [[], "text", 3, None])
def test_what_is_no_mapping_is_refused(raw: Any) -> None:
    assert only(raw).message.startswith("expected a mapping, got")


def test_misspelt_top_level_keys_are_named() -> None:
    errors = validate_object({"apiversion": API, "Kind": "Model", "metadata": {"name": "a"}})
    assert [error.suggestion for error in errors] == [
        "rename apiversion to apiVersion",
        "rename Kind to kind",
    ]


def test_all_errors_come_at_once_in_document_order() -> None:
    spec = {"replicas": "3", "prefill": {"chunkTokens": 0}, "zzz": 1, "keep": {"pinned": 2}}
    errors = validate_object({"spec": spec, **model(labels={"a": 1}), "spec2": 1})
    assert [error.path for error in errors] == ["metadata.labels.a", "spec2"]
    errors = validate_object(model(spec, labels={"a": 1}))
    assert [error.path for error in errors] == [
        "metadata.labels.a",
        "spec.replicas",
        "spec.prefill.chunkTokens",
        "spec.zzz",
        "spec.keep.pinned",
    ]


@pytest.mark.parametrize(
    "value",
    ["\ud800", {1: 2}, object(), {"a": {"\udfff": 1}}, float("inf")],
)
def test_what_json_cannot_carry_is_an_error_and_no_exception(value: Any) -> None:
    errors = validate_object(model({"chatTemplate": {"variables": {"x": value}}}))
    assert errors
    assert errors[0].path.startswith("spec.chatTemplate.variables")


def test_deep_nesting_is_an_error() -> None:
    deep: Any = 1
    for _ in range(5000):
        deep = [deep]
    assert "levels deep" in only(model({"chatTemplate": {"variables": {"x": deep}}})).message


def test_a_hostile_object_costs_little_and_says_that_more_is_wrong() -> None:
    raw = model({f"replica{index}": index for index in range(50_000)})
    began = time.process_time()
    errors = validate_object(raw)
    assert time.process_time() - began < 5
    assert len(errors) == MAX_ERRORS + 1
    assert "more than" in errors[-1].message


def test_every_kind_is_validated_without_its_status_being_demanded() -> None:
    for kind in KINDS:
        errors = validate_object({"apiVersion": API, "kind": kind.name, "metadata": {"name": "a"}})
        assert {error.code for error in errors} <= {ErrorCode.REQUIRED}, kind.name


def test_paths_are_written_as_people_write_them() -> None:
    assert format_path(("spec", "aliases", 0)) == "spec.aliases[0]"
    assert (
        format_path(("metadata", "labels", "mlxfleet.dev/x")) == "metadata.labels[mlxfleet.dev/x]"
    )
    assert format_path(()) == ""


def test_a_reasoning_parser_is_one_of_those_there_are() -> None:
    error = only(model({"reasoningParser": "thinks"}))
    assert error.path == "spec.reasoningParser"
    assert "mistral" in error.text
    assert "think" in error.suggestion
