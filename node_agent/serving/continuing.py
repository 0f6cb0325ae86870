"""A stream that began on another node: what it was told to have said, and what is left of it.

Pure. Called by `completion.py` and the route of continuations.
"""

from collections.abc import Sequence
from dataclasses import replace

from manifests.errors import Code, Refusal, RequestError, Retryable
from manifests.wire.continuation import Continuation, ToldRow
from node_agent.serving.request import GenerationRequest
from node_agent.serving.responses import Identity
from node_agent.serving.rows import RowDelta, RowEnd, RowText


def continue_request(request: GenerationRequest, head: Continuation) -> GenerationRequest:
    """Return the request for the rest of a stream. Raises RequestError."""
    if not request.stream or request.top_logprobs is not None:
        _refuse("Only a stream without log-probabilities can be continued.")
    if len(head.rows) != request.rows:
        _refuse(f"The continuation has {len(head.rows)} choices, the request {request.rows}.")
    return replace(request, continues=head)


def name_again(identity: Identity, head: Continuation, vocabulary: int) -> Identity:
    """Return the identity of the stream that goes on. Raises RequestError."""
    if identity.system_fingerprint != head.fingerprint:
        message = "This node serves other weights than the node where the stream began."
        raise RequestError(Refusal(Code.ENGINE_NOT_READY, message, Retryable.ELSEWHERE))
    if any(not 0 <= one < vocabulary for row in head.rows if row is not None for one in row.ids):
        _refuse(f"Token ids must be below {vocabulary}.")
    return replace(identity, id=head.id, created=head.created)


def said_ids(request: GenerationRequest, row: int) -> tuple[int, ...]:
    """Return what a row has said elsewhere; nothing when the request begins here."""
    told = _told(request, row)
    return () if told is None else told.ids


def greeted_rows(request: GenerationRequest) -> frozenset[int]:
    """Return the rows of which the client has a chunk already."""
    rows = () if request.continues is None else request.continues.rows
    return frozenset(index for index, told in enumerate(rows) if told is not None)


def resume(
    request: GenerationRequest, texts: Sequence[RowText], max_tokens: Sequence[int]
) -> list[list[RowDelta | RowEnd] | None]:
    """Feed each row what it has said; return its last events where nothing is left to generate.

    `max_tokens` is each row's cap for its whole answer. Mutates: the texts.
    """
    return [
        None if told is None else _resume(text, told, most)
        for text, most in zip(texts, max_tokens, strict=True)
        for told in [_told(request, text.index)]
    ]


def _resume(text: RowText, told: ToldRow, max_tokens: int) -> list[RowDelta | RowEnd] | None:
    text.resume(told.ids)
    if told.ended:
        return []
    if told.reason:
        return [text.close(told.reason)]
    if text.stopped:
        return [text.close("stop")]
    return text.end("length") if len(told.ids) >= max_tokens else None


def _told(request: GenerationRequest, row: int) -> ToldRow | None:
    return None if request.continues is None else request.continues.rows[row]


def _refuse(message: str) -> None:
    raise RequestError(Refusal(Code.INVALID_VALUE, message))
