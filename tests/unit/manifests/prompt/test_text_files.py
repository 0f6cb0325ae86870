"""Which files of a model directory are told of, and by which name."""

import json
from pathlib import Path

import pytest

from manifests.prompt import files as text_files
from manifests.prompt.bundle import BundleError, pack_bundle, unpack_bundle, write_files
from manifests.prompt.files import TextFilesError, read_text_files, text_fingerprint
from tests.support.tiny_tokenizers import write_tokenizer


def fingerprint(directory: Path) -> str:
    return text_fingerprint(read_text_files(directory))


def test_weights_code_and_other_files_are_never_read(tmp_path: Path) -> None:
    write_tokenizer("byte_level", tmp_path)
    for name in ("model.safetensors", "tokenization_custom.py", ".env", "notes.json"):
        (tmp_path / name).write_text("secret")
    found = read_text_files(tmp_path)
    assert sorted(found) == ["config.json", "tokenizer.json", "tokenizer_config.json"]
    assert not any(b"secret" in content for content in found.values())


def test_a_link_within_the_directory_or_to_its_hub_blobs_is_followed(tmp_path: Path) -> None:
    """The hub cache keeps files as blobs beside the snapshots that link to them."""
    plain = write_tokenizer("byte_level", tmp_path / "plain")
    snapshot = tmp_path / "models--a--b" / "snapshots" / "rev"
    blobs = tmp_path / "models--a--b" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for number, path in enumerate(sorted(plain.iterdir())):
        (blobs / str(number)).write_bytes(path.read_bytes())
        (snapshot / path.name).symlink_to(f"../../blobs/{number}")
    assert fingerprint(snapshot) == fingerprint(plain)


@pytest.mark.parametrize("target", ["../elsewhere", "/etc/passwd", "../blobs/1"])
def test_a_link_out_of_the_directory_is_refused_by_its_name(tmp_path: Path, target: str) -> None:
    model = write_tokenizer("byte_level", tmp_path / "model")
    (tmp_path / "elsewhere").write_text("{}")
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / "1").write_text("{}")
    (model / "vocab.json").symlink_to(target)
    with pytest.raises(TextFilesError, match=r"vocab\.json"):
        read_text_files(model)


def test_files_beyond_the_bound_and_no_files_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "merges.txt").mkdir()
    with pytest.raises(TextFilesError, match="regular"):
        read_text_files(tmp_path)
    (tmp_path / "merges.txt").rmdir()
    (tmp_path / "merges.txt").write_bytes(b"x" * 11)
    monkeypatch.setattr(text_files, "MAX_FILE_BYTES", 10)
    with pytest.raises(TextFilesError, match="larger"):
        read_text_files(tmp_path)


def test_precisions_of_one_model_share_a_fingerprint_and_other_templates_do_not(
    tmp_path: Path,
) -> None:
    one = write_tokenizer("byte_level", tmp_path / "one")
    four_bit = write_tokenizer("byte_level", tmp_path / "four-bit")
    config = json.loads((four_bit / "config.json").read_text())
    (four_bit / "config.json").write_text(json.dumps({**config, "quantization": {"bits": 4}}))
    assert fingerprint(one) == fingerprint(four_bit)
    templated = write_tokenizer("byte_level", tmp_path / "templated")
    (templated / "additional_chat_templates").mkdir()
    (templated / "additional_chat_templates" / "tool_use.jinja").write_text("{{ messages }}")
    assert fingerprint(templated) != fingerprint(one)


def test_a_bundle_comes_out_as_it_went_in_and_a_changed_one_does_not(tmp_path: Path) -> None:
    model = write_tokenizer("byte_level", tmp_path / "model")
    (model / "additional_chat_templates").mkdir()
    (model / "additional_chat_templates" / "rag.jinja").write_text("{{ messages }}")
    files, name = read_text_files(model), fingerprint(model)
    bundle = pack_bundle(files)
    write_files(unpack_bundle(bundle, name), tmp_path / "copy")
    assert fingerprint(tmp_path / "copy") == name
    at = bundle.index(b"role")
    for bad in (
        bundle[:at] + b"R" + bundle[at + 1 :],
        bundle[:-1],
        b"",
        b"\x80",
        pack_bundle({**files, "../../evil": b""}),
        pack_bundle({**files, "model.safetensors": b""}),
    ):
        with pytest.raises(BundleError):
            unpack_bundle(bad, name)


@pytest.mark.parametrize(
    "name",
    ["../x", "/etc/passwd", "additional_chat_templates/../x.jinja", "a/tokenizer.json", ""],
)
def test_no_name_leads_out_of_the_directory(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="name"):
        write_files({name: b""}, tmp_path / "new")
