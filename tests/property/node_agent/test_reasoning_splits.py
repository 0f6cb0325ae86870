"""B16: cutting a text into pieces never changes what of it is thinking, and loses nothing."""

import itertools
import re

from hypothesis import example, given
from hypothesis import strategies as st

from manifests.prompt.thinking import THINK_TAGS
from node_agent.text.reasoning import ReasoningSplitter

TAGS = THINK_TAGS["think"]
# Tags, their pieces, and what may stand beside them.
WORDS = ["<think>", "</think>", "<thi", "nk>", "</th", "ink>", "<", "/", ">", "`", '"', "a", " é\n"]
TEXTS = st.lists(st.sampled_from(WORDS), max_size=14).map("".join)


def reference(text: str, inside: bool) -> tuple[str, str]:
    """Return thinking and answer of a whole text, found in another way."""
    parts = {True: "", False: ""}
    while True:
        tag = TAGS.end if inside else TAGS.start
        places = [
            found.start()
            for found in re.finditer(f"(?={re.escape(tag)})", text)
            if not _is_quoted(text, found.start(), tag)
        ]
        if not places:
            parts[inside] += text
            return parts[True], parts[False]
        parts[inside] += text[: places[0]]
        text, inside = text[places[0] + len(tag) :], not inside


def _is_quoted(text: str, at: int, tag: str) -> bool:
    before, after = text[:at][-1:], text[at + len(tag) :][:1]
    return before != "" and before == after and before in "`\"'"


@given(TEXTS, st.lists(st.integers(0, 60), max_size=12), st.booleans())
@example("<think>plan</think>answer", [4, 16], False)
def test_pieces_do_not_change_the_parts(text: str, cuts: list[int], inside: bool) -> None:
    splitter = ReasoningSplitter(TAGS, inside=inside)
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    reasoning = content = ""
    for start, end in itertools.pairwise(places):
        parts = splitter.push(text[start:end])
        reasoning, content = reasoning + parts.reasoning, content + parts.content
        assert len(splitter.held) <= len(TAGS.end)
    last = splitter.flush()
    found = reasoning + last.reasoning, content + last.content
    assert found == reference(text, inside)
    assert splitter.held == ""


@given(TEXTS, st.booleans())
def test_a_cap_drops_at_most_the_beginning_of_a_tag(text: str, inside: bool) -> None:
    splitter = ReasoningSplitter(TAGS, inside=inside)
    splitter.push(text)
    held, last = splitter.held, splitter.flush(capped=True)
    if last.reasoning + last.content != held:
        assert (last.reasoning, last.content) == ("", "")
        assert len(held) > 1
        assert TAGS.start.startswith(held) or TAGS.end.startswith(held)
