"""B80: one selector grammar; absent labels match `!=` and `notin`; bad syntax is an error."""

import pytest

from controller.registry.selectors import (
    SelectorError,
    parse_field_selector,
    parse_label_selector,
)

PROD, DEV, BARE = {"env": "prod"}, {"env": "dev"}, {}


@pytest.mark.parametrize(
    ("text", "matching"),
    [
        ("", [PROD, DEV, BARE]),
        ("   ", [PROD, DEV, BARE]),
        ("env", [PROD, DEV]),
        ("!env", [BARE]),
        ("! env", [BARE]),
        ("env=prod", [PROD]),
        ("env==prod", [PROD]),
        ("env = prod", [PROD]),
        ("env!=prod", [DEV, BARE]),
        ("env in (prod, dev)", [PROD, DEV]),
        ("env in (prod)", [PROD]),
        ("env notin (prod,qa)", [DEV, BARE]),
        ("env,env!=dev", [PROD]),
        ("env=", []),
        ("env!=", [PROD, DEV, BARE]),
        ("example.com/env=prod", []),
    ],
)
def test_a_selector_matches_what_it_says(text, matching):
    selector = parse_label_selector(text)
    assert [labels for labels in (PROD, DEV, BARE) if selector.matches(labels)] == matching


def test_an_empty_value_matches_an_empty_label():
    assert parse_label_selector("env=").matches({"env": ""})


def test_terms_are_joined_by_and():
    selector = parse_label_selector("a=b,c notin (d,e)")
    assert selector.matches({"a": "b"})
    assert selector.matches({"a": "b", "c": "x"})
    assert not selector.matches({"a": "b", "c": "d"})
    assert not selector.matches({"c": "x"})


def test_operators_are_labels_too():
    assert parse_label_selector("in in (in)").matches({"in": "in"})
    assert parse_label_selector("notin=exists").matches({"notin": "exists"})


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("env in ()", 9),
        ("env in", 7),
        ("env in (a", 10),
        ("env in (a b)", 11),
        ("env>1", 4),
        ("a=b=c", 4),
        ("a b", 3),
        ("=b", 1),
        (",", 1),
        ("a,", 3),
        ("a,,b", 3),
        ("!", 2),
        ("!a=b", 3),
        ("(a)", 1),
        ("a=b)", 4),
        ("-a=b", 1),
        ("a=b/c", 3),
        ("a=" + "v" * 64, 3),
        ("k" * 64 + "=v", 1),
        ("a/b/c", 1),
        ("ä=b", 1),
        ("a=<b>", 3),
    ],
)
def test_bad_syntax_is_refused_with_its_position(text, position):
    with pytest.raises(SelectorError) as fault:
        parse_label_selector(text)
    assert f"position {position}:" in str(fault.value)


ENGINE = {"metadata": {"name": "a"}, "spec": {"node": "mini", "model": "m"}}


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("", True),
        ("spec.node=mini", True),
        ("spec.node==mini", True),
        ("spec.node!=mini", False),
        ("spec.node=mini,spec.node=mini", True),
        ("metadata.name=a,spec.model=x", False),
        ("metadata.namespace=", True),
        ("metadata.name=b", False),
    ],
)
def test_a_field_selector_matches_what_it_says(text, matches):
    assert parse_field_selector(text, "engines").matches(ENGINE) is matches


def test_events_are_selected_by_what_they_are_about():
    event = {"involvedObject": {"kind": "Model", "name": "m", "uid": "u"}}
    text = "involvedObject.uid=u,involvedObject.namespace=,involvedObject.kind=Model"
    assert parse_field_selector(text, "events").matches(event)


def test_booleans_read_as_true_and_false():
    cordoned = {"spec": {"unschedulable": True}}
    assert parse_field_selector("spec.unschedulable=true", "nodes").matches(cordoned)


@pytest.mark.parametrize("text", ["spec.node", "spec.replicas=1", "=x", "spec.node=a=b", ","])
def test_a_bad_field_selector_is_refused(text):
    with pytest.raises(SelectorError):
        parse_field_selector(text, "engines")
