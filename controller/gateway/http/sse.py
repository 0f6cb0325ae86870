"""Server-sent events by the event: complete, well-formed, or a fault; no I/O.

Splits an upstream's bytes into whole events, lets through only events whose data is JSON or
`[DONE]`, and notes usage (from an event, or from an agent's comment), errors and the end. Takes
off the lines that are for the gateway alone. Called by the relay.
"""

from dataclasses import dataclass
from typing import Any

import msgspec

from controller.gateway.http.told import Told
from manifests.wire.continuation import MARKS
from manifests.wire.gateway import parse_usage_comment

_DONE = b"[DONE]"
DONE_EVENT = b"data: [DONE]\n\n"


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

    `error` is the payload of an error event, which is not passed on: it ends the stream, and the
    relay decides what becomes of it. What an agent tells of its tokens goes to `told`, event by
    event with what passes.
    """

    def __init__(self, max_event_bytes: int, told: Told | None = None) -> None:
        self._max_event_bytes = max_event_bytes
        self.told = Told() if told is None else told
        self._pending = b""
        self.done = False
        self.error: bytes | None = None
        self.usage: Usage | None = None
        self._fault = ""

    def feed(self, data: bytes) -> Batch:
        """Return the events that are whole now; what follows the end or a fault is dropped."""
        if self.done or self._fault or self.error is not None:
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
        has_data, good = False, 0
        parts: list[bytes] = []
        ours: list[bytes] = []
        lines: list[bytes] = []
        for line in events[:-1].split(b"\n") if events else ():
            text = line.rstrip(b"\r")
            if text.startswith(b"data:"):
                parts.append(text[5:].strip())
            elif text[:2] in MARKS:
                ours.append(text)
                continue
            elif not text:
                if parts and not self._take(b"\n".join(parts)):
                    break
                for told in ours:
                    self.told.take(told)
                has_data, good, parts, ours = has_data or bool(parts), len(lines) + 1, [], []
            elif (so_far := parse_usage_comment(text)) is not None:
                self.usage = Usage(*so_far)
                continue
            lines.append(line)
            if self.done:
                break
        return b"\n".join([*lines[:good], b""]), has_data

    def _take(self, payload: bytes) -> bool:
        """Note an event's data; return whether it may pass."""
        if payload == _DONE:
            self.done = True
            return True
        try:
            chunk = _DECODER.decode(payload)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            self._fault = "an event that is not JSON"
            return False
        if chunk.error is not None:
            self.error = payload
            return False
        if (usage := _usage(chunk.usage)) is not None:
            self.usage, self.told.usage_sent = usage, True
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
