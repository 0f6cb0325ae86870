"""Model directories on the node's own disk."""

import json
from pathlib import Path

import pytest

from manifests.kinds.model import Source
from node_agent.sources import local
from node_agent.sources.base import SourceError
from node_agent.sources.resolver import Sources
from tests.support.checkpoints import LLAMA_CONFIG, write_checkpoint


def silent(_done: int, _total: int) -> None:
    return


async def resolve(path: Path | str) -> local.ModelFiles:
    return await Sources().resolve(Source(path=str(path)), silent)


async def test_a_directory_is_resolved_to_its_files(tmp_path: Path) -> None:
    write_checkpoint(tmp_path)
    files = await resolve(tmp_path)
    assert files.directory == tmp_path
    assert files.weights_bytes == 4 * 8 * 4
    assert files.shape.hidden_size == LLAMA_CONFIG["hidden_size"]
    assert len(files.fingerprint) == 64


async def test_a_tilde_is_the_agents_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "m").mkdir()
    write_checkpoint(tmp_path / "m")
    assert (await resolve("~/m")).directory == tmp_path / "m"


async def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="gone does not exist on this node"):
        await resolve(tmp_path / "gone")


async def test_a_file_in_place_of_a_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "model").write_text("")
    with pytest.raises(SourceError, match="model is a file, not a directory"):
        await resolve(tmp_path / "model")


@pytest.mark.parametrize("missing", ["config.json", "model.safetensors"])
async def test_a_missing_file_is_named(tmp_path: Path, missing: str) -> None:
    write_checkpoint(tmp_path)
    (tmp_path / missing).unlink()
    with pytest.raises(SourceError, match=r"config\.json|model\*\.safetensors") as caught:
        await resolve(tmp_path)
    assert caught.value.permanent


async def test_an_unsupported_config_names_the_field(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, LLAMA_CONFIG | {"num_hidden_layers": "many"})
    with pytest.raises(SourceError, match="num_hidden_layers must be a whole number") as caught:
        await resolve(tmp_path)
    assert caught.value.code == "SourceUnsupported"


async def test_an_inspection_tells_the_same_as_resolving(tmp_path: Path) -> None:
    write_checkpoint(tmp_path)
    sources = Sources()
    files = await sources.resolve(Source(path=str(tmp_path)), silent)
    inspection = await sources.inspect(Source(path=str(tmp_path)))
    assert inspection.on_disk
    assert (inspection.weights_bytes, inspection.fingerprint, inspection.shape) == (
        files.weights_bytes,
        files.fingerprint,
        files.shape,
    )


async def test_an_unchanged_directory_is_not_read_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_checkpoint(tmp_path)
    sources = Sources()
    first = await sources.resolve(Source(path=str(tmp_path)), silent)
    monkeypatch.setattr(local, "observe_files", None)
    assert await sources.resolve(Source(path=str(tmp_path)), silent) is first


async def test_a_changed_directory_is_read_again(tmp_path: Path) -> None:
    write_checkpoint(tmp_path)
    sources = Sources()
    first = await sources.resolve(Source(path=str(tmp_path)), silent)
    config = LLAMA_CONFIG | {"max_position_embeddings": 99}
    (tmp_path / "config.json").write_text(json.dumps(config))
    second = await sources.resolve(Source(path=str(tmp_path)), silent)
    assert second.shape.context_tokens == 99
    assert second.fingerprint != first.fingerprint
