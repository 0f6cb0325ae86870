"""However the network cuts an agent's answers, the gateway reads the same ones."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.gateway.sending.answer_reader import HEAD_BYTES_MAX, AnswerReader

OK = b"HTTP/1.1 200 OK\r\n"
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n"
CHUNKED = (
    b"transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n6;x=y\r\n world\r\n0\r\ntrailer: t\r\n\r\n"
)
SIZED = b"Content-Length: 11\r\n\r\nhello world"
OPEN = b"connection: close\r\n\r\nhello world"
BODY = b"hello world"


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    """Return the data cut at these places, without empty pieces: no read of a socket is one."""
    ends = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(ends) if end > start]


def read(reader: AnswerReader, parts: list[bytes]) -> bytes:
    """Return the body that these reads of the socket come to."""
    body = b""
    for part in parts:
        reader.feed(part)
        body += reader.take()
    return body


CUTS = st.lists(st.integers(0, 300), max_size=12)


@given(CUTS, st.sampled_from([CHUNKED, SIZED]), st.sampled_from([b"", INTERIM]))
def test_any_split_of_the_bytes_is_the_same_answer(cuts: list[int], rest: bytes, first: bytes):
    reader = AnswerReader()
    for _ in range(2):  # the second on the same connection
        reader.begin()
        assert read(reader, pieces(first + OK + b"x-a: b\r\n" + rest, cuts)) == BODY
        assert (reader.status, reader.ended, reader.reusable, reader.fault) == (200, True, True, "")
        assert [item for item in reader.headers if item[0] == b"x-a"] == [(b"x-a", b"b")]
        assert (b"trailer", b"t") not in reader.headers


@given(CUTS)
def test_a_body_without_a_length_ends_with_the_connection(cuts: list[int]):
    reader = AnswerReader()
    assert read(reader, pieces(OK + OPEN, cuts)) == BODY
    assert not reader.ended
    reader.end_input()
    assert (reader.ended, reader.reusable, reader.fault) == (True, False, "")


@given(st.sampled_from([CHUNKED, SIZED]), st.data())
def test_an_answer_that_is_cut_is_a_fault_and_keeps_what_came(rest: bytes, data: st.DataObject):
    whole = OK + rest
    cut = data.draw(st.integers(0, len(whole) - 1))
    reader = AnswerReader()
    body = read(reader, [whole[:cut]])
    reader.end_input()
    assert BODY.startswith(body)
    assert reader.fault
    assert not (reader.ended or reader.reusable)


@given(st.binary(max_size=300), CUTS)
def test_no_bytes_make_the_reader_fail_or_reuse_a_spoiled_connection(data: bytes, cuts: list[int]):
    reader = AnswerReader()
    read(reader, pieces(OK + SIZED + b"\x00" + data, cuts))
    assert (reader.ended, reader.reusable) == (True, False)
    other = AnswerReader()
    read(other, pieces(data, cuts))
    other.end_input()
    assert other.ended or other.fault


@pytest.mark.parametrize("line", [b"x-long: " + b"y" * 100, b"x" * 100])
def test_a_head_without_an_end_is_a_fault_soon(line: bytes):
    reader, size = AnswerReader(), 0
    reader.feed(OK)
    while not reader.fault:
        reader.feed(line + b"\r\n" if b":" in line else line)
        size += len(line)
        assert size <= 2 * HEAD_BYTES_MAX
    reader = AnswerReader()
    for _ in range(2 * HEAD_BYTES_MAX // len(INTERIM)):
        reader.feed(INTERIM)
    assert reader.fault


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
        OK + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        OK + b"transfer-encoding: chunked\r\n\r\nZZZ\r\nhello\r\n",
        b"SSH-2.0-OpenSSH\r\n",
    ],
)
def test_what_is_no_plain_answer_is_a_fault(data: bytes):
    reader = AnswerReader()
    reader.feed(data)
    assert reader.fault
    assert not reader.reusable


@pytest.mark.parametrize(
    ("head", "reusable"),
    [(b"HTTP/1.0 200 OK\r\n", False), (OK + b"connection: close\r\n", False), (OK, True)],
)
def test_a_connection_serves_again_only_where_both_sides_keep_it(head: bytes, reusable: bool):
    reader = AnswerReader()
    assert read(reader, [head + SIZED]) == BODY
    assert (reader.ended, reader.reusable) == (True, reusable)


def test_an_answer_without_a_body_ends_at_its_head():
    reader = AnswerReader()
    assert read(reader, [b"HTTP/1.1 204 No Content\r\n\r\n"]) == b""
    assert (reader.status, reader.ended, reader.reusable) == (204, True, True)
