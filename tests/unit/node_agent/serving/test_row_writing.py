import json

from hypothesis import given
from hypothesis import strategies as st

from manifests.errors import Code, Refusal
from manifests.kinds.model import Context, Sampling
from manifests.prompt.body import TextPrompts
from manifests.prompt.messages import Defaults
from manifests.prompt.pieces import PieceKind, PiecePlan
from node_agent.engine.messages import TokenLogprobs
from node_agent.serving.limits import (
    DEFAULT_MAX_TOKENS,
    context_limit_tokens,
    plan_output_tokens,
)
from node_agent.serving.request import Endpoint, GenerationRequest, SamplingRequest
from node_agent.serving.responses import Identity, StreamWriter, Usage, whole_body
from node_agent.serving.rows import RowDelta, RowEnd, RowText
from node_agent.serving.sampling import plan_sampling
from node_agent.serving.sse import comment, event
from node_agent.text.detokenizer import ByteDetokenizer
from node_agent.text.stops import StopMatcher

PIECES = [b"alpha ", b"beta", b" gam", b"ma ", b"\xf0\x9f", b"\x98\x80"]


def row(stops: tuple[str, ...] = ()) -> RowText:
    detokenizer = ByteDetokenizer(PiecePlan(kind=PieceKind.BYTES), PIECES)
    return RowText(0, detokenizer, StopMatcher(stops), PIECES)


def logprob(value: float = -1.0) -> TokenLogprobs:
    return TokenLogprobs(logprob=value, top=[(0, value), (1, float("-inf"))])


def test_log_probabilities_cover_every_token_in_order() -> None:
    """B04: the bytes of all items are the text, also for half an emoji; all numbers finite."""
    text = row()
    fed = [text.feed([number], [logprob(-number)]) for number in range(6)]
    sent = [delta for deltas in [*fed, text.finish()] for delta in deltas]
    items = [item for delta in sent for item in delta.items]
    assert all(delta.text for delta in sent)
    whole = "".join(delta.text for delta in sent)
    assert b"".join(item.piece.data for item in items) == whole.encode()
    assert [item.piece.logprob for item in items] == [0, -1, -2, -3, -4, -5]
    assert items[0].top[1].logprob == -9999.0
    assert [item.text_offset for item in items] == [0, 6, 10, 14, 17, 17]


def test_tokens_of_a_stop_string_are_not_shown() -> None:
    """B13: text and log-probabilities end at the stop."""
    text = row(("beta gam",))
    deltas = [delta for number in range(3) for delta in text.feed([number], [logprob()])]
    assert text.stopped
    assert text.tokens == 3
    items = [item for delta in deltas for item in delta.items]
    assert b"".join(item.piece.data for item in items) == b"alpha "


def identity(endpoint: Endpoint = Endpoint.CHAT, *, usage: bool = False) -> Identity:
    return Identity(endpoint, "id-1", 1, "m", "fp_1", include_usage=usage)


EVENTS = [
    RowDelta(1, "b"),
    RowDelta(0, "a"),
    RowEnd(1, "length"),
    RowDelta(0, "c"),
    RowEnd(0, "stop"),
]


def test_streamed_and_whole_answers_say_the_same() -> None:
    """B08: exactly one reason per choice, null before it."""
    for endpoint in Endpoint:
        writer = StreamWriter(identity(endpoint))
        chunks = [chunk for item in EVENTS for chunk in writer.chunks(item)]
        whole = whole_body(identity(endpoint), EVENTS, 2, Usage(1, 3))
        for choice in whole["choices"]:
            mine = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == choice["index"]]
            reasons = [item["finish_reason"] for item in mine]
            assert reasons == [None] * (len(mine) - 1) + [choice["finish_reason"]]
            if endpoint is Endpoint.CHAT:
                text = "".join(item["delta"].get("content", "") for item in mine)
                assert text == choice["message"]["content"]
                assert [item["delta"].get("role") for item in mine].count("assistant") == 1
            else:
                assert "".join(item["text"] for item in mine) == choice["text"]


