import pytest

from node_agent.engine.framing import FrameDecoder, FrameError, frame


def test_a_body_over_the_limit_is_not_sent():
    with pytest.raises(FrameError, match="11 bytes exceeds the 10"):
        frame(b"x" * 11, max_frame_bytes=10)


def test_a_length_over_the_limit_is_refused_before_its_body_arrives():
    with pytest.raises(FrameError, match="exceeds"):
        list(FrameDecoder(max_frame_bytes=10).feed(b"\x00\x00\x00\x0b"))


def test_frames_before_a_broken_one_are_still_delivered():
    decoder, out = FrameDecoder(max_frame_bytes=10), []
    with pytest.raises(FrameError):
        for body in decoder.feed(frame(b"good") + b"\xff\xff\xff\xff"):
            out.append(body)
    assert out == [b"good"]


def test_a_half_frame_waits_for_its_rest():
    decoder = FrameDecoder()
    assert list(decoder.feed(frame(b"hello")[:6])) == []
    assert decoder.pending_bytes == 6
    assert list(decoder.feed(frame(b"hello")[6:])) == [b"hello"]
