"""Manifest text becomes objects with places, or faults with places (B74, B76, B84, B86)."""

import io
from pathlib import Path

import pytest

from manifests.reading.load import LoadResult, load_paths, load_text

API = "apiVersion: mlxfleet.dev/v1alpha1"


def model(name: str) -> str:
    return f"{API}\nkind: Model\nmetadata: {{name: {name}}}\nspec: {{source: {{path: /x}}}}\n"


def labelled(text: str) -> str:
    return (
        f"{API}\nkind: Model\nmetadata:\n  name: a\n  labels:\n    x: {text}\n"
        "spec: {source: {path: /x}}\n"
    )


TWO = model("a") + "---\n" + model("b")


def names(result: LoadResult) -> list[str]:
    assert result.errors == (), [error.render() for error in result.errors]
    return [str(item.obj.metadata.name) for item in result.objects]


def lines(result: LoadResult) -> list[str]:
    return [error.render() for error in result.errors]


def only(text: str | bytes) -> str:
    (line,) = lines(load_text(text, "f.yaml"))
    return line


def test_five_different_mistakes_give_five_located_errors() -> None:
    text = f"""# a comment
{API}
kind: Model
metadata:
  name: smollm2
  labels:
    region: no
spec:
  source: {{path: /models/smollm2}}
  replcas: 2
  context:
    maxTokens: "4096"
---
{API}
kind: MemoryGuard
metadata: {{name: careful}}
spec:
  staticReserve: 8GB
---
{API}
kind: Modle
metadata: {{name: c}}
"""
    assert lines(load_text(text, "quickstart.yaml")) == [
        "quickstart.yaml:7:13 Model/smollm2 metadata.labels.region: expected text, got a boolean; "
        'quote it: "no"',
        "quickstart.yaml:10:3 Model/smollm2 spec.replcas: unknown field; did you mean replicas?",
        "quickstart.yaml:12:16 Model/smollm2 spec.context.maxTokens: expected an integer, "
        "got text; remove the quotes: 4096",
        "quickstart.yaml:18:18 MemoryGuard/careful spec.staticReserve: unknown unit 'GB' in '8GB'; "
        "did you mean 8Gi (binary) or G (decimal)?; units are Ki Mi Gi Ti, k M G T",
        'quickstart.yaml:21:7 Modle/c kind: unknown kind "Modle"; did you mean Model?',
    ]


@pytest.mark.parametrize(
    "body",
    [
        TWO,
        TWO.rstrip("\n"),
        TWO.replace("\n", "\r\n"),
        TWO.replace("\n", "\r"),
        "\ufeff---\n" + TWO,
        model("a") + "---\n\ufeff" + model("b"),
        model("a") + "\ufeff---\n" + model("b"),
        TWO + "---\n...\n",
        "---\n# nothing\n---\n" + TWO,
        model("a") + "...\n---\n" + model("b"),
        TWO.encode("utf-16"),
        TWO.encode("utf-16-le"),
        TWO.encode("utf-16-be"),
        TWO.encode("utf-32"),
        TWO.encode("utf-8-sig"),
    ],
)
def test_line_endings_marks_encodings_and_empty_documents_change_nothing(body: str | bytes) -> None:
    assert names(load_text(body)) == ["a", "b"]


def test_positions_and_document_numbers_count_comments_and_empty_documents() -> None:
    text = "# top\n---\n---\n# empty\n---\n" + model("a") + "---\n" + model("b")
    result = load_text(text, "f.yaml")
    places = [(str(item.where), item.where.document) for item in result.objects]
    assert places == [("f.yaml:6:1", 3), ("f.yaml:11:1", 4)]


@pytest.mark.parametrize("text", ["", "\n", "# only words\n", "---\n", "---\n---\n...\n", "null\n"])
def test_a_file_without_an_object_is_an_error(text: str) -> None:
    assert only(text) == "f.yaml: holds no object"


