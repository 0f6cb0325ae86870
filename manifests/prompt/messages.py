"""The messages between an agent or a gateway and a tokenizer process, and their framing.

A frame is a four-byte big-endian length and one msgpack map tagged by type. Each command has a
number and gets exactly one reply with the same number.
"""

from typing import Any

import msgspec

from manifests.prompt.pieces import PiecePlan

HEADER_BYTES = 4


class Defaults(msgspec.Struct, frozen=True, kw_only=True):
    """What the model's own files say about generation; None where they are silent."""

    eos_token_ids: list[int] = []
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None


class TokenizerReady(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """First reply: the tokenizer is loaded. `decoder` is its JSON, for window plans.

    `text_fingerprint` names the files it was loaded from; empty where they cannot be told of.
    Without a table asked for, `pieces` is empty. `thinking` names the style of
    manifests/prompt/thinking.py that the model knows; empty when it knows none.
    """

    plan: PiecePlan
    pieces: list[bytes]
    decoder: str
    special_ids: list[int]
    bos_token_id: int | None
    has_chat_template: bool
    defaults: Defaults
    text_fingerprint: str = ""
    thinking: str = ""


NO_LIMIT = 2**31 - 1
"""Of tokens: more than any prompt has."""


class EncodeTexts(msgspec.Struct, frozen=True, kw_only=True, tag="texts"):
    """Tokenize plain texts, with the special tokens the tokenizer adds by itself.

    When one has more than `most_tokens`, the reply has their lengths alone: millions of ids
    would keep an event loop from everyone else only to be refused.
    """

    number: int
    texts: list[str]
    most_tokens: int = NO_LIMIT


class EncodeChat(msgspec.Struct, frozen=True, kw_only=True, tag="chat"):
    """Render a chat and tokenize it; the template alone writes the special tokens.

    `most_tokens` as in EncodeTexts.
    """

    number: int
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    variables: dict[str, Any] = {}
    most_tokens: int = NO_LIMIT


class EncodeBody(msgspec.Struct, frozen=True, kw_only=True, tag="body"):
    """Find the prompts in the JSON of an OpenAI body, and their ids.

    `variables` is the JSON of the Model's own template variables.
    """

    number: int
    chat: bool
    body: bytes
    variables: bytes = b"{}"


class PackedPrompts(msgspec.Struct, frozen=True, kw_only=True, tag="packed"):
    """The ids of each prompt of a body, four little-endian bytes each."""

    number: int
    prompts: list[bytes]


class Encoded(msgspec.Struct, frozen=True, kw_only=True, tag="encoded"):
    """The ids of each text, or of the one chat."""

    number: int
    ids: list[list[int]]


class TooLong(msgspec.Struct, frozen=True, kw_only=True, tag="long"):
    """How many tokens each text has, or the one chat, when that is too many."""

    number: int
    tokens: list[int]


class TextRefused(msgspec.Struct, frozen=True, kw_only=True, tag="refused"):
    """The input cannot be rendered; number -1 says the tokenizer cannot be loaded."""

    number: int
    message: str


TextCommand = EncodeTexts | EncodeChat | EncodeBody
TextReply = TokenizerReady | Encoded | PackedPrompts | TooLong | TextRefused

_encode = msgspec.msgpack.Encoder().encode
decode_text_command = msgspec.msgpack.Decoder(TextCommand).decode
decode_text_reply = msgspec.msgpack.Decoder(TextReply).decode


def frame(message: TextCommand | TextReply) -> bytes:
    """Return the message as one frame."""
    body = _encode(message)
    return len(body).to_bytes(HEADER_BYTES, "big") + body
