import pytest

from manifests.prompt.thinking import THINK_TAGS, choose_tags, find_style
from node_agent.text.reasoning import Parts, ReasoningSplitter

TAGS = THINK_TAGS["think"]


def split(pieces: list[str], *, inside: bool = False, capped: bool = False) -> tuple[str, str]:
    """Return the thinking and the answer."""
    splitter = ReasoningSplitter(TAGS, inside=inside)
    parts = [splitter.push(piece) for piece in pieces] + [splitter.flush(capped=capped)]
    return "".join(part.reasoning for part in parts), "".join(part.content for part in parts)


def test_tags_are_found_across_pieces() -> None:
    """B16."""
    assert split(["<thi", "nk>plan</th", "ink>answer"]) == ("plan", "answer")


@pytest.mark.parametrize(
    ("text", "inside", "expected"),
    [
        ("an answer <b>only</b>", False, ("", "an answer <b>only</b>")),
        ("<think>a</think>x<think>b</think>y", False, ("ab", "xy")),
        ("plan</think>answer", True, ("plan", "answer")),
        ("<think></think>answer", False, ("", "answer")),
        ("<think>a <think> b</think>c", False, ("a <think> b", "c")),
        ("<think>a</think>b </think> c", False, ("a", "b </think> c")),
        ("<think>it never ends", False, ("it never ends", "")),
        ("it never ends", True, ("it never ends", "")),
        (" <think>a</think> b ", False, ("a", "  b ")),
    ],
)
def test_what_is_thinking(text: str, inside: bool, expected: tuple[str, str]) -> None:
    """B16: two blocks, a block that the template opened, no block, a block without an end."""
    assert split([text], inside=inside) == expected
    assert split(list(text), inside=inside) == expected


@pytest.mark.parametrize("mark", ["`", '"', "'"])
def test_a_quoted_tag_is_text(mark: str) -> None:
    """B16: in the thinking and in the answer, however the text comes."""
    close, begin = f"{mark}</think>{mark}", f"{mark}<think>{mark}"
    text = f"<think>I end with {close}, so</think>Write {begin} first."
    expected = (f"I end with {close}, so", f"Write {begin} first.")
    assert split([text]) == split(list(text)) == expected


def test_a_tag_beside_only_one_mark_is_a_tag() -> None:
    assert split(['<think>so "yes"</think>Yes']) == ('so "yes"', "Yes")
    assert split(['<think>so "yes"</think>']) == ('so "yes"', "")


def test_only_what_may_become_a_tag_is_held_back() -> None:
    splitter = ReasoningSplitter(TAGS)
    assert splitter.push("a <th") == Parts(content="a ")
    assert splitter.held == "<th"
    assert splitter.push("ree") == Parts(content="<three")
    assert splitter.push("<think>a</think") == Parts(reasoning="a")


def test_a_cap_leaves_no_piece_of_a_tag() -> None:
    """B16: a lone < is text, as is whatever an answer ends with by itself."""
    assert split(["<think>plan</thi"], capped=True) == ("plan", "")
    assert split(["answer <thi"], capped=True) == ("", "answer ")
    assert split(["1 <"], capped=True) == ("", "1 <")
    assert split(["answer <thi"]) == ("", "answer <thi")


def test_without_tags_nothing_is_cut() -> None:
    splitter = ReasoningSplitter()
    assert splitter.push("<think>a</think>") == Parts(content="<think>a</think>")
    assert splitter.flush() == Parts()


@pytest.mark.parametrize(
    ("vocabulary", "template", "style"),
    [
        (set(), "", ""),
        ({"<think>", "</think>"}, "", "think"),
        ({"<think>"}, "", ""),
        (set(), "{{ content.split('</think>')[-1] }}", "think"),
        ({"<|channel>", "<channel|>"}, "", "gemma"),
        ({"[THINK]", "[/THINK]"}, "", "mistral"),
    ],
)
def test_a_models_style_is_what_its_files_know(
    vocabulary: set[str], template: str, style: str
) -> None:
    assert find_style(vocabulary, template) == style


def test_a_model_may_name_another_style_or_none() -> None:
    assert choose_tags("auto", "think") == TAGS
    assert choose_tags("auto", "") is None
    assert choose_tags("none", "think") is None
    assert choose_tags("mistral", "think") == THINK_TAGS["mistral"]