@pytest.mark.parametrize(
    ("written", "part"),
    [
        ("no", 'expected text, got a boolean; quote it: "no"'),
        ("on", 'expected text, got a boolean; quote it: "on"'),
        ("Yes", 'expected text, got a boolean; quote it: "Yes"'),
        ("1.10", 'expected text, got a decimal number; quote it: "1.10"'),
        ("1234567e8", 'expected text, got a decimal number; quote it: "1234567e8"'),
        ("0x3", 'expected text, got an integer; quote it: "0x3"'),
        ("12:30", 'base 60 to some; quote it: "12:30"'),
        ("1:10", 'base 60 to some; quote it: "1:10"'),
        ("0755", 'quote it if it is text: "0755"'),
        ("080", 'quote it if it is text: "080"'),
        ("1_000", 'quote it if it is text: "1_000"'),
        ("0b11", 'quote it if it is text: "0b11"'),
        ("2026-01-01", 'reads as a date to some; quote it: "2026-01-01"'),
        ("2026-01-01T10:00:00Z", 'quote it: "2026-01-01T10:00:00Z"'),
        ("null", 'got nothing (null); quote it: "null"'),
        ("~", 'got nothing (null); quote it: "~"'),
        ("", 'write a value ("" for empty text) or remove the field'),
        (".nan", 'quote it if it is text: ".nan"'),
        ("-.inf", 'quote it if it is text: "-.inf"'),
        ("1e999", 'quote it if it is text: "1e999"'),
        ("9" * 30, "is larger than a 64-bit integer"),
        ("9" * 5000, "too long a number"),
    ],
)
def test_a_scalar_that_is_no_text_is_refused_where_text_belongs(written: str, part: str) -> None:
    line = only(labelled(written))
    assert line.startswith("f.yaml:6:")
    assert "Model/a metadata.labels.x: " in line
    assert part in line


@pytest.mark.parametrize("written", ["'no'", '"0755"', "!!str 12", "v1.10", "a-1", "12ab", "y"])
def test_quoted_and_unmistakable_text_is_kept(written: str) -> None:
    result = load_text(labelled(written))
    assert names(result) == ["a"]
    assert result.objects[0].obj.metadata.labels["x"] == written.strip("'\"").removeprefix("!!str ")


@pytest.mark.parametrize("key", ["on", "1", "null", "1.5", "true"])
def test_a_key_that_is_no_text_is_refused(key: str) -> None:
    assert f'the key {key} is not text; quote it: "{key}"' in only(
        labelled("").replace("x: ", f"{key}: a")
    )


@pytest.mark.parametrize(
    ("field", "part"),
    [
        ("replicas: 1e3", "spec.replicas: expected an integer, got a decimal number; write 1000"),
        ("replicas: 3.0", "expected an integer, got a decimal number; write 3"),
        ("replicas: true", "expected an integer, got a boolean"),
        ('replicas: "3"', "remove the quotes: 3"),
        ("replicas: 010", "reads as octal to some and as 10 to others"),
        ("replicas:", "expected an integer, got nothing (null)"),
        ("keep: {idleTTL: 1:30}", 'base 60 to some; quote it: "1:30"'),
    ],
)
def test_a_number_has_one_spelling(field: str, part: str) -> None:
    text = model("a").replace(
        "spec: {source: {path: /x}}", f"spec:\n  source: {{path: /x}}\n  {field}"
    )
    assert part in only(text)


def test_yaml_numbers_and_booleans_mean_what_yaml_1_2_says() -> None:
    spec = "{source: {path: /x}, replicas: 0x3, sampling: {temperature: 1e-1}, keep: {pinned: yes}}"
    result = load_text(model("a").replace("{source: {path: /x}}", spec))
    assert names(result) == ["a"]
    assert result.objects[0].raw["spec"]["replicas"] == 3
    assert result.objects[0].raw["spec"]["sampling"] == {"temperature": 0.1}
    assert result.objects[0].raw["spec"]["keep"] == {"pinned": True}


def test_a_repeated_key_is_an_error_at_the_second_naming_the_line_of_the_first() -> None:
    text = model("a") + "spec: {source: {path: /y}}\n"
    assert only(text) == (
        "f.yaml:5:1 Model/a spec: the key spec is already set in line 4; keep one of the two"
    )
    assert "the key x is already set in line 6" in only(labelled("a\n    x: b"))


