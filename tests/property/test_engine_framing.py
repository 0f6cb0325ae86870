"""Frames come out as they went in, however the bytes are split."""

from hypothesis import given
from hypothesis import strategies as st

from node_agent.engine.framing import FrameDecoder, frame
from node_agent.engine.messages import (
    Generate,
    SamplingParams,
    TokenLogprobs,
    Tokens,
    decode_command,
    decode_event,
    encode,
)

tokens = st.integers(0, 2**31 - 1)
finite = st.floats(-9999, 0)


@given(bodies=st.lists(st.binary(max_size=300)), cuts=st.lists(st.integers(1, 50)))
def test_any_split_of_the_bytes_gives_the_same_frames(bodies, cuts):
    stream = b"".join(frame(body) for body in bodies)
    decoder, out, at = FrameDecoder(), [], 0
    for size in [*cuts, max(len(stream), 1)]:
        out += decoder.feed(stream[at : at + size])
        at += size
    assert out == bodies
    assert decoder.pending_bytes == 0


@given(
    prompt=st.lists(tokens, min_size=1),
    bias=st.dictionaries(tokens, st.floats(-100, 100)),
    seed=st.none() | st.integers(-(2**63), 2**64 - 1),
    text=st.text(),
)
def test_a_command_survives_the_wire(prompt, bias, seed, text):
    sampling = SamplingParams(logit_bias=bias, seed=seed)
    command = Generate(request_id=text, prompt=prompt, max_tokens=1, sampling=sampling)
    (body,) = FrameDecoder().feed(frame(encode(command)))
    assert decode_command(body) == command


@given(ids=st.lists(tokens), top=st.lists(st.tuples(tokens, finite)), logprob=finite)
def test_an_event_survives_the_wire(ids, top, logprob):
    event = Tokens(request_id="a", ids=ids, logprobs=[TokenLogprobs(logprob=logprob, top=top)])
    (body,) = FrameDecoder().feed(frame(encode(event)))
    assert decode_event(body) == event
