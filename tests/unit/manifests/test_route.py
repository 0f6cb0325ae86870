"""The kind Route: what may be declared, and who has each public name."""

from typing import Any

import pytest

from manifests.kinds.route import Route
from manifests.kinds.route_names import plan_route_names
from manifests.kinds.scheme import dump_object, parse_object, resolve_kind
from manifests.reading.validate import validate_object

API = "mlxfleet.dev/v1alpha1"


def route(name: str = "chat", made: str = "", **spec: Any) -> dict[str, Any]:
    meta = {"name": name, **({"creationTimestamp": made} if made else {})}
    spec = {"backends": [{"model": "a"}], **spec}
    return {"apiVersion": API, "kind": "Route", "metadata": meta, "spec": spec}


def faults(**spec: Any) -> dict[str, str]:
    return {error.path: error.text for error in validate_object(route(**spec))}


def test_people_may_call_the_kind_by_its_short_name() -> None:
    kind = resolve_kind("rt")
    assert kind is not None
    assert (kind.name, kind.plural) == ("Route", "routes")


def test_defaults_are_stored_and_a_whole_manifest_is_valid() -> None:
    assert dump_object(parse_object(route()))["spec"] == {
        "aliases": [],
        "backends": [{"model": "a", "weight": 1}],
        "rules": [],
        "fallbacks": [],
        "sticky": "none",
    }
    match = {"headers": {"X-Team": "red"}, "headerPatterns": {"user-agent": "curl/.*"}}
    whole = {
        "aliases": ["org/chat"],
        "backends": [{"model": "a", "weight": 95}, {"model": "b", "weight": 5}],
        "rules": [{"match": match, "backends": [{"model": "b"}]}],
        "fallbacks": ["c"],
        "sticky": "prefix",
    }
    assert faults(**whole) == {}
    parsed = parse_object(route(**whole))
    assert isinstance(parsed, Route)
    assert list(parsed.spec.rules[0].match.headers) == ["x-team"]
    assert parsed.spec.model_names == ("a", "b", "c")


def test_every_error_of_a_route_is_told_at_once() -> None:
    rules = [
        {"match": {}, "backends": [{"model": "a"}]},
        {"match": {"headers": {"a b": "c"}}, "backends": []},
        {"match": {"headerPatterns": {"x": "("}}, "backends": [{"model": "a", "weight": 0}]},
    ]
    said = faults(
        aliases=["chat", "x", "x", ""],
        backends=[{"model": "a", "weight": -1}, {"model": "a"}, {"model": "B c", "weight": 1.5}],
        rules=rules,
        fallbacks=["c", "c"],
        sticky="ip",
    )
    assert {
        "spec.aliases[0]",
        "spec.aliases[2]",
        "spec.aliases[3]",
        "spec.backends[0].weight",
        "spec.backends[1].model",
        "spec.backends[2].model",
        "spec.backends[2].weight",
        "spec.rules[0].match",
        "spec.rules[1].backends",
        "spec.rules[2].backends",
        "spec.fallbacks[1]",
        "spec.sticky",
    } <= set(said)
    assert "at least 0" in said["spec.backends[0].weight"]
    assert "whole number" in said["spec.backends[2].weight"]
    assert "repeats spec.backends[0].model" in said["spec.backends[1].model"]
    assert "weight above 0" in said["spec.rules[2].backends"]
    assert any("not a regular expression" in text for text in said.values())
    assert any("HTTP header" in text for text in said.values())


@pytest.mark.parametrize("weights", [(0,), (0, 0)])
def test_weights_that_are_all_zero_are_refused(weights: tuple[int, ...]) -> None:
    backends = [{"model": f"m{index}", "weight": weight} for index, weight in enumerate(weights)]
    assert faults(backends=backends) == {
        "spec.backends": "every weight is 0; give one of them a weight above 0"
    }


def test_a_route_needs_a_backend() -> None:
    assert set(faults(backends=[])) == {"spec.backends"}
    assert set(faults(backends=None)) == {"spec.backends"}


def parsed(*args: Any, **spec: Any) -> Route:
    found = parse_object(route(*args, **spec))
    assert isinstance(found, Route)
    return found


def test_a_name_beats_an_alias_and_of_aliases_the_older_route_has_it() -> None:
    old = parsed("z", "2026-01-01T00:00:00Z", aliases=["shared", "chat"])
    new = parsed("chat", "2026-02-01T00:00:00Z", aliases=["shared"])
    for order in ([old, new], [new, old]):
        owners = {name: item.metadata.name for name, item in plan_route_names(order).items()}
        assert owners == {"z": "z", "chat": "chat", "shared": "z"}


def test_a_route_that_is_being_deleted_has_no_names() -> None:
    gone = route()
    gone["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert plan_route_names([Route.model_validate(gone)]) == {}
