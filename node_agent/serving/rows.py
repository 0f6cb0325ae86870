"""One answer being written: ids in, text out, until a stop.

Pure state machine; `completion.py` owns one per row and feeds it the engine's events.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from node_agent.engine.messages import TokenLogprobs
from node_agent.text.detokenizer import Detokenizer
from node_agent.text.reasoning import Parts, ReasoningSplitter
from node_agent.text.stops import StopMatcher

_LEAST_LOGPROB = -9999.0


@dataclass(frozen=True, slots=True)
class TokenPiece:
    """A token as log-probabilities show it."""

    data: bytes
    logprob: float


@dataclass(frozen=True, slots=True)
class TokenItem:
    """One generated token and its best alternatives; `text_offset` counts characters."""

    piece: TokenPiece
    top: tuple[TokenPiece, ...]
    text_offset: int


@dataclass(frozen=True, slots=True)
class RowDelta:
    """New text of one row, never empty of all, with the tokens that are complete in it.

    `text` is of the answer and `reasoning` of the thinking before it; only a token with both of
    them, on either side of a tag, makes a delta of both.
    `ids` are all that were taken since the last event of the row, with those whose text is still
    held back. A `reason` means that the text is whole now, what was held back included.
    """

    index: int
    text: str
    items: tuple[TokenItem, ...] = ()
    ids: tuple[int, ...] = ()
    reason: str = ""
    reasoning: str = ""


@dataclass(frozen=True, slots=True)
class RowEnd:
    """A row's last event: why it ended, in OpenAI's words. `ids` as in RowDelta."""

    index: int
    finish_reason: str
    ids: tuple[int, ...] = ()


@dataclass(slots=True)
class _Unsent:
    item: TokenItem
    start_bytes: int
    end_bytes: int


@dataclass(slots=True)
class RowText:
    """The text side of one row. Units: `tokens` generated up to and with a stop string."""

    index: int
    detokenizer: Detokenizer
    matcher: StopMatcher
    pieces: Sequence[bytes]
    splitter: ReasoningSplitter = field(default_factory=ReasoningSplitter)
    tokens: int = 0
    _unsent: deque[_Unsent] = field(default_factory=deque)
    _untold: list[int] = field(default_factory=list)
    _known_characters: int = 0
    _seen_bytes: int = 0
    _matched_bytes: int = 0

    @property
    def stopped(self) -> bool:
        """Whether a stop string ended the row."""
        return self.matcher.matched is not None

    def feed(self, ids: Sequence[int], logprobs: Sequence[TokenLogprobs]) -> list[RowDelta]:
        """Take new tokens; return what may be sent, maybe nothing yet."""
        deltas: list[RowDelta] = []
        pending = Parts()
        for place, token_id in enumerate(ids):
            if self.stopped:
                break
            offset = self._known_characters
            text, data = self.detokenizer.push(token_id)
            self.tokens += 1
            self._known_characters += len(text)
            if logprobs:
                self._note(data, logprobs[place], offset)
            self._seen_bytes += len(data)
            sent_bytes = self._let_out_bytes
            parts = self._split(self.matcher.push(text))
            if _differ(pending, parts):
                # Before this token counts as told: the ids of a delta make exactly its text.
                deltas += self._delta(pending, sent_bytes)
                pending = Parts()
            self._untold.append(token_id)
            pending = _joined(pending, parts)
        return [*deltas, *self._delta(pending, self._let_out_bytes)]

    def resume(self, ids: Sequence[int]) -> None:
        """Take the tokens that the client has been sent already, elsewhere."""
        self.feed(ids, ())
        self._untold.clear()

    def finish(self, reason: str = "stop") -> list[RowDelta]:
        """Take the end of generation; return what was held back."""
        text = "" if self.stopped else self.matcher.push(self.detokenizer.flush())
        parts = self._split(text + self.matcher.flush())
        capped = reason == "length" and not self.stopped
        last = self.splitter.flush(capped=capped)
        return self._delta(_joined(parts, last), self._let_out_bytes, final=True)

    def end(self, reason: str) -> list[RowDelta | RowEnd]:
        """Take the end of generation; return the row's last events."""
        deltas = self.finish(reason)
        reason = "stop" if self.stopped else reason
        last = [replace(delta, reason=reason) for delta in deltas]
        return [*last, self.close(reason)]

    def close(self, reason: str) -> RowEnd:
        """Return the event that closes the row, whose text is whole."""
        return RowEnd(self.index, reason, self._take_untold())

    def _split(self, text: str) -> Parts:
        """Return the parts of text that no stop string is in; all of it once one ended it."""
        self._matched_bytes += len(text.encode())
        parts = self.splitter.push(text)
        return _joined(parts, self.splitter.flush()) if self.stopped else parts

    def _take_untold(self) -> tuple[int, ...]:
        ids = tuple(self._untold)
        self._untold.clear()
        return ids

    def _note(self, data: bytes, logprobs: TokenLogprobs, offset: int) -> None:
        top = tuple(
            TokenPiece(self._piece_of(token_id), finite_logprob(value))
            for token_id, value in logprobs.top
        )
        item = TokenItem(TokenPiece(data, finite_logprob(logprobs.logprob)), top, offset)
        self._unsent.append(_Unsent(item, self._seen_bytes, self._seen_bytes + len(data)))

    def _piece_of(self, token_id: int) -> bytes:
        return self.pieces[token_id] if 0 <= token_id < len(self.pieces) else b""

    @property
    def _let_out_bytes(self) -> int:
        return self._matched_bytes - len(self.splitter.held.encode())

    def _delta(self, parts: Parts, sent_bytes: int, final: bool = False) -> list[RowDelta]:
        """Return one delta, or none when there is nothing to send."""
        text, reasoning = parts.content, parts.reasoning
        if not text and not reasoning and not final:
            return []
        items = []
        while self._unsent and self._goes_out(self._unsent[0], sent_bytes, final):
            items.append(self._unsent.popleft().item)
        if not text and not reasoning and not items:
            return []
        delta = RowDelta(self.index, text, tuple(items), self._take_untold(), reasoning=reasoning)
        return [delta]

    def _goes_out(self, unsent: _Unsent, sent_bytes: int, final: bool) -> bool:
        if self.stopped:
            return unsent.start_bytes < sent_bytes
        return final or unsent.end_bytes <= sent_bytes


def _differ(pending: Parts, new: Parts) -> bool:
    """Whether new text does not belong in one delta with what is pending."""
    if pending.reasoning and pending.content:
        return bool(new.reasoning or new.content)
    return bool((pending.reasoning and new.content) or (pending.content and new.reasoning))


def _joined(first: Parts, then: Parts) -> Parts:
    return Parts(first.reasoning + then.reasoning, first.content + then.content)


def finite_logprob(value: float) -> float:
    """Return the value as JSON can hold it: impossible tokens get a very low number."""
    return max(value, _LEAST_LOGPROB) if math.isfinite(value) else _LEAST_LOGPROB
