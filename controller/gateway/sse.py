"""Server-sent events by the event: complete, well-formed, or a fault; no I/O.

Splits an upstream's bytes into whole events, lets through only events whose data is JSON or
`[DONE]`, and notes usage (from an event, or from an agent's comment), errors and the end. Called
by the relay.
"""

from dataclasses import dataclass
from typing import Any

import msgspec

from manifests.wire.gateway import parse_usage_comment

_DONE = b"[DONE]"


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one answer. Units: tokens."""

    prompt_tokens: int = 0
    completion_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Batch:
    """The whole events of one read: bytes to pass on unchanged, and whether any holds data."""

    passed: bytes
    has_data: bool
    fault: str = ""


class _Chunk(msgspec.Struct):
    usage: Any = None
    error: Any = None


_DECODER = msgspec.json.Decoder(_Chunk)


class EventReader:
    """Reads one stream. Attributes tell what has been seen so far.

    `early_error` is the payload of an error event that came before any other data.
    """

    def __init__(self, max_event_bytes: int) -> None:
        self._max_event_bytes = max_event_bytes
        self._pending = b""
        self.done = False
        self.errored = False
        self.early_error: bytes | None = None
        self.usage: Usage | None = None
        self._fault = ""
        self._has_data = False

    def feed(self, data: bytes) -> Batch:
        """Return the events that are whole now; what follows `[DONE]` or a fault is dropped."""
        if self.done or self._fault:
            return Batch(b"", has_data=False, fault=self._fault)
        buffer = self._pending + data if self._pending else data
        cut = max(buffer.rfind(b"\n\n") + 2, buffer.rfind(b"\n\r\n") + 3)
        cut = cut if cut > 2 else 0
        self._pending = buffer[cut:]
        passed, has_data = self._check(buffer[:cut])
        if not self._fault and len(self._pending) > self._max_event_bytes:
            self._fault = "an event without an end"
        return Batch(passed, has_data, self._fault)

    def _check(self, events: bytes) -> tuple[bytes, bool]:
        """Return the leading good events, and whether one has data. Mutates: what is seen."""
        has_data, good, offset = False, 0, 0
        parts: list[bytes] = []
        for line in events.split(b"\n"):
            offset = min(offset + len(line) + 1, len(events))
            text = line.rstrip(b"\r")
            if text.startswith(b"data:"):
                parts.append(text[5:].strip())
            elif not text:
                if parts and not self._take(b"\n".join(parts)):
                    self._fault = "an event that is not JSON"
                    break
                has_data, good, parts = has_data or bool(parts), offset, []
                if self.done:
                    break
            elif (so_far := parse_usage_comment(text)) is not None:
                self.usage = Usage(*so_far)
        return events[:good], has_data

    def _take(self, payload: bytes) -> bool:
        if payload == _DONE:
            self.done = True
            return True
        try:
            chunk = _DECODER.decode(payload)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            return False
        self.errored = self.errored or chunk.error is not None
        if chunk.error is not None and not self._has_data:
            self.early_error = payload
        self._has_data = True
        self.usage = _usage(chunk.usage) or self.usage
        return True


def read_usage(body: bytes) -> Usage | None:
    """Return the token counts of a complete answer, or None.

    Raises: ValueError when the body is not a JSON object.
    """
    try:
        return _usage(_DECODER.decode(body).usage)
    except (msgspec.DecodeError, RecursionError) as fault:
        raise ValueError("the answer is not a JSON object") from fault


def _usage(raw: Any) -> Usage | None:
    if not isinstance(raw, dict):
        return None
    prompt, completion = raw.get("prompt_tokens"), raw.get("completion_tokens")
    return Usage(
        prompt if isinstance(prompt, int) else 0, completion if isinstance(completion, int) else 0
    )


def error_event(body: bytes) -> bytes:
    """Return an OpenAI error body as the last event of a stream."""
    return b"data: " + body + b"\n\n"
