"""Properties of the text side: cutting text into tokens or pieces never changes it."""

from hypothesis import given, settings
from hypothesis import strategies as st

from manifests.prompt.pieces import PieceKind, PiecePlan
from node_agent.text.detokenizer import ByteDetokenizer
from node_agent.text.stops import StopMatcher
from tests.support.local_text import LocalText

NUMBERS = st.lists(st.integers(0, 10_000), max_size=40)
PIECES = st.lists(st.text("abc\n é", max_size=5), max_size=12)
STOPS = st.lists(st.text("abc\n é", max_size=4), max_size=4)
SLOW = settings(deadline=None, max_examples=150)


def joined(text: LocalText, ids: list[int]) -> str:
    detokenizer = text.new_detokenizer()
    return "".join(detokenizer.push(number)[0] for number in ids) + detokenizer.flush()


@SLOW
@given(numbers=NUMBERS)
def test_any_ids_of_a_byte_level_tokenizer_join_to_their_decoding(
    texts: dict[str, LocalText], numbers: list[int]
) -> None:
    """B12, B27: invalid bytes included."""
    text = texts["byte_level"]
    ids = [number % len(text.ready.pieces) for number in numbers]
    assert joined(text, ids) == text.decode(ids)


@SLOW
@given(numbers=NUMBERS)
def test_any_ids_of_a_metaspace_tokenizer_join_to_their_decoding(
    texts: dict[str, LocalText], numbers: list[int]
) -> None:
    """B27."""
    text = texts["metaspace"]
    ids = [number % len(text.ready.pieces) for number in numbers]
    assert joined(text, ids) == text.decode(ids)


@SLOW
@given(sample=st.text(max_size=40))
def test_any_text_of_a_byte_fallback_tokenizer_joins_to_its_decoding(
    texts: dict[str, LocalText], sample: str
) -> None:
    """B12, B27: characters outside the vocabulary arrive byte by byte."""
    text = texts["fallback"]
    ids = text.ids(sample)
    assert joined(text, ids) == text.decode(ids)


@given(pieces=st.lists(st.binary(max_size=4), max_size=20))
def test_bytes_cut_anywhere_decode_as_the_whole(pieces: list[bytes]) -> None:
    """B12."""
    detokenizer = ByteDetokenizer(PiecePlan(kind=PieceKind.BYTES), pieces)
    pushed = [detokenizer.push(number) for number in range(len(pieces))]
    assert "".join(text for text, _ in pushed) + detokenizer.flush() == b"".join(pieces).decode(
        errors="replace"
    )
    assert b"".join(data for _, data in pushed) == b"".join(pieces)


@given(pieces=PIECES, stops=STOPS)
def test_a_stop_is_found_where_a_search_of_the_whole_text_finds_it(
    pieces: list[str], stops: list[str]
) -> None:
    """B13."""
    whole = "".join(pieces)
    places = [whole.find(stop) for stop in stops if stop and stop in whole]
    matcher = StopMatcher(stops)
    sent = "".join(matcher.push(piece) for piece in pieces) + matcher.flush()
    assert sent == (whole[: min(places)] if places else whole)
    assert (matcher.matched is not None) == bool(places)
