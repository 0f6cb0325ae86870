"""Small forms of the API: Accept, warnings, table cells."""

import pytest

from controller.api.columns import COLUMNS
from controller.api.requests import parse_accept
from controller.api.responses import format_warning
from manifests.kinds.scheme import KINDS
from tests.support.objects import engine, model, node


@pytest.mark.parametrize(
    ("accept", "table"),
    [
        ("", False),
        ("*/*", False),
        ("application/json", False),
        ("application/json;as=Table;v=v1;g=meta.k8s.io,application/json", True),
        ("application/json, application/json;as=Table;v=v1;g=meta.k8s.io", False),
        ("application/vnd.kubernetes.protobuf,application/json", False),
        ("application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json", False),
        ("application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io", False),
    ],
)
def test_the_first_form_we_offer_wins(accept, table):
    assert parse_accept(accept).table is table


def test_a_warning_survives_quotes_backslashes_and_line_breaks():
    assert format_warning('a "b"\\\nc') == '299 - "a \\"b\\"\\\\ c"'
    assert format_warning("ä") == '299 - "?"'


def cells(kind: str, obj, now: float = 0.0):
    return {column.name: column.read(obj, now) for column in COLUMNS[kind]}


def test_every_kind_has_columns():
    assert set(COLUMNS) == {kind.name for kind in KINDS}


def test_a_node_says_all_that_ails_it():
    obj = node(unschedulable=True)
    obj["status"] = {
        "conditions": [
            {"type": "Ready", "status": "False", "reason": "x"},
            {"type": "MemoryPressure", "status": "True", "reason": "x"},
            {"type": "DiskPressure", "status": "False", "reason": "x"},
        ]
    }
    assert cells("Node", obj)["Status"] == "NotReady,MemoryPressure,SchedulingDisabled"
    assert cells("Node", node())["Status"] == "Unknown"


@pytest.mark.parametrize(
    ("status", "phase"),
    [
        ({"phase": "Ready"}, "Ready"),
        ({"phase": "Failed", "reason": "LoadError"}, "Failed (LoadError)"),
        ({"phase": "Loading", "progress": {"done": 1, "total": 4}}, "Loading 25%"),
        ({"phase": "Loading", "progress": {"done": 0, "total": 0}}, "Loading"),
    ],
)
def test_an_engine_shows_its_phase_and_how_far_it_is(status, phase):
    assert cells("Engine", engine() | {"status": status})["Phase"] == phase


def test_what_is_being_deleted_is_terminating():
    obj = engine()
    obj["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert cells("Engine", obj)["Phase"] == "Terminating"


def test_a_model_shows_copies_source_and_age():
    obj = model(replicas=2, source={"hub": "org/name", "revision": "main"})
    obj["metadata"]["creationTimestamp"] = "1970-01-01T00:00:10Z"
    shown = cells("Model", obj, now=100.0)
    assert (shown["Ready"], shown["Source"], shown["Age"]) == ("0/2", "org/name@main", "90s")
    assert cells("Model", model())["Age"] == "<unknown>"