def test_a_row_without_text_still_has_a_role_and_a_reason() -> None:
    """B08."""
    chunks = StreamWriter(identity()).chunks(RowEnd(0, "stop"))
    assert [chunk["choices"][0]["delta"] for chunk in chunks] == [
        {"role": "assistant", "content": ""},
        {},
    ]


def test_usage_is_null_on_chunks_only_when_asked_for() -> None:
    """B15."""
    [plain] = StreamWriter(identity()).chunks(RowDelta(0, "a"))
    [asked] = StreamWriter(identity(usage=True)).chunks(RowDelta(0, "a"))
    assert "usage" not in plain
    assert asked["usage"] is None
    closing = StreamWriter(identity(usage=True)).usage_chunk(Usage(5, 2, 4))
    assert closing["choices"] == []
    assert closing["usage"] == {
        "prompt_tokens": 5,
        "completion_tokens": 2,
        "total_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 4},
    }


def request(**sampling: float) -> GenerationRequest:
    return GenerationRequest(
        Endpoint.COMPLETIONS,
        "m",
        TextPrompts(texts=["x"]),
        sampling=SamplingRequest(**sampling),  # type: ignore[arg-type]
    )


def test_sampling_comes_from_request_then_model_then_files_then_openai() -> None:
    declared = Sampling.model_validate({"topP": 0.9, "temperature": 0.2})
    files = Defaults(temperature=0.6, top_p=0.95, top_k=20)
    params = plan_sampling(request(temperature=0.0), declared, files, 0)
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (0.0, 0.9, 20, 0.0)
    assert plan_sampling(request(), Sampling(), Defaults(), 0).temperature == 1.0


def test_choices_of_a_seeded_request_differ_and_repeat() -> None:
    """B25: as a set; the first is what the seed gives alone."""
    seeds = [plan_sampling(request(seed=1), Sampling(), Defaults(), row).seed for row in range(3)]
    again = [plan_sampling(request(seed=1), Sampling(), Defaults(), row).seed for row in range(3)]
    assert seeds == again
    assert seeds[0] == 1
    assert len(set(seeds)) == 3
    assert plan_sampling(request(), Sampling(), Defaults(), 2).seed is None


def test_a_prompt_that_fills_the_context_is_refused_with_both_numbers() -> None:
    """B10."""
    for size in (4096, 4097, 40_000):
        refusal = plan_output_tokens([size], None, Sampling(), 4096)
        assert isinstance(refusal, Refusal)
        assert refusal.code is Code.CONTEXT_LENGTH_EXCEEDED
        assert "4096" in refusal.message
        assert str(size) in refusal.message


def test_an_answer_ends_at_the_context_at_the_latest() -> None:
    """B10: max_tokens is a cap; the prompt is never cut."""
    assert plan_output_tokens([4000, 10], 500, Sampling(), 4096) == (96, 500)
    assert plan_output_tokens([4095], None, Sampling(), 4096) == (1,)
    assert plan_output_tokens([1], None, Sampling(), 10**6) == (DEFAULT_MAX_TOKENS,)
    declared = Sampling.model_validate({"maxTokens": 9})
    assert plan_output_tokens([1], None, declared, 4096) == (9,)


def test_the_context_is_the_lesser_of_declared_and_own() -> None:
    declared = Context.model_validate({"maxTokens": 100})
    assert context_limit_tokens(declared, 4096) == 100
    assert context_limit_tokens(declared, 50) == 50
    assert context_limit_tokens(Context(), 4096) == 4096


@given(st.text())
def test_an_event_is_one_line_in_every_clients_eyes(text: str) -> None:
    """B12: also with U+2028 and other line ends inside."""
    data = event({"text": text})
    assert data.endswith(b"\n\n")
    assert len(data[:-2].decode().splitlines()) == 1
    assert json.loads(data[6:]) == {"text": text}


def test_a_comment_cannot_become_an_event() -> None:
    assert comment("a\n\ndata: x") == b": a data: x\n\n"
