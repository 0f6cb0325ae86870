"""Reading weights from headers: what they weigh, in which dtype, whose they are, and damage."""

import json
from pathlib import Path

import pytest

from manifests.sizing.safetensors_header import read_header
from manifests.sizing.weights import WeightsError, inspect_directory, read_weights
from tests.support.checkpoints import (
    LLAMA_CONFIG,
    TENSORS,
    Tensors,
    safetensors_bytes,
    write_checkpoint,
)

QUANTIZED: Tensors = {
    "layer.weight": ("U32", [64, 8], 1),
    "layer.scales": ("BF16", [64, 2], 1),
    "layer.biases": ("BF16", [64, 2], 1),
    "gate.bias": ("F32", [8], 1),
}


def raw_file(header: bytes, data: bytes = b"") -> bytes:
    return len(header).to_bytes(8, "little") + header + data


def described(**entry: object) -> bytes:
    return raw_file(json.dumps({"t": entry}).encode(), bytes(8))


def test_bytes_and_tensors_are_summed_over_shards(tmp_path: Path) -> None:
    write_checkpoint(tmp_path)
    (tmp_path / "model-00002.safetensors").write_bytes(safetensors_bytes(QUANTIZED))
    weights = read_weights(tmp_path)
    assert weights.tensors == 5
    assert weights.bytes == 128 + 2048 + 256 + 256 + 32


def test_files_that_mlx_lm_does_not_load_are_not_counted(tmp_path: Path) -> None:
    write_checkpoint(tmp_path)
    before = read_weights(tmp_path)
    (tmp_path / "adapter.safetensors").write_bytes(safetensors_bytes(QUANTIZED))
    assert read_weights(tmp_path) == before


def test_a_quantized_model_computes_in_the_dtype_of_its_scales(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, tensors=QUANTIZED)
    assert read_weights(tmp_path).dtype_bytes == 2


def test_the_dtype_of_the_weights_beats_the_one_in_the_config(tmp_path: Path) -> None:
    write_checkpoint(tmp_path)
    shape, weights = inspect_directory(tmp_path)
    assert LLAMA_CONFIG["torch_dtype"] == "bfloat16"
    assert weights.dtype_bytes == shape.dtype_bytes == 4
    assert shape.groups[0].bytes_per_token == 2 * 2 * 16 * 4


def test_without_any_float_the_config_tells_the_dtype(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, tensors={"w": ("U8", [16], 0)})
    shape, weights = inspect_directory(tmp_path)
    assert weights.dtype_bytes is None
    assert shape.dtype_bytes == 2


