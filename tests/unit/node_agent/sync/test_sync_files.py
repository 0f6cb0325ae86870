"""What the agent keeps on disk: identity and the engines last wanted."""

import json
import shutil
from pathlib import Path

import pytest

from manifests.kinds.engine import Engine
from manifests.kinds.scheme import parse_object
from node_agent.sync.cached_wants import load_engines, save_engines
from node_agent.sync.identity import load_identity, node_name_of


def engine(name: str) -> Engine:
    parsed = parse_object(
        {
            "apiVersion": "mlxfleet.dev/v1alpha1",
            "kind": "Engine",
            "metadata": {"name": name, "uid": "u1"},
            "spec": {"model": "m", "node": "here", "revision": "r", "source": {"path": "/m"}},
        }
    )
    assert isinstance(parsed, Engine)
    return parsed


def test_saved_engines_come_back_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "wanted.json"
    save_engines(path, "here", [engine("a"), engine("b")])
    assert load_engines(path, "here") == (engine("a"), engine("b"))
    assert [item.name for item in tmp_path.iterdir()] == ["wanted.json"]


def test_nothing_saved_is_nothing_wanted(tmp_path: Path) -> None:
    assert load_engines(tmp_path / "wanted.json", "here") == ()


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"version": 1}', "null", "\x00\x01"])
def test_a_damaged_file_is_ignored(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "wanted.json"
    path.write_text(damage)
    assert load_engines(path, "here") == ()


def test_an_edited_file_is_ignored_and_so_is_another_nodes(tmp_path: Path) -> None:
    path = tmp_path / "wanted.json"
    save_engines(path, "here", [engine("a")])
    assert load_engines(path, "there") == ()
    body = json.loads(path.read_text())
    body["engines"][0]["spec"]["source"]["path"] = "/elsewhere"
    path.write_text(json.dumps(body))
    assert load_engines(path, "here") == ()


def test_an_identity_lasts_and_is_not_copied_along(tmp_path: Path) -> None:
    original = tmp_path / "data"
    original.mkdir()
    first = load_identity(original, "machine-1")
    assert load_identity(original, "machine-1") == first
    assert load_identity(original, "machine-2") != first
    shutil.copytree(original, tmp_path / "copy")
    assert load_identity(tmp_path / "copy", "machine-1") != first


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("Anna's Mac Studio.local", "anna-s-mac-studio"),
        ("node-1.example.org", "node-1.example.org"),
        ("--", ""),
        ("x" * 80, "x" * 63),
    ],
)
def test_a_host_name_becomes_a_node_name(host: str, name: str) -> None:
    assert node_name_of(host) == name
