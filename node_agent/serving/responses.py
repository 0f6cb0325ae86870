"""OpenAI answers: whole bodies and stream chunks for both endpoints.

Pure. The same events give the same text streamed or not. `finish_reason` is null on all but the
one terminal chunk of each choice; the role is in a choice's first delta only.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from node_agent.serving.request import Endpoint
from node_agent.serving.rows import RowDelta, RowEnd, TokenItem, TokenPiece


@dataclass(frozen=True, slots=True)
class Identity:
    """What every chunk of one answer repeats."""

    endpoint: Endpoint
    id: str
    created: int
    model: str
    system_fingerprint: str
    logprobs: bool = False
    include_usage: bool = False

    def envelope(self, stream: bool) -> dict[str, Any]:
        """Return the common fields of a body or chunk."""
        chat = "chat.completion.chunk" if stream else "chat.completion"
        return {
            "id": self.id,
            "object": chat if self.endpoint is Endpoint.CHAT else "text_completion",
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.system_fingerprint,
        }


@dataclass(frozen=True, slots=True)
class Usage:
    """What a request cost, in tokens; cached tokens are part of the prompt tokens."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0

    def body(self) -> dict[str, Any]:
        """Return OpenAI's usage object."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


@dataclass(slots=True)
class StreamWriter:
    """Writes the chunks of one streamed answer; rows in `greeted` have had a chunk already."""

    identity: Identity
    greeted: set[int] = field(default_factory=set)

    def chunks(self, event: RowDelta | RowEnd) -> list[dict[str, Any]]:
        """Return the chunks for one event: a row that ends without text still gets its role."""
        if isinstance(event, RowDelta):
            return [self._chunk(self._delta_choice(event))]
        first = []
        if self.identity.endpoint is Endpoint.CHAT and event.index not in self.greeted:
            first = self.chunks(RowDelta(event.index, ""))
        return [*first, self._chunk(self._end_choice(event))]

    def usage_chunk(self, usage: Usage) -> dict[str, Any]:
        """Return the chunk that closes a stream whose client asked for usage."""
        return {**self.identity.envelope(stream=True), "choices": [], "usage": usage.body()}

    def _chunk(self, choice: dict[str, Any]) -> dict[str, Any]:
        usage = {"usage": None} if self.identity.include_usage else {}
        return {**self.identity.envelope(stream=True), "choices": [choice], **usage}

    def _delta_choice(self, event: RowDelta) -> dict[str, Any]:
        logprobs = render_logprobs(self.identity, event.items)
        if self.identity.endpoint is Endpoint.COMPLETIONS:
            content: dict[str, Any] = {"text": event.text}
        else:
            role = {} if event.index in self.greeted else {"role": "assistant"}
            self.greeted.add(event.index)
            reasoning = {"reasoning_content": event.reasoning} if event.reasoning else {}
            text = {"content": event.text} if event.text or not event.reasoning else {}
            content = {"delta": {**role, **reasoning, **text}}
        return {"index": event.index, **content, "logprobs": logprobs, "finish_reason": None}

    def _end_choice(self, event: RowEnd) -> dict[str, Any]:
        chat = self.identity.endpoint is Endpoint.CHAT
        content: dict[str, Any] = {"delta": {}} if chat else {"text": ""}
        return {
            "index": event.index,
            **content,
            "logprobs": None,
            "finish_reason": event.finish_reason,
        }


def whole_body(
    identity: Identity, events: Iterable[RowDelta | RowEnd], rows: int, usage: Usage
) -> dict[str, Any]:
    """Return the body of an answer that is not streamed."""
    texts: list[list[str]] = [[] for _ in range(rows)]
    thoughts: list[list[str]] = [[] for _ in range(rows)]
    items: list[list[TokenItem]] = [[] for _ in range(rows)]
    reasons = ["stop"] * rows
    for event in events:
        if isinstance(event, RowEnd):
            reasons[event.index] = event.finish_reason
        else:
            texts[event.index].append(event.text)
            thoughts[event.index].append(event.reasoning)
            items[event.index].extend(event.items)
    choices = [
        {
            "index": index,
            **_whole_content(identity, "".join(texts[index]), "".join(thoughts[index])),
            "logprobs": render_logprobs(identity, items[index]),
            "finish_reason": reasons[index],
        }
        for index in range(rows)
    ]
    return {**identity.envelope(stream=False), "choices": choices, "usage": usage.body()}


def _whole_content(identity: Identity, text: str, reasoning: str) -> dict[str, Any]:
    if identity.endpoint is Endpoint.COMPLETIONS:
        return {"text": text}
    # An answer that only thinks has no content, as in OpenAI's form: null and not empty.
    message = {"role": "assistant", "content": text or (None if reasoning else ""), "refusal": None}
    thought = {"reasoning_content": reasoning} if reasoning else {}
    return {"message": {**message, **thought}}


def render_logprobs(identity: Identity, items: Sequence[TokenItem]) -> dict[str, Any] | None:
    """Return the endpoint's own form of log-probabilities, None when not asked for."""
    if not identity.logprobs:
        return None
    if identity.endpoint is Endpoint.CHAT:
        content = [
            {**_entry(item.piece), "top_logprobs": [_entry(piece) for piece in item.top]}
            for item in items
        ]
        return {"content": content, "refusal": None}
    return {
        "tokens": [_text(item.piece) for item in items],
        "token_logprobs": [item.piece.logprob for item in items],
        "top_logprobs": [
            {_text(piece): piece.logprob for piece in (*reversed(item.top), item.piece)}
            for item in items
        ],
        "text_offset": [item.text_offset for item in items],
    }


def _entry(piece: TokenPiece) -> dict[str, Any]:
    return {"token": _text(piece), "logprob": piece.logprob, "bytes": list(piece.data)}


def _text(piece: TokenPiece) -> str:
    return piece.data.decode(errors="replace")
