"""Turns token ids into text as they come, so that the joined deltas are the whole text.

Bytes of a character that is not complete yet are held back; an invalid tail comes out once, at
`flush`, as replacement characters. Nothing is trimmed but what the tokenizer's own decoder
trims. Pure state machines without a tokenizer; one per row, made by `TextModel`.

For byte-fallback tokenizers a broken run of byte tokens differs from the tokenizer's own
decoding on purpose: that turns every byte of the run into U+FFFD, also the characters that
were complete and are long sent; here only the broken bytes are replaced.
"""

import codecs
from collections.abc import Callable, Sequence
from typing import Protocol

from manifests.prompt.pieces import PieceKind, PiecePlan

_REPLACEMENT = "\ufffd"


class Detokenizer(Protocol):
    """One row's way from ids to text."""

    def push(self, token_id: int) -> tuple[str, bytes]:
        """Return the text that became complete (maybe none) and the bytes this id added."""
        ...

    def flush(self) -> str:
        """Return what was held back, made valid; call once, at the end."""
        ...


class ByteDetokenizer:
    """For decoders that are a table of bytes."""

    def __init__(self, plan: PiecePlan, pieces: Sequence[bytes]) -> None:
        self._pieces = pieces
        self._strip_left = plan.strip_left
        self._drop_first = plan.drop_first
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> tuple[str, bytes]:
        """Return the text that became complete and the bytes this id added."""
        piece = self._pieces[token_id] if 0 <= token_id < len(self._pieces) else b""
        if piece and self._drop_first:
            piece = piece.replace(b" ", b"")
            self._drop_first = False
        while self._strip_left and piece:
            if not piece.startswith(b" "):
                self._strip_left = 0
                break
            piece = piece[1:]
            self._strip_left -= 1
        return self._decoder.decode(piece), piece

    def flush(self) -> str:
        """Return the replacement for an incomplete last character, if there is one."""
        return self._decoder.decode(b"", final=True)


class WindowDetokenizer:
    """For any other decoder: decode a short window again and send what is new in it."""

    def __init__(
        self,
        pieces: Sequence[bytes],
        decode: Callable[[list[str]], str],
    ) -> None:
        self._pieces = pieces
        self._decode = decode
        self._window: list[str] = []
        self._settled = 0

    def push(self, token_id: int) -> tuple[str, bytes]:
        """Return the text that became complete and the bytes this id added."""
        piece = self._pieces[token_id] if 0 <= token_id < len(self._pieces) else b""
        if not piece:
            return "", b""
        self._window.append(piece.decode())
        before = self._decode(self._window[: self._settled])
        after = self._decode(self._window)
        if after.endswith(_REPLACEMENT) or len(after) <= len(before):
            return "", piece
        self._window = self._window[self._settled :]
        self._settled = len(self._window)
        new = after[len(before) :]
        return new, new.encode()

    def flush(self) -> str:
        """Return the text held back."""
        before = self._decode(self._window[: self._settled])
        return self._decode(self._window)[len(before) :]


def make_detokenizer(
    plan: PiecePlan, pieces: Sequence[bytes], decode: Callable[[list[str]], str]
) -> Detokenizer:
    """Return a fresh detokenizer; `decode` runs the tokenizer's decoder for window plans."""
    if plan.kind is PieceKind.BYTES:
        return ByteDetokenizer(plan, pieces)
    return WindowDetokenizer(pieces, decode)
