"""From the bytes of a file to text that a YAML parser can be trusted with.

Owns encodings, byte order marks, line endings and characters that parsers disagree about.
"""

import codecs
import re

MAX_BYTES = 4 * 1024 * 1024

# YAML's printable characters, less U+0085, U+2028 and U+2029, which only YAML 1.1 takes for ends
# of lines.
_UNFIT = re.compile("[^\t\n\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
# A mark belongs at the start of a stream; joined files have one at the start of a later document.
_INNER_MARK = re.compile("^\ufeff(?=---|%)|(?<=^---\n)\ufeff|(?<=^\\.\\.\\.\n)\ufeff", re.M)
_PAIR = re.compile(
    r"(?<!\\)((?:\\\\)*)\\u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})"
)


class TextError(ValueError):
    """The bytes are no text. `line` and `column` count from 1; `hint` says what to do."""

    def __init__(self, message: str, hint: str = "", line: int = 1, column: int = 1) -> None:
        super().__init__(message)
        self.message, self.hint = message, hint
        self.line, self.column = line, column


def decode(body: bytes) -> str:
    """Return the text of a manifest with line feeds only and no byte order mark.

    Raises: TextError when it is too large, in another encoding, or holds control characters.
    """
    if len(body) > MAX_BYTES:
        raise TextError(f"larger than {MAX_BYTES // (1024 * 1024)} MiB", "split the file")
    return clean(_decode_bytes(body))


def clean(text: str) -> str:
    """Return text with line feeds only and no byte order mark. Raises TextError."""
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    if "\ufeff" in text:
        text = _INNER_MARK.sub("", text)
    unfit = _UNFIT.search(text)
    if unfit is not None:
        line = text.count("\n", 0, unfit.start()) + 1
        column = unfit.start() - text.rfind("\n", 0, unfit.start())
        code = f"U+{ord(unfit[0]):04X}"
        hint = f'remove it, or write it as "\\u{ord(unfit[0]):04x}" in quotes'
        raise TextError(f"the character {code} cannot stand in YAML", hint, line, column)
    if "\\u" in text and text.lstrip()[:1] in {"{", "["}:
        # JSON writes a character beyond U+FFFF as two escapes, which YAML does not know.
        text = _PAIR.sub(_join_pair, text)
    return text


def _join_pair(match: re.Match[str]) -> str:
    high, low = int(match[2], 16), int(match[3], 16)
    return match[1] + chr(0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00))


def _decode_bytes(body: bytes) -> str:
    encoding = "utf-8"
    if body.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        encoding = "utf-32"
    elif body.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        encoding = "utf-16"
    # Without a mark, the zero byte beside a first ASCII character gives UTF-16 away.
    elif body[1:2] == b"\0" and body[:1] != b"\0":
        encoding = "utf-16-le"
    elif body[:1] == b"\0" and body[1:2] != b"\0":
        encoding = "utf-16-be"
    try:
        return body.decode(encoding)
    except UnicodeDecodeError as fault:
        line = body.count(b"\n", 0, fault.start) + 1
        raise TextError(f"not {encoding.upper()} text", "save the file as UTF-8", line) from None
