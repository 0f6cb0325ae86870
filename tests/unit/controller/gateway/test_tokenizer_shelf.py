"""Text files on the gateway's disk: whole or not there, and bounded."""

import os
from pathlib import Path

import pytest

from controller.gateway.counting.tokenizer_fetch import order_sources
from controller.gateway.counting.tokenizer_shelf import TokenizerShelf
from controller.gateway.counting.tokenizers import plan_sources
from manifests.prompt.bundle import BundleError, pack_bundle
from manifests.prompt.files import text_fingerprint


def files(text: bytes) -> tuple[str, bytes]:
    content = {"tokenizer.json": text, "config.json": b"{}"}
    return text_fingerprint(content), pack_bundle(content)


def test_what_was_put_is_found_and_what_was_changed_is_not(tmp_path: Path) -> None:
    shelf = TokenizerShelf(tmp_path / "new", 1000)
    name, bundle = files(b"a" * 10)
    assert shelf.find(name) is None
    place = shelf.put(name, bundle, ())
    assert shelf.find(name) == place
    (place / "tokenizer.json").write_bytes(b"b" * 10)
    assert shelf.find(name) is None
    assert shelf.put(name, bundle, ()) == place
    assert shelf.find(name) == place


def test_a_bundle_that_is_not_what_was_asked_for_leaves_nothing(tmp_path: Path) -> None:
    shelf = TokenizerShelf(tmp_path, 1000)
    name, _ = files(b"a")
    with pytest.raises(BundleError):
        shelf.put(name, files(b"b")[1], ())
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_half_written_is_swept(tmp_path: Path) -> None:
    (tmp_path / "unfinished-1").mkdir()
    name, bundle = files(b"a")
    TokenizerShelf(tmp_path, 1000).put(name, bundle, ())
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_the_longest_unused_go_first_and_never_what_is_in_use(tmp_path: Path) -> None:
    shelf = TokenizerShelf(tmp_path, 250)
    named = [files(bytes([65 + number]) * 100) for number in range(4)]
    for age, (name, bundle) in enumerate(named[:2]):
        os.utime(shelf.put(name, bundle, ()), (1000 + age, 1000 + age))
    assert shelf.find(named[0][0]) is not None  # used just now
    shelf.put(*named[2], ())
    assert [shelf.find(name) is not None for name, _ in named[:3]] == [True, False, True]
    shelf.put(*named[3], [named[0][0], named[2][0]])
    assert [shelf.find(name) is not None for name, _ in named] == [True, False, True, True]


@pytest.mark.parametrize("name", ["", "..", "/etc", "A" * 64, "a" * 63])
def test_only_fingerprints_name_directories(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="fingerprint"):
        TokenizerShelf(tmp_path, 1).find(name)


def test_every_failure_asks_another_node_first() -> None:
    reported = [("t", "http://a"), ("", "http://b"), ("t", "http://c"), ("t", "http://a")]
    sources = plan_sources(reported)
    assert sources == {"t": ["http://a", "http://c"]}
    assert order_sources(sources["t"], 0) == ("http://a", "http://c")
    assert order_sources(sources["t"], 3) == ("http://c", "http://a")
    assert order_sources((), 3) == ()
