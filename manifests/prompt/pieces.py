"""What each token id adds to the text, as bytes, read from a tokenizer's own decoder.

Pure. Most decoders are a table from id to bytes plus a rule for the start of the text; those
become a `BYTES` plan and need no tokenizer at run time. Any other decoder becomes a `WINDOW`
plan, which keeps the token strings and runs the decoder itself. The tokenizer process calls
this once a model; the detokenizer reads the result.
"""

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

import msgspec

_NO_STRIP = {"content": " ", "start": 0, "stop": 0}
_FALLBACK = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class PieceKind(StrEnum):
    """How pieces become text."""

    BYTES = "bytes"
    WINDOW = "window"


class PiecePlan(msgspec.Struct, frozen=True, kw_only=True):
    """How token strings become bytes.

    `strip_left` spaces at most are taken off the start of the text; `drop_first` takes every
    space off the first piece instead, as the Metaspace decoder does.
    """

    kind: PieceKind
    byte_level: bool = False
    byte_fallback: bool = False
    replace: str = ""
    strip_left: int = 0
    drop_first: bool = False


def plan_pieces(decoder: Mapping[str, Any] | None) -> PiecePlan:
    """Return the plan for a tokenizer.json decoder; unknown forms get the window plan."""
    if decoder is None:
        return PiecePlan(kind=PieceKind.WINDOW)
    if decoder["type"] == "ByteLevel":
        return PiecePlan(kind=PieceKind.BYTES, byte_level=True)
    if decoder["type"] == "Metaspace":
        dropped = decoder.get("prepend_scheme", "always") != "never"
        return PiecePlan(kind=PieceKind.BYTES, replace=decoder["replacement"], drop_first=dropped)
    if decoder["type"] == "Sequence":
        return _plan_sequence(decoder["decoders"])
    return PiecePlan(kind=PieceKind.WINDOW)


def _plan_sequence(steps: Sequence[Mapping[str, Any]]) -> PiecePlan:
    if len(steps) == 1:
        return plan_pieces(steps[0])
    kinds = [step["type"] for step in steps]
    known = kinds in (
        ["Replace", "ByteFallback", "Fuse"],
        ["Replace", "ByteFallback", "Fuse", "Strip"],
    )
    if not known or steps[0]["content"] != " " or "String" not in steps[0]["pattern"]:
        return PiecePlan(kind=PieceKind.WINDOW)
    strip: Mapping[str, Any] = steps[3] if len(steps) == 4 else _NO_STRIP
    if strip["content"] != " " or strip["stop"]:
        return PiecePlan(kind=PieceKind.WINDOW)
    return PiecePlan(
        kind=PieceKind.BYTES,
        byte_fallback=True,
        replace=steps[0]["pattern"]["String"],
        strip_left=strip["start"],
    )


def byte_level_alphabet() -> dict[str, int]:
    """Return GPT-2's map from printable characters to the bytes they stand for."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(0x100) if byte not in set(printable)]
    shifted = {chr(0x100 + place): byte for place, byte in enumerate(hidden)}
    return {chr(byte): byte for byte in printable} | shifted


def build_pieces(
    plan: PiecePlan, tokens: Sequence[str | None], skipped: frozenset[int]
) -> list[bytes]:
    """Return the bytes of each id; skipped (special) and unknown ids have none."""
    alphabet = byte_level_alphabet() if plan.byte_level else {}
    return [
        b"" if token is None or number in skipped else _piece(plan, token, alphabet)
        for number, token in enumerate(tokens)
    ]


def _piece(plan: PiecePlan, token: str, alphabet: Mapping[str, int]) -> bytes:
    if plan.byte_level:
        try:
            return bytes(alphabet[character] for character in token)
        except KeyError:
            return token.encode()
    if plan.byte_fallback:
        match = _FALLBACK.fullmatch(token)
        if match is not None:
            return bytes([int(match.group(1), 16)])
    return (token.replace(plan.replace, " ") if plan.replace else token).encode()