def test_merge_keys_and_tags_are_refused_and_anchors_are_expanded() -> None:
    merged = model("a").replace("{path: /x}", "{path: /x, <<: {hub: b}}")
    assert "spec.source: merge keys (<<) are not supported; write the fields out" in only(merged)
    assert "the tag !!python/object:os.system is not supported" in only(
        model("a").replace("/x", "!!python/object:os.system x")
    )
    anchored = model("a").replace("{name: a}", "{name: &n a, labels: {x: *n}}")
    result = load_text(anchored)
    assert names(result) == ["a"]
    assert result.objects[0].raw["metadata"] == {"name": "a", "labels": {"x": "a"}}
    assert "*q has no &q before it" in only(model("a").replace("/x", "*q"))


def test_a_fault_in_the_text_is_not_followed_by_its_echo() -> None:
    assert only(model("a").replace("/x", "{{ .Values.path }}")).startswith(
        "f.yaml:4:24 Model/a spec.source.path: a key must be text; quote text that begins with"
    )
    assert "merge keys" in only(model("a").replace("{path: /x}", "{<<: {path: /x}}"))
    shared = "{path: /x}, replicas: &n 010, context: {maxTokens: *n}"
    assert "reads as octal to some" in only(model("a").replace("{path: /x}", shared))


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("a: 1\n\tb: 2\n", "f.yaml:2:1 document 1: a tab is used for indentation; use spaces"),
        ("a:\n  \tb: 1\n", "f.yaml:2:3 document 1: a tab is used for indentation; use spaces"),
        (API + "\nkind:Model\nb: 1\n", "f.yaml:2:6 document 1: no space after ':'"),
        ("a: [1, 2\nb: 3\n", "the bracket opened in line 1 is not closed"),
        ("a: 'x\nb: 1\n", "the quote opened in line 1 is not closed"),
        ("a: @x\n", "f.yaml:1:4 document 1: '@' cannot begin a value; quote the text"),
        ("a: b: c\n", "a ':' is not expected here"),
        ("a:\n   b: 1\n  c: 2\n", "does not fit the block that began in line"),
        ("a: \u2028b\n", "f.yaml:1:4: the character U+2028 cannot stand in YAML"),
        ("a: b\0\n", "f.yaml:1:5: the character U+0000 cannot stand in YAML"),
        (b"a: 1\nb: \xff\n", "f.yaml:2:1: not UTF-8 text; save the file as UTF-8"),
        ("- a\n", "expected a mapping, got a list"),
        ("just text\n", "expected a mapping, got text"),
    ],
)
def test_text_that_is_not_yaml_says_where_and_what_to_do(text: str | bytes, part: str) -> None:
    assert part in only(text)


def test_a_broken_document_does_not_hide_the_faults_of_the_others() -> None:
    text = (
        model("a")
        + "---\na: [\n---\n"
        + labelled("no").replace("name: a", "name: b")
        + "---\n"
        + model("c")
    )
    result = load_text(text, "f.yaml")
    assert [(error.where.line, error.where.document) for error in result.errors] == [
        (7, 2),
        (13, 3),
    ]
    assert [item.obj.metadata.name for item in result.objects] == ["a", "c"]


def test_a_marker_inside_a_block_of_text_ends_no_document() -> None:
    text = (
        labelled("a").replace("labels", "annotations").replace("x: a", "x: |\n      ---\n      b")
    )
    result = load_text(text + "---\n" + model("b"))
    assert names(result) == ["a", "b"]
    assert result.objects[0].obj.metadata.annotations["x"] == "---\nb\n"


def test_json_is_read_with_its_escapes_and_tabs() -> None:
    text = (
        '{\n\t"apiVersion": "mlxfleet.dev/v1alpha1", "kind":"Model",\n\t"metadata": {"name": "a",'
        '"annotations": {"e": "\\ud83d\\ude00\\/\\u00e9"}}, "spec": {"source": {"path": "/x"}}}'
    )
    result = load_text(text)
    assert names(result) == ["a"]
    assert result.objects[0].obj.metadata.annotations["e"] == "\U0001f600/é"


