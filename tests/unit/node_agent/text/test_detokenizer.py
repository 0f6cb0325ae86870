import json
from pathlib import Path

import pytest
from tokenizers import decoders

from manifests.prompt.pieces import PieceKind, PiecePlan, byte_level_alphabet, plan_pieces
from node_agent.text.detokenizer import ByteDetokenizer, WindowDetokenizer
from tests.support.local_text import LocalText, local_text
from tests.support.tiny_tokenizers import FAMILIES

SMOLLM2 = Path(__file__).resolve().parents[4] / ".models" / "smollm2-135m"

TEXTS = [
    " x",
    "  x",
    "x ",
    "\n\n x",
    "\ttab\tbed",
    "def f():\n    return 1\n",
    "日本語 の テキスト",
    "     ",
    "a",
    "hello",
    "👩‍👩‍👧 family",
    "สวัสดี 안녕하세요",
    "nul\u0000 cr\r lf\n ls\u2028end",
]


def stream(text: LocalText, ids: list[int]) -> list[str]:
    detokenizer = text.new_detokenizer()
    return [*(detokenizer.push(number)[0] for number in ids), detokenizer.flush()]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("sample", TEXTS)
def test_joined_deltas_are_the_tokenizers_own_decoding(
    texts: dict[str, LocalText], family: str, sample: str
) -> None:
    """B27: stream, whole answer and decode(all ids) are byte-equal; nothing is trimmed."""
    text = texts[family]
    ids = text.ids(sample)
    assert "".join(stream(text, ids)) == text.decode(ids)


def test_a_real_tokenizer_streams_every_sample_unchanged() -> None:
    """B27, with the tokenizer of a real model when it is there."""
    if not (SMOLLM2 / "tokenizer.json").exists():
        pytest.skip("needs .models/smollm2-135m (make models)")
    text = local_text(SMOLLM2)
    for sample in TEXTS:
        assert "".join(stream(text, text.ids(sample))) == sample


def bytewise(pieces: list[bytes], ids: list[int] | None = None) -> list[str]:
    detokenizer = ByteDetokenizer(PiecePlan(kind=PieceKind.BYTES), pieces)
    numbers = range(len(pieces)) if ids is None else ids
    return [*(detokenizer.push(number)[0] for number in numbers), detokenizer.flush()]


def test_an_emoji_split_over_tokens_comes_out_whole() -> None:
    """B12: F0 9F | 98 80 is one character and never two replacement marks."""
    assert bytewise([b"\xf0\x9f", b"\x98\x80"]) == ["", "😀", ""]


def test_a_piece_may_end_one_character_and_begin_the_next() -> None:
    """B12: the rest of one character goes out, the start of the next waits."""
    assert bytewise([b"a\xe4", b"\xb8\x96\xe7", b"\x95\x8c!"]) == ["a", "世", "界!", ""]


def test_a_truncated_last_character_is_replaced_once_at_the_end() -> None:
    """B12: only the invalid tail becomes U+FFFD, and only at flush."""
    assert bytewise([b"ok", b"\xf0\x9f\x98"]) == ["ok", "", "\ufffd"]


def test_thai_by_single_bytes_joins_to_the_text() -> None:
    """B12: one byte per token."""
    sample = "สวัสดี한국"
    pieces = [bytes([byte]) for byte in sample.encode()]
    deltas = bytewise(pieces)
    assert "".join(deltas) == sample
    assert [delta for delta in deltas if delta] == list(sample)


def test_special_and_unknown_ids_add_nothing(texts: dict[str, LocalText]) -> None:
    text = texts["byte_level"]
    ids = text.ids("hi")
    noisy = [text.ready.special_ids[0], *ids, 10_000_000, text.ready.special_ids[-1]]
    assert "".join(stream(text, noisy)) == "hi"


def test_a_word_after_a_control_token_keeps_its_form(texts: dict[str, LocalText]) -> None:
    """B27: text right after a control token is decoded as the tokenizer decodes it."""
    for family in FAMILIES:
        text = texts[family]
        ids = [text.ready.special_ids[0], *text.ids("hello world")]
        assert "".join(stream(text, ids)) == text.decode(ids)


def test_an_unknown_decoder_gets_a_window_that_still_joins_to_the_whole() -> None:
    wordpiece = decoders.WordPiece(prefix="##", cleanup=False)
    tokens = ["hel", "##lo", "wor", "##ld", "!"]
    detokenizer = WindowDetokenizer([token.encode() for token in tokens], wordpiece.decode)
    deltas = [*(detokenizer.push(number)[0] for number in range(5)), detokenizer.flush()]
    assert "".join(deltas) == wordpiece.decode(tokens) == "hello world !"


def test_decoders_are_recognised_by_their_form() -> None:
    llama = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    plan = plan_pieces(json.loads(llama.__getstate__()))
    assert (plan.kind, plan.byte_fallback, plan.strip_left) == (PieceKind.BYTES, True, 1)
    odd = decoders.Sequence([decoders.Fuse(), decoders.Strip(" ", 0, 1)])
    assert plan_pieces(json.loads(odd.__getstate__())).kind is PieceKind.WINDOW
    assert plan_pieces(None).kind is PieceKind.WINDOW


def test_the_byte_alphabet_covers_every_byte_once() -> None:
    assert sorted(byte_level_alphabet().values()) == list(range(256))