def test_the_fingerprint_is_stable(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    for directory in (first, second):
        directory.mkdir()
        write_checkpoint(directory)
    assert read_weights(first).fingerprint == read_weights(second).fingerprint


def test_other_weights_of_the_same_shapes_have_another_fingerprint(tmp_path: Path) -> None:
    big: Tensors = {f"layer{i}": ("F32", [64, 64], 1) for i in range(20)}
    write_checkpoint(tmp_path, tensors=big)
    before = read_weights(tmp_path)
    write_checkpoint(tmp_path, tensors=big | {"layer13": ("F32", [64, 64], 2)})
    after = read_weights(tmp_path)
    assert after.bytes == before.bytes
    assert after.fingerprint != before.fingerprint


def test_another_config_has_another_fingerprint(tmp_path: Path) -> None:
    write_checkpoint(tmp_path)
    before = read_weights(tmp_path).fingerprint
    write_checkpoint(tmp_path, LLAMA_CONFIG | {"rope_theta": 1.0})
    assert read_weights(tmp_path).fingerprint != before


def test_swapped_shards_have_another_fingerprint(tmp_path: Path) -> None:
    write_checkpoint(tmp_path)
    one = safetensors_bytes({"w": ("F32", [8], 1)})
    two = safetensors_bytes({"w": ("F32", [8], 2)})
    found = set()
    for first, second in ((one, two), (two, one)):
        (tmp_path / "model-1.safetensors").write_bytes(first)
        (tmp_path / "model-2.safetensors").write_bytes(second)
        found.add(read_weights(tmp_path).fingerprint)
    assert len(found) == 2


def test_a_shard_that_the_index_names_and_is_missing_is_told(tmp_path: Path) -> None:
    write_checkpoint(tmp_path)
    index = {"weight_map": {"a": "model.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(WeightsError, match="missing: model-00002-of-00002"):
        read_weights(tmp_path)


@pytest.mark.parametrize("index", ["", "[]", '{"weight_map": 3}', "{}"])
def test_a_broken_index_is_told(tmp_path: Path, index: str) -> None:
    write_checkpoint(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(WeightsError, match="is not a safetensors index"):
        read_weights(tmp_path)


def test_a_directory_without_weights_is_told(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(WeightsError, match=r"has no model\*\.safetensors"):
        read_weights(tmp_path)


@pytest.mark.parametrize(
    ("config", "complaint"),
    [(None, "has no config.json"), ("{", "is not JSON"), ("[]", "is not a JSON object")],
)
def test_a_broken_config_is_told(tmp_path: Path, config: str | None, complaint: str) -> None:
    write_checkpoint(tmp_path)
    (tmp_path / "config.json").unlink()
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    with pytest.raises(WeightsError, match=complaint):
        read_weights(tmp_path)


WHOLE = safetensors_bytes(TENSORS)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "too few"),
        (b"1234567", "too few"),
        ((2**63).to_bytes(8, "little"), "states a header of 9223372036854775808 bytes"),
        ((2**64 - 1).to_bytes(8, "little") + b"{}", "states a header"),
        ((50).to_bytes(8, "little") + b"{}", "cut off inside its header"),
        (WHOLE[:-1], "is cut off"),
        (WHOLE + b"x", "bytes past its last tensor"),
        (raw_file(b"not json"), "not JSON"),
        (raw_file(b"[" * 100_000), "not JSON"),
        (raw_file(b"\xff\xfe{}"), "not JSON"),
        (raw_file(b"[]"), "not a JSON object"),
        (raw_file(b'{"t": 3}'), "not described by a JSON object"),
        (described(dtype="Q9", shape=[8], data_offsets=[0, 8]), "unknown dtype 'Q9'"),
        (described(dtype=["U8"], shape=[8], data_offsets=[0, 8]), "unknown dtype"),
        (described(dtype="U8", shape=[8]), "no valid shape and data_offsets"),
        (described(dtype="U8", shape=[-8], data_offsets=[0, 8]), "no valid shape"),
        (described(dtype="U8", shape=[True], data_offsets=[0, 8]), "no valid shape"),
        (described(dtype="U8", shape=[8], data_offsets=[8, 0]), "do not match its shape"),
        (described(dtype="U8", shape=[1] * 65, data_offsets=[0, 1]), "has 65 dimensions"),
        (described(dtype="U8", shape=[4], data_offsets=[0, 8]), "do not match its shape"),
        (described(dtype="F32", shape=[2**62, 4], data_offsets=[0, 8]), "do not match"),
        (described(dtype="U8", shape=[1] * 65, data_offsets=[0, 1]), "has 65 dimensions"),
        (described(dtype="U8", shape=[4], data_offsets=[4, 8]), "overlaps another or leaves"),
    ],
)
def test_a_damaged_file_is_refused_and_named(
    tmp_path: Path, content: bytes, complaint: str
) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(WeightsError, match=complaint) as caught:
        read_header(path)
    assert str(path) in str(caught.value)


def test_overlapping_tensors_are_refused(tmp_path: Path) -> None:
    entry = {"dtype": "U8", "shape": [8], "data_offsets": [0, 8]}
    path = tmp_path / "model.safetensors"
    path.write_bytes(raw_file(json.dumps({"a": entry, "b": entry}).encode(), bytes(8)))
    with pytest.raises(WeightsError, match="overlaps"):
        read_header(path)


def test_empty_tensors_and_metadata_are_allowed(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(safetensors_bytes({"empty": ("F32", [0, 4], 0), "scalar": ("F32", [], 1)}))
    header = read_header(path)
    assert [tensor.size_bytes for tensor in header.tensors] == [0, 4]
