"""What agents tell of a stream becomes what is asked of the next one, or the stream stays put."""

import pytest

from controller.gateway.http.told import Told
from manifests.wire.continuation import Continuation, ToldRow


def told(*lines: bytes) -> Told:
    noted = Told()
    for line in lines:
        noted.take(line)
    return noted


def test_everything_told_is_in_the_continuation() -> None:
    noted = told(
        b":@chatcmpl-1 17 fp_x 4",
        b":+0 1,2",
        b":+2 ",
        b":+0 3",
        b":+3 9",
        b":=3 length",
        b":+2 5",
        b":.2",
    )
    assert noted.movable
    assert not noted.complete
    assert noted.tokens == 3
    assert noted.continuation("/v1/completions") == Continuation(
        path="/v1/completions",
        id="chatcmpl-1",
        created=17,
        fingerprint="fp_x",
        rows=(
            ToldRow(ids=(1, 2, 3)),
            None,
            ToldRow(ids=(5,), ended=True),
            ToldRow(ids=(9,), reason="length"),
        ),
    )


def test_without_its_name_a_stream_cannot_move() -> None:
    assert not told(b":+0 1,2").movable


def test_whoever_continues_a_stream_says_the_same_name() -> None:
    name = b":@id 17 fp_x 1"
    assert told(name, b":+0 1", name, b":+0 2").movable
    assert not told(name, b":+0 1", b":@id 17 fp_y 1").movable


@pytest.mark.parametrize(
    "line",
    [
        b":+0 1;2",
        b":+0 -1",
        b":+x 1",
        b":+",
        b":@id",
        b":@id 1 fp two",
        b":@id 1 fp 9999",
        b":=0 \xff",
        b":+0 " + b"1," * 3_000_000,
    ],
)
def test_lines_that_are_not_as_agreed_or_too_many_pin_the_stream(line: bytes) -> None:
    noted = told(b":@id 17 fp_x 1", b":+0 1", line)
    assert not noted.movable
    with pytest.raises(ValueError, match="cannot move"):
        noted.continuation("/v1/completions")
