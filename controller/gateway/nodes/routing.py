"""Which Models a request to a Route may go to, in order; pure.

The draw and the hash are passed in or made of the request alone, never of who sent it: one
conversation behind many addresses is one conversation. Called by `catalog`.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from controller.gateway.http.asgi import RawHeader, find_header
from manifests.kinds.route import Backend, Match, Route, Sticky

_LONGEST_VALUE = 1000
_PROMPT_BYTES = 512


@dataclass(frozen=True, slots=True)
class Asking:
    """What routing reads of a request. `draw` in [0, 1) decides where nothing else does."""

    headers: Sequence[RawHeader] = ()
    body: bytes = field(default=b"", repr=False)
    draw: float = 0.0


class _Body(msgspec.Struct):
    messages: Any = None
    prompt: Any = None


_DECODER = msgspec.json.Decoder(_Body)


def plan_models(route: Route, asking: Asking) -> tuple[str, ...]:
    """Return the Models to try, the first choice first, each once.

    After the backend that was drawn come the others of some weight, the heaviest first, then the
    fallbacks.
    """
    spec = route.spec
    rule = next((item for item in spec.rules if matches(item.match, asking.headers)), None)
    backends = spec.backends if rule is None else rule.backends
    draw = asking.draw
    if spec.sticky is Sticky.PREFIX and (start := find_start(asking.body)):
        draw = draw_of(str(route.metadata.name), start)
    return tuple(dict.fromkeys([*order_backends(backends, draw), *spec.fallbacks]))


def order_backends(backends: Sequence[Backend], draw: float) -> tuple[str, ...]:
    """Return the models of some weight, the one drawn first. `draw` is in [0, 1).

    Backends share the line from 0 to 1 in the order they are declared, so a change of weights
    moves no more requests than it must.
    """
    live = [item for item in backends if item.weight]
    point = draw * sum(item.weight for item in live)
    chosen: list[Backend] = []
    for item in live:
        if point < item.weight:
            chosen = [item]
            break
        point -= item.weight
    heaviest = sorted(live, key=lambda item: -item.weight)
    return tuple(dict.fromkeys(item.model for item in [*(chosen or live[-1:]), *heaviest]))


def matches(match: Match, headers: Iterable[RawHeader]) -> bool:
    """Whether a request's headers are as a rule says. A very long value matches no pattern."""
    given = tuple(headers)

    def value_of(name: str) -> str | None:
        value = find_header(given, name.encode("latin-1"))
        return None if value is None else value.decode("latin-1")

    if any(value_of(name) != wanted for name, wanted in match.headers.items()):
        return False
    for name, pattern in match.header_patterns.items():
        value = value_of(name)
        if value is None or len(value) > _LONGEST_VALUE or not re.fullmatch(pattern, value):
            return False
    return True


def find_start(body: bytes) -> bytes:
    """Return what stays the same from turn to turn of a conversation; empty when there is none.

    Of a chat it is everything up to the first user message, that included: system prompts alone
    are shared by too many. Of a text prompt it is the first 512 bytes.
    """
    try:
        parsed = _DECODER.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return b""
    if isinstance(parsed.messages, list):
        return _start_of_chat(parsed.messages)
    if parsed.prompt is None:
        return b""
    prompt = parsed.prompt
    return (prompt.encode() if isinstance(prompt, str) else msgspec.json.encode(prompt))[
        :_PROMPT_BYTES
    ]


def _start_of_chat(messages: Sequence[Any]) -> bytes:
    start = []
    for message in messages:
        is_message = isinstance(message, Mapping)
        start.append((message.get("role"), message.get("content")) if is_message else message)
        if is_message and message.get("role") == "user":
            break
    return msgspec.json.encode(start) if start else b""


def draw_of(route: str, start: bytes) -> float:
    """Return the point in [0, 1) where a conversation falls on a route, the same for ever."""
    digest = hashlib.sha256(route.encode() + b"\0" + start).digest()
    # 53 bits are all that a float holds.
    return (int.from_bytes(digest[:8], "big") >> 11) / 2.0**53
