"""However the network cuts a stream, the same events pass."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from controller.gateway.http.sse import EventReader, Usage
from manifests.wire.continuation import MARKS

GOOD = b'data: {"choices": [{"delta": {"content": "\xc3\xa4"}}]}\n\n'
LAST = b'data: {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4}}\n\n'
WHOLE = (
    b": keep-alive\n\n"
    + GOOD
    + b"event: x\r\n"
    + GOOD.replace(b"\n", b"\r\n")
    + LAST
    + b"data: [DONE]\n\n"
)


@given(st.lists(st.integers(0, len(WHOLE)), max_size=20))
def test_any_split_of_the_bytes_passes_the_same_events(cuts: list[int]) -> None:
    reader, passed = EventReader(1000), b""
    for start, end in itertools.pairwise([0, *sorted(cuts), len(WHOLE)]):
        batch = reader.feed(WHOLE[start:end])
        assert not batch.fault
        assert batch.passed.endswith(b"\n") or not batch.passed
        passed += batch.passed
    assert passed == WHOLE
    assert (reader.done, reader.error, reader.usage) == (True, None, Usage(3, 4))


@given(st.binary(max_size=200), st.integers(0, 200))
def test_no_bytes_make_the_reader_fail_or_pass_what_it_did_not_get(data: bytes, cut: int) -> None:
    reader = EventReader(1000)
    passed = b"".join(reader.feed(piece).passed for piece in (data[:cut], data[cut:]))
    if not any(mark in data for mark in MARKS):
        assert data.startswith(passed)
    assert len(passed) <= len(data)