def test_the_items_of_a_list_are_objects_with_paths_of_their_own() -> None:
    items = "".join("- " + model(name).replace("\n", "\n  ").rstrip(" ") for name in ("a", "b"))
    head = "apiVersion: v1\nkind: List\nitems:\n"
    assert names(load_text(head + items)) == ["a", "b"]
    assert names(load_text(head.replace("kind: List", "kind: ModelList") + items)) == ["a", "b"]
    assert only(head + items.replace("path", "paht", 1)).startswith(
        "f.yaml:7:19 Model/a spec.source.paht: unknown field; did you mean path?"
    )
    repeated = only(head + items.replace("name: b", "name: b, name: c"))
    assert repeated.startswith("f.yaml:10:23 Model/b metadata.name: the key name is already set")
    assert "items: expected a list" in only("apiVersion: v1\nkind: List\nitems: {}\n")


@pytest.mark.parametrize(
    ("kind", "hint"),
    [("Engine", "declare a Model"), ("Event", "remove it; the fleet records events itself")],
)
def test_kinds_made_by_the_fleet_are_refused_with_the_reason(kind: str, hint: str) -> None:
    line = only(f"{API}\nkind: {kind}\nmetadata: {{name: a}}\n")
    assert f"{kind} objects are not declared by users" in line
    assert hint in line


def test_one_object_declared_twice_is_an_error_and_so_is_a_shared_alias() -> None:
    twice = load_text(model("a") + "---\n" + model("a"), "f.yaml")
    assert lines(twice) == [
        "f.yaml:8:18 Model/a metadata.name: already declared at f.yaml:1:1; rename or remove one"
    ]
    assert [str(item.where) for item in twice.objects] == ["f.yaml:1:1"]
    aliased = model("b").replace("/x}", "/x}, aliases: [chat, a]")
    shared = load_text(
        model("a") + "---\n" + aliased + "---\n" + aliased.replace("b", "c"), "f.yaml"
    )
    assert [(error.where.line, error.path) for error in shared.errors] == [
        (9, "spec.aliases[1]"),
        (14, "spec.aliases[0]"),
        (14, "spec.aliases[1]"),
    ]


def test_files_directories_and_standard_input_are_read_once_in_order(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "x.yaml").write_text("broken: [")
    (tmp_path / "b.yml").write_text(model("b"))
    (tmp_path / "a.yaml").write_text(model("a"))
    (tmp_path / "empty.yaml").write_text("# switched off\n")
    (tmp_path / "sub" / "c.json").write_text(
        '{"apiVersion": "mlxfleet.dev/v1alpha1", "kind": "MemoryGuard", "metadata": {"name": "c"}}'
    )
    (tmp_path / "notes.txt").write_text("not: [yaml")
    result = load_paths([tmp_path, tmp_path / "a.yaml", "-"], io.BytesIO(model("d").encode()))
    assert names(result) == ["a", "b", "c", "d"]
    assert result.objects[2].where.file == str(tmp_path / "sub" / "c.json")


def test_what_cannot_be_read_is_an_error_beside_the_others(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad.yaml").write_text(labelled("no"))
    found = load_paths([tmp_path / "none.yaml", tmp_path / "empty", tmp_path / "bad.yaml"])
    assert [line.removeprefix(str(tmp_path)) for line in lines(found)] == [
        '/bad.yaml:6:8 Model/a metadata.labels.x: expected text, got a boolean; quote it: "no"',
        "/empty: holds no *.yaml, *.yml or *.json file",
        "/none.yaml: cannot be read: No such file or directory",
    ]


def test_an_object_is_kept_as_it_was_written() -> None:
    text = f"{API}\nkind: MemoryGuard\nmetadata: {{name: g}}\nspec: {{staticReserve: 8192Mi}}\n"
    (loaded,) = load_text(text).objects
    assert loaded.raw["spec"] == {"staticReserve": "8192Mi"}
    assert loaded.obj.kind == "MemoryGuard"
