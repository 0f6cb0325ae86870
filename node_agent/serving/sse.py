"""Server-sent events, framed so that every client's parser agrees on where a line ends.

Pure.
"""

from typing import Any

import msgspec

DONE = b"data: [DONE]\n\n"

_encode = msgspec.json.Encoder().encode
# Legal inside JSON, but some clients split lines at them.
_LINE_ENDS = (
    (b"\xe2\x80\xa8", b"\\u2028"),
    (b"\xe2\x80\xa9", b"\\u2029"),
    (b"\xc2\x85", b"\\u0085"),
)


def encode_json(value: Any) -> bytes:
    """Return compact JSON on one line in the eyes of every client."""
    data = _encode(value)
    for raw, escaped in _LINE_ENDS:
        data = data.replace(raw, escaped)
    return data


def event(value: Any) -> bytes:
    """Return one data event."""
    return b"data: " + encode_json(value) + b"\n\n"


def comment(text: str) -> bytes:
    """Return a comment, which clients skip and proxies count as traffic."""
    return b": " + " ".join(text.split()).encode() + b"\n\n"
