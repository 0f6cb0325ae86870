"""The name of a model's content: equal bytes, equal name; never a stale one."""

import asyncio
import hashlib
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from node_agent.sources import content
from node_agent.sources.base import SourceError
from node_agent.sources.content import ContentDigests

# Long enough ago that a file's clock has moved on.
OLD_NS = 1_700_000_000 * 10**9


def write_model(directory: Path, weights: bytes = b"w" * 100, config: str = "{}") -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    for name, data in (("config.json", config.encode()), ("model.safetensors", weights)):
        (directory / name).write_bytes(data)
        os.utime(directory / name, ns=(OLD_NS, OLD_NS))
    return directory


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of files that were really read."""
    seen: list[str] = []
    real: Callable[[Path, threading.Event], str] = content.hash_file

    def note(path: Path, stop: threading.Event) -> str:
        seen.append(path.name)
        return real(path, stop)

    monkeypatch.setattr(content, "hash_file", note)
    return seen


async def test_the_content_counts_and_not_the_place(tmp_path: Path) -> None:
    """B32."""
    digests = ContentDigests()
    first = await digests.of_directory(write_model(tmp_path / "a"))
    assert await digests.of_directory(write_model(tmp_path / "b")) == first
    other = await digests.of_directory(write_model(tmp_path / "c", b"w" * 99 + b"x"))
    assert other != first
    config = await digests.of_directory(write_model(tmp_path / "d", config='{"a": 1}'))
    assert len({first, other, config}) == 3


async def test_files_that_mlx_does_not_load_change_nothing(tmp_path: Path) -> None:
    digests = ContentDigests()
    first = await digests.of_directory(write_model(tmp_path))
    (tmp_path / "README.md").write_text("hello")
    (tmp_path / "tokenizer.json").write_text("{}")
    assert await digests.of_directory(tmp_path) == first


async def test_an_unchanged_file_is_not_read_twice_even_after_a_restart(
    tmp_path: Path, hashed: list[str]
) -> None:
    memory = tmp_path / "digests.json"
    directory = write_model(tmp_path / "m")
    first = await ContentDigests(memory).of_directory(directory)
    assert sorted(hashed) == ["config.json", "model.safetensors"]
    digests = ContentDigests(memory)
    assert await digests.of_directory(directory) == first
    assert len(hashed) == 2


@pytest.mark.parametrize("change", ["time", "size", "inode"])
async def test_a_file_that_looks_changed_is_read_again(
    tmp_path: Path, hashed: list[str], change: str
) -> None:
    digests = ContentDigests()
    first = await digests.of_directory(write_model(tmp_path / "m"))
    weights = tmp_path / "m" / "model.safetensors"
    if change == "time":
        weights.write_bytes(b"v" * 100)
        os.utime(weights, ns=(OLD_NS + 1, OLD_NS + 1))
    elif change == "size":
        weights.write_bytes(b"v" * 101)
        os.utime(weights, ns=(OLD_NS, OLD_NS))
    else:
        other = tmp_path / "other"
        other.write_bytes(b"v" * 100)
        os.utime(other, ns=(OLD_NS, OLD_NS))
        other.replace(weights)
    assert await digests.of_directory(tmp_path / "m") != first
    assert hashed[-1] == "model.safetensors"


async def test_a_file_written_a_moment_ago_is_not_remembered(
    tmp_path: Path, hashed: list[str]
) -> None:
    """Its next change could fall into the same tick of the file system's clock."""
    directory = write_model(tmp_path / "m")
    digests = ContentDigests(wall_clock=lambda: OLD_NS / 1e9 + 1)
    await digests.of_directory(directory)
    await digests.of_directory(directory)
    assert len(hashed) == 4


async def test_a_hubs_blob_is_known_by_its_name(tmp_path: Path, hashed: list[str]) -> None:
    weights = b"w" * 100
    plain = await ContentDigests().of_directory(write_model(tmp_path / "plain", weights))
    hashed.clear()
    snapshot = write_model(tmp_path / "models--a--b" / "snapshots" / "1", weights)
    blob = tmp_path / "models--a--b" / "blobs" / hashlib.sha256(weights).hexdigest()
    blob.parent.mkdir()
    (snapshot / "model.safetensors").rename(blob)
    (snapshot / "model.safetensors").symlink_to(blob)
    assert await ContentDigests().of_directory(snapshot) == plain
    assert hashed == ["config.json"]


@pytest.mark.parametrize("text", ["", "[]", '{"version": 9}', '{"version": 1, "files": {"a": 1}}'])
async def test_a_damaged_memory_file_costs_hashing_anew(tmp_path: Path, text: str) -> None:
    memory = tmp_path / "digests.json"
    memory.write_text(text)
    directory = write_model(tmp_path / "m")
    found = await ContentDigests(memory).of_directory(directory)
    assert found == await ContentDigests().of_directory(directory)
    assert len(json.loads(memory.read_text())["files"]) == 2


async def test_a_file_that_cannot_be_read_is_a_fault_that_may_pass(tmp_path: Path) -> None:
    write_model(tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(SourceError) as caught:
        await ContentDigests().of_directory(tmp_path)
    assert not caught.value.permanent


async def test_a_cancelled_caller_leaves_no_thread_that_reads_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, ended = threading.Event(), threading.Event()

    def slow(_path: Path, stop: threading.Event) -> str:
        began.set()
        assert stop.wait(30)
        ended.set()
        raise OSError

    monkeypatch.setattr(content, "hash_file", slow)
    task = asyncio.create_task(ContentDigests().of_directory(write_model(tmp_path)))
    assert await asyncio.to_thread(began.wait, 30)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.to_thread(ended.wait, 30)
