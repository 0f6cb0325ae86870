"""Wherever a stream is cut, what came before and what comes after are together the whole answer.

The agent's writing, the gateway's reading and the agent's going on, with everything between them
but the network: any tokens (half characters and pieces of tags included), any stop strings, any
byte to cut at, in the middle of the thinking too.
"""

import json
import re
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from controller.gateway.http.sse import EventReader
from controller.gateway.http.told import Told
from manifests.prompt.body import TextPrompts
from manifests.prompt.pieces import PieceKind, PiecePlan
from manifests.prompt.thinking import THINK_TAGS
from manifests.wire.continuation import pack, unpack
from node_agent.serving.continuing import continue_request, greeted_rows, name_again, resume
from node_agent.serving.request import Endpoint, GenerationRequest
from node_agent.serving.responses import Identity, StreamWriter, Usage, whole_body
from node_agent.serving.rows import RowDelta, RowEnd, RowText
from node_agent.serving.sse import DONE, comment, event
from node_agent.serving.telling import Teller
from node_agent.text.detokenizer import ByteDetokenizer
from node_agent.text.reasoning import ReasoningSplitter
from node_agent.text.stops import StopMatcher

# Whole words, the four bytes of an emoji one by one, and bytes that are never valid.
PIECES = [b"a", b"b", b"ab", b" ", b"\xf0", b"\x9f", b"\x98", b"\x80", b"\xff", b"\xc3\xa4", b""]
PIECES += [b"<think>", b"</think>", b"<thi", b"nk>a", b"</th", b"ink>", b"b</think>a", b"`"]
IDENTITY = Identity(Endpoint.CHAT, "chatcmpl-0", 17, "m", "fp_0", include_usage=True)
PATH = "/v1/chat/completions"


@dataclass(frozen=True)
class Model:
    """What an engine would say to each choice of a request, and how many tokens may be said."""

    rows: tuple[tuple[int, ...], ...]
    stops: tuple[str, ...]
    cap: int
    step: int
    opened: bool = False

    def request(self) -> GenerationRequest:
        return GenerationRequest(
            Endpoint.CHAT,
            "m",
            TextPrompts(texts=["p"]),
            choices=len(self.rows),
            stop=self.stops,
            stream=True,
        )

    def answer(self, request: GenerationRequest) -> bytes:
        """Return the stream of a request, from where it stands."""
        identity = IDENTITY
        if request.continues is not None:
            identity = replace(identity, id="chatcmpl-other", created=99)
            identity = name_again(identity, request.continues, len(PIECES))
        texts = [self._text(index) for index in range(len(self.rows))]
        endings = resume(request, texts, [self.cap] * len(texts))
        items = [item for ending in endings for item in ending or ()]
        steps = [
            self.generate(text) for text, end in zip(texts, endings, strict=True) if end is None
        ]
        while steps:
            steps = [step for step in steps if step]
            items += [item for step in steps for item in step.pop(0)]
        writer = StreamWriter(identity, set(greeted_rows(request)))
        teller = Teller(identity, len(texts))
        frames = [
            teller.frame(item, [event(chunk) for chunk in writer.chunks(item)]) for item in items
        ]
        usage = event(writer.usage_chunk(Usage(1, sum(text.tokens for text in texts))))
        return comment("keep-alive") + b"".join(frames) + usage + DONE

    def whole(self) -> list[dict[str, Any]]:
        """Return the messages of the same answer in one body, each row fed at once."""
        texts = [self._text(index) for index in range(len(self.rows))]
        whole = replace(self, step=99)
        items = [item for text in texts for step in whole.generate(text) for item in step]
        body = whole_body(IDENTITY, items, len(texts), Usage(1, 1))
        return [choice["message"] for choice in body["choices"]]

    def _text(self, index: int) -> RowText:
        plan = PiecePlan(kind=PieceKind.BYTES)
        splitter = ReasoningSplitter(THINK_TAGS["think"], inside=self.opened)
        matcher = StopMatcher(self.stops)
        return RowText(index, ByteDetokenizer(plan, PIECES), matcher, PIECES, splitter)

    def generate(self, text: RowText) -> list[list[RowDelta | RowEnd]]:
        """Return the events of each step of the engine."""
        said = text.tokens
        ids = self.rows[text.index][said : self.cap]
        events: list[list[RowDelta | RowEnd]] = []
        for start in range(0, len(ids), self.step):
            events.append([*text.feed(ids[start : start + self.step], ())])
            if text.stopped:
                return [*events, [text.close("stop")]]
        reason = "length" if len(self.rows[text.index]) >= self.cap else "stop"
        return [*events, text.end(reason)]


