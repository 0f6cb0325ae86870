"""Objects are written so that every reader takes them for what they are."""

import pytest

from manifests.reading.dump import dump_yaml


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("1e3", '"1e3"'),
        ("no", '"no"'),
        ("0755", '"0755"'),
        ("", '""'),
        ("~", '"~"'),
        ("8Gi", "8Gi"),
        ("plain words", "plain words"),
        ("é", "é"),
        ("a\u2028b", '"a\\Lb"'),
        ("a: b", "'a: b'"),
    ],
)
def test_text_is_quoted_only_where_it_could_be_mistaken(text: str, written: str) -> None:
    assert dump_yaml([{"x": text}]) == f"x: {written}\n"


def test_several_objects_are_separate_documents_in_their_own_key_order() -> None:
    assert dump_yaml([{"b": 1, "a": True}, {"c": None}]) == "b: 1\na: true\n---\nc: null\n"


def test_a_value_used_twice_is_written_twice() -> None:
    shared = ["x"]
    assert "&" not in dump_yaml([{"a": shared, "b": shared}])
