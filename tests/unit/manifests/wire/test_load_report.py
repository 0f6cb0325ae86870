"""Shapes travel once a connection, and nobody downstream can tell."""

from manifests.kinds.engine import EnginePhase
from manifests.sizing.shape import ModelShape
from manifests.wire.report import (
    EngineLoad,
    LoadReport,
    fill_in_shapes,
    leave_out_shapes,
    shapes_of,
)
from tests.support.rooms import SHAPE, make_room

OTHER = SHAPE.model_copy(update={"hidden_size": 2})


def report(**shapes: ModelShape | None) -> LoadReport:
    loads = tuple(
        EngineLoad(
            name=name,
            model="m",
            phase=EnginePhase.READY,
            accepting=True,
            room=make_room(1, 2),
            shape=shape,
        )
        for name, shape in shapes.items()
    )
    return LoadReport(node="n", instance="i", sequence=1, accepting=True, engines=loads)


def test_what_was_left_out_is_filled_in_again() -> None:
    reports = [report(a=SHAPE), report(a=SHAPE, b=SHAPE), report(a=OTHER), report(b=SHAPE)]
    sent: dict[str, ModelShape] = {}
    known: dict[str, ModelShape] = {}
    sizes = []
    for full in reports:
        line = leave_out_shapes(full, sent).model_dump_json(by_alias=True)
        sent = shapes_of(full)
        got = fill_in_shapes(LoadReport.model_validate_json(line), known)
        known = shapes_of(got)
        assert got == full
        sizes.append(line.count("modelType"))
    # A shape comes again when it changed, and when its engine was gone in between.
    assert sizes == [1, 1, 1, 1]


def test_an_unchanged_shape_is_sent_once() -> None:
    full = report(a=SHAPE)
    brief = leave_out_shapes(full, shapes_of(full))
    assert shapes_of(brief) == {}


def test_a_report_of_an_older_agent_is_read() -> None:
    old = report(a=None).model_dump(mode="json", by_alias=True)
    for field in ("room", "shape", "restoreTokensPerSecond"):
        del old["engines"][0][field]
    assert LoadReport.model_validate(old).engines[0].room is None