def read(passed: bytes) -> tuple[list[dict[str, Any]], bool]:
    """Return the chunks that a client saw, and whether the stream ended well."""
    payloads = [line[6:] for line in passed.split(b"\n") if line.startswith(b"data: ")]
    done = payloads[-1:] == [b"[DONE]"]
    return [json.loads(item) for item in payloads if item != b"[DONE]"], done


def summary(passed: bytes) -> dict[str, Any]:
    """Return everything by which a client could tell a moved stream from another."""
    chunks, done = read(passed)
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    rows = sorted({choice["index"] for choice in choices})

    def of(row: int) -> list[dict[str, Any]]:
        return [choice for choice in choices if choice["index"] == row]

    return {
        "names": {(chunk["id"], chunk["created"], chunk["system_fingerprint"]) for chunk in chunks},
        "texts": ["".join(c["delta"].get("content", "") for c in of(row)) for row in rows],
        "thoughts": [
            "".join(c["delta"].get("reasoning_content", "") for c in of(row)) for row in rows
        ],
        "roles": [sum("role" in c["delta"] for c in of(row)) for row in rows],
        "first has role": ["role" in of(row)[0]["delta"] for row in rows],
        "reasons": [[c["finish_reason"] for c in of(row) if c["finish_reason"]] for row in rows],
        "last has reason": [of(row)[-1]["finish_reason"] is not None for row in rows],
        "usage": [chunk["usage"] for chunk in chunks if chunk["usage"]],
        "done": done,
    }


MODELS = st.builds(
    Model,
    rows=st.lists(
        st.lists(st.integers(0, len(PIECES) - 1), max_size=12).map(tuple), min_size=1, max_size=3
    ).map(tuple),
    stops=st.lists(st.text("ab 😀<>", min_size=1, max_size=3), max_size=2).map(tuple),
    cap=st.integers(1, 12),
    step=st.integers(1, 3),
    opened=st.booleans(),
)


def cut_off(data: bytes, events: int, extra_bytes: int) -> bytes:
    """Return so many whole events, counted round and round, and a piece of the next."""
    ends = [0, *(found.end() for found in re.finditer(b"\n\n", data))]
    return data[: ends[events % len(ends)] + extra_bytes]


def read_through_cuts(model: Model, cuts: list[tuple[int, int]]) -> bytes:
    """Return what a client gets of a stream that is cut at these places, one node after another."""
    request, told, passed = model.request(), Told(include_usage=True), b""
    body = b'{"stream": true}'
    for cut in [*cuts, (-1, 0)]:
        reader = EventReader(10**6, told)
        passed += reader.feed(cut_off(model.answer(request), *cut)).passed
        if reader.done:
            return passed
        if told.complete:
            return passed + DONE
        # Without any data the request is sent as a whole once more.
        if b"data:" in passed:
            head, kept = unpack(pack(told.continuation(PATH), body))
            assert kept == body
            request = continue_request(model.request(), head)
    raise AssertionError("the last answer is not cut")


@given(MODELS, st.lists(st.tuples(st.integers(0, 99), st.sampled_from([0, 1, 9])), max_size=2))
def test_a_stream_cut_anywhere_is_the_same_stream(
    model: Model, later: list[tuple[int, int]]
) -> None:
    whole = model.answer(model.request())
    undisturbed = summary(EventReader(10**6).feed(whole).passed)
    for place in range(whole.count(b"\n\n")):
        assert summary(read_through_cuts(model, [(place, 0), *later])) == undisturbed


@given(MODELS)
def test_a_stream_says_what_the_whole_answer_says(model: Model) -> None:
    """B16: each choice has the same thinking and the same text, streamed or not."""
    streamed = summary(EventReader(10**6).feed(model.answer(model.request())).passed)
    for row, message in enumerate(model.whole()):
        assert streamed["texts"][row] == (message["content"] or "")
        assert streamed["thoughts"][row] == message.get("reasoning_content", "")
        assert (message["content"] is None) == (
            "reasoning_content" in message and not message["content"]
        )
