"""What the gateway must know of a request body, and nothing more; pure.

The body itself is passed on byte for byte: the agent validates and tokenizes it. Called by
the handlers. No text of the prompt leaves this module, not even inside an error.
"""

import math
from dataclasses import dataclass, field
from typing import Any

import msgspec

from manifests.errors import Code, Refusal, Retryable
from manifests.prompt.body import CHAT_FIELDS

_SHOWN_NAME_CHARS = 64
# As agents have it: the cap of /v1/completions without one, and what priorities may be.
_COMPLETION_TOKENS = 16
_MAX_PRIORITY = 1000
MAX_ROWS = 128
_MAX_TOKENS = 2**31 - 1
_MAX_DEADLINE_SECONDS = 86_400.0
_PROMPT_FIELDS = (*CHAT_FIELDS, "prompt")
_TIERS = {"priority": 1, "flex": -1}


@dataclass(frozen=True, slots=True)
class Peeked:
    """The routing facts of one request. Units: tokens, estimated from bytes unless `exact`.

    `prompt_body` is the JSON of what the prompt is made of, alone; empty without a prompt.
    `max_tokens` is None when the client sets no usable limit. A higher `priority` goes first, as
    in the engines. What is no usable value here is refused by the agent.
    """

    model: str
    stream: bool
    include_usage: bool
    prompt_tokens: int
    max_tokens: int | None
    exact: bool = False
    rows: int = 1
    priority: int = 0
    deadline_seconds: float | None = None
    cache_salt: str = ""
    prompt_body: bytes = field(default=b"", repr=False)


class _Body(msgspec.Struct):
    model: Any = None
    stream: Any = None
    stream_options: Any = None
    max_tokens: Any = None
    max_completion_tokens: Any = None
    n: Any = None
    priority: Any = None
    service_tier: Any = None
    deadline_seconds: Any = None
    cache_salt: Any = None
    messages: msgspec.Raw = msgspec.Raw(b"")
    prompt: msgspec.Raw = msgspec.Raw(b"")
    tools: msgspec.Raw = msgspec.Raw(b"")
    tool_choice: msgspec.Raw = msgspec.Raw(b"")
    parallel_tool_calls: msgspec.Raw = msgspec.Raw(b"")
    chat_template_kwargs: msgspec.Raw = msgspec.Raw(b"")
    reasoning_effort: msgspec.Raw = msgspec.Raw(b"")


_DECODER = msgspec.json.Decoder(_Body)


def peek(body: bytes, *, bytes_per_token: float = 4.0) -> Peeked | Refusal:
    """Return the routing facts of a chat or text completion body, or why it has none."""
    try:
        parsed = _DECODER.decode(body)
    except msgspec.ValidationError:
        return Refusal(Code.INVALID_JSON, "The request body must be a JSON object.")
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return Refusal(Code.INVALID_JSON, "The request body is not valid JSON.")
    if parsed.model is None or parsed.model == "":
        return _bad("model", "Set `model` to one of the ids of GET /v1/models.")
    if not isinstance(parsed.model, str):
        return _bad("model", "`model` must be a string.")
    if parsed.stream is not None and not isinstance(parsed.stream, bool):
        return _bad("stream", "`stream` must be true or false.")
    options = parsed.stream_options
    prompt = bytes(parsed.prompt)
    size = max(len(bytes(parsed.messages)), len(prompt))
    ids, rows = _count_ids(prompt), _token_cap(parsed.n) or 1
    cap = _token_cap(parsed.max_completion_tokens, parsed.max_tokens)
    if cap is None and prompt:
        cap = _COMPLETION_TOKENS
    return Peeked(
        model=parsed.model,
        stream=bool(parsed.stream),
        include_usage=isinstance(options, dict) and options.get("include_usage") is True,
        prompt_tokens=ids or math.ceil(size / bytes_per_token),
        max_tokens=cap,
        exact=ids > 0 and rows <= MAX_ROWS,
        rows=min(rows, MAX_ROWS),
        priority=_priority(parsed.priority, parsed.service_tier),
        deadline_seconds=_positive(parsed.deadline_seconds),
        cache_salt=parsed.cache_salt if isinstance(parsed.cache_salt, str) else "",
        prompt_body=_prompt_body(parsed),
    )


def refuse_oversize(limit_bytes: int) -> Refusal:
    """Return the refusal of a body that is larger than the gateway reads."""
    return Refusal(
        Code.REQUEST_TOO_LARGE,
        f"The request body is larger than {limit_bytes} bytes.",
        hint="Send less, or raise the gateway's body limit.",
    )


def shown_name(name: str) -> str:
    """Return a client's model name, short and printable, for messages."""
    short = name if len(name) <= _SHOWN_NAME_CHARS else name[:_SHOWN_NAME_CHARS] + "..."
    return short.encode("unicode_escape").decode("ascii") if not short.isprintable() else short


def _count_ids(prompt: bytes) -> int:
    """Return how many token ids a prompt is, 0 when it is text or several prompts."""
    inner = prompt.strip()[1:-1].strip()
    one_list = prompt.lstrip()[:1] == b"[" and b'"' not in inner and b"[" not in inner
    return inner.count(b",") + 1 if one_list and inner else 0


def _prompt_body(parsed: _Body) -> bytes:
    """Return the JSON of what the prompt is made of; all else makes no difference to its ids."""
    if not (bytes(parsed.messages) or bytes(parsed.prompt)):
        return b""
    parts = []
    for name in _PROMPT_FIELDS:
        raw = bytes(getattr(parsed, name))
        if raw:
            parts.append(b'"%s":%s' % (name.encode(), raw))
    return b"{%s}" % b",".join(parts)


def _priority(lower_first: Any, tier: Any) -> int:
    """Return the engine's priority, where higher goes first; the agent refuses bad values."""
    if isinstance(lower_first, int) and not isinstance(lower_first, bool):
        return max(-_MAX_PRIORITY, min(_MAX_PRIORITY, -lower_first))
    return _TIERS.get(tier, 0) if isinstance(tier, str) else 0


def _positive(value: Any) -> float | None:
    usable = isinstance(value, int | float) and not isinstance(value, bool) and value > 0
    # In this order: an integer of hundreds of digits is no float.
    return float(min(value, _MAX_DEADLINE_SECONDS)) if usable else None


def _bad(param: str, message: str) -> Refusal:
    return Refusal(Code.INVALID_VALUE, message, Retryable.NO, param=param)


def _token_cap(*candidates: Any) -> int | None:
    """Return the first positive integer; the agent refuses what is neither that nor null."""
    for value in candidates:
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return min(value, _MAX_TOKENS)
    return None
