"""Stream framing: whole, well-formed events pass unchanged; anything else is a fault (B55)."""

import json

import pytest

from controller.gateway.http.sse import EventReader, Usage, read_usage
from controller.gateway.http.told import Told

GOOD = b'data: {"choices": [{"delta": {"content": "\xc3\xa4"}}]}\n\n'
COMMENT = b": keep-alive\n\n"
LAST = b'data: {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4}}\n\n'
DONE = b"data: [DONE]\n\n"


def read(*pieces: bytes, limit: int = 1000) -> tuple[bytes, EventReader, str]:
    reader, passed, fault = EventReader(limit), b"", ""
    for piece in pieces:
        batch = reader.feed(piece)
        passed += batch.passed
        fault = fault or batch.fault
    return passed, reader, fault


def test_every_batch_ends_at_the_end_of_an_event() -> None:
    reader = EventReader(1000)
    assert reader.feed(GOOD + GOOD[:9]).passed == GOOD
    assert reader.feed(GOOD[9:]).passed == GOOD


def test_comments_pass_but_are_no_data() -> None:
    batch = EventReader(1000).feed(COMMENT)
    assert (batch.passed, batch.has_data) == (COMMENT, False)
    assert EventReader(1000).feed(COMMENT + GOOD).has_data


@pytest.mark.parametrize(
    "bad", [b"data: {half\n\n", b"data: 1\n\n", b"data: \xff\n\n", b"data: []\n\n", b"data:\n\n"]
)
def test_an_event_that_is_not_a_json_object_is_a_fault_and_not_passed(bad: bytes) -> None:
    passed, reader, fault = read(GOOD + bad + GOOD + DONE)
    assert passed == GOOD
    assert fault
    assert not reader.done


def test_nothing_passes_after_a_fault() -> None:
    passed, reader, fault = read(GOOD, b"data: {half\n\n", GOOD + DONE)
    assert passed == GOOD
    assert fault
    assert not reader.done


def test_what_follows_done_is_dropped() -> None:
    passed, reader, _ = read(GOOD + DONE + GOOD, GOOD)
    assert passed == GOOD + DONE
    assert reader.done


def test_half_a_line_is_never_passed() -> None:
    passed, reader, _ = read(GOOD + b'data: {"cho')
    assert passed == GOOD
    assert not reader.done


def test_an_event_without_an_end_is_a_fault_at_the_limit() -> None:
    _, _, fault = read(b"data: " + b"x" * 200, limit=100)
    assert fault


def test_an_error_event_is_kept_and_ends_the_stream() -> None:
    body = json.dumps({"error": {"code": "engine_died"}}).encode()
    for before in (COMMENT, GOOD):
        passed, reader, fault = read(before + b"data: " + body + b"\n\n" + GOOD, GOOD + DONE)
        assert (passed, reader.error, reader.done, fault) == (before, body, False, "")


def test_what_an_agent_tells_is_taken_off_and_counts_only_with_its_event() -> None:
    told = Told()
    reader = EventReader(1000, told)
    first = b":@id 5 fp 1\n:+0 7,8\n" + GOOD
    assert reader.feed(first + b":+0 9\n" + GOOD[:-1]).passed == GOOD
    assert told.tokens == 2
    assert reader.feed(GOOD[-1:] + COMMENT).passed == GOOD + COMMENT
    assert told.tokens == 3
    assert reader.feed(b": usage 7 4\n" + GOOD).passed == GOOD
    assert reader.usage == Usage(7, 4)
    reader.feed(b":+0 10\ndata: {half\n\n")
    assert told.tokens == 3


def test_a_stream_is_complete_with_its_usage_where_the_client_wants_it() -> None:
    for wants, complete in ((False, True), (True, False)):
        told = Told(include_usage=wants)
        reader = EventReader(1000, told)
        reader.feed(b":@id 5 fp 1\n:+0 7\n:.0\n" + GOOD)
        assert told.complete is complete
        reader.feed(LAST)
        assert told.complete


def test_a_whole_answer_tells_its_usage_or_that_it_is_malformed() -> None:
    assert read_usage(b'{"usage": {"prompt_tokens": 1, "completion_tokens": 2}}') == Usage(1, 2)
    assert read_usage(b'{"usage": {"prompt_tokens": "?"}}') == Usage(0, 0)
    assert read_usage(b"{}") is None
    for bad in (b"", b"{", b"[]", b"Internal Server Error"):
        with pytest.raises(ValueError, match="not a JSON object"):
            read_usage(bad)
