"""The codec says what does not fit, and keeps every bit of what does."""

import dataclasses
import json
from collections.abc import Callable

import mlx.core as mx
import pytest
from mlx_lm.models.cache import CacheList, KVCache

from node_agent.engine.prefix.kv_bytes import BlockArrays, TokenJoiner, to_bytes
from node_agent.engine.prefix.kv_codec import KvCodec, RestoreError, describe_layers
from node_agent.kvcache.block import Block, BlockHeader, LayerRecord, TensorBytes, Tier, stored
from node_agent.kvcache.layer_kinds import LayerKind
from node_agent.kvcache.restore_plan import BlockUse
from node_agent.kvcache.tiers import LoadedBlock
from tests.support.kv_recorder import HEADS, WIDTH, Recorder, held


def fed(model: Recorder, tokens: range, chunk: int = 4) -> list:
    caches = model.make_cache()
    for start in range(tokens.start, tokens.stop, chunk):
        model(mx.array([list(range(start, min(start + chunk, tokens.stop)))]), caches)
        mx.eval([layer.state for layer in caches])
    return caches


def block(
    codec: KvCodec, caches: list, start: int, end: int, *, snapshot: bool = True
) -> LoadedBlock:
    layers, tensors = codec.cut(caches, start, end, snapshot=snapshot)
    header = BlockHeader(b"", b"", 0, end - start, b"", "", layers)
    return loaded(Block(header, tensors))


def loaded(block: Block, take_tokens: int | None = None) -> LoadedBlock:
    use = BlockUse(stored(block.header, 0, Tier.HOT), take_tokens or block.header.tokens, True)
    return LoadedBlock(block, use)


@pytest.fixture
def model() -> Recorder:
    return Recorder()


@pytest.fixture
def codec(model) -> KvCodec:
    return KvCodec(model, describe_layers(model))


def test_members_of_lists_are_layers_of_their_own(codec):
    found = [(one.cache_class, one.kind) for one in codec.layout.layers]
    assert found == [
        ("KVCache", LayerKind.SLICEABLE),
        ("ArraysCache", LayerKind.SNAPSHOT),
        ("KVCache", LayerKind.SLICEABLE),
        ("RotatingKVCache", LayerKind.SNAPSHOT),
        ("ChunkedKVCache", LayerKind.SNAPSHOT),
    ]
    assert codec.layout.token_bytes == 2 * HEADS * WIDTH * 4
    assert codec.layout.snapshot_bytes == 3 * 4 + (6 + 5) * HEADS * WIDTH * 4


def test_blocks_are_joined_in_order_and_windows_come_from_the_last(model, codec):
    caches = fed(model, range(20))
    parts = [block(codec, caches, at, at + 8, snapshot=False) for at in (0, 8)]
    last = block(codec, caches, 16, 20)
    plain, listed, window, chunked = codec.build([*parts, last], 20)
    assert held(plain) == held(listed[1]) == list(range(20))
    assert held(window) == list(range(14, 20))
    assert held(chunked) == list(range(15, 20))
    assert (window.offset, chunked.offset, chunked.start_position) == (20, 20, 15)
    assert listed[0][0].tolist() == [[190.0] * 3]
    assert listed[0][1] is None
    assert isinstance(listed, CacheList)


def test_a_last_block_may_be_taken_in_part_where_all_is_by_token():
    class Plain(Recorder):
        def make_cache(self) -> list:
            return [KVCache()]

    model = Plain()
    codec = KvCodec(model, describe_layers(model))
    caches = fed(model, range(16))
    first, last = (block(codec, caches, at, at + 8, snapshot=False) for at in (0, 8))
    (cache,) = codec.build([first, loaded(last.block, 7)], 15)
    assert held(cache) == list(range(15))
    with pytest.raises(RestoreError, match="a block holds 8 of 9 tokens"):
        codec.build([first, loaded(last.block, 9)], 17)


@pytest.mark.parametrize("tokens", [1, 255, 256, 257, 512])
def test_a_built_cache_has_room_up_to_a_whole_step(model, codec, tokens):
    """The memory estimator counts so."""
    built = codec.build([block(codec, fed(model, range(tokens), 600), 0, tokens)], tokens)
    assert built[0].keys.shape[2] == -(-tokens // 256) * 256
    assert built[0].offset == tokens


@pytest.mark.parametrize(
    "array",
    [
        mx.arange(65536, dtype=mx.uint32).astype(mx.uint16).view(mx.bfloat16),
        mx.arange(65536, dtype=mx.uint32).astype(mx.uint16).view(mx.float16),
        mx.array([[1.5, -0.0], [float("nan"), float("inf")]]),
        mx.array([True, False]),
        mx.array(7),
        mx.zeros((1, 2, 3, 0)),
        mx.array([2**62, 1], dtype=mx.uint64),
    ],
    ids=lambda array: f"{array.dtype}{list(array.shape)}",
)
def test_every_bit_of_an_array_survives(array):
    tensor = to_bytes("0.a", array)
    header = BlockHeader(b"", b"", 0, 1, b"", "", ())
    back = BlockArrays(Block(header, (tensor,))).get("0.a")
    assert (back.dtype, back.shape) == (array.dtype, array.shape)
    assert bytes(to_bytes("0.a", back).data) == bytes(tensor.data)


def test_bytes_are_a_copy_that_later_feeding_does_not_reach(model, codec):
    caches = fed(model, range(8))
    stored_block = block(codec, caches, 0, 8)
    before = [bytes(tensor.data) for tensor in stored_block.block.tensors]
    built = codec.build([stored_block], 8)
    for way in (caches, built):
        model(mx.array([[99] * 4]), way)
        mx.eval([layer.state for layer in way])
    assert [bytes(tensor.data) for tensor in stored_block.block.tensors] == before


@pytest.mark.parametrize("end", [7, 9])
def test_a_snapshot_is_only_cut_where_the_row_stands(model, codec, end):
    """B30: all layers stand at one length."""
    with pytest.raises(RestoreError, match=r"holds no block|stands at 8"):
        codec.cut(fed(model, range(8)), 0, end, snapshot=True)


def test_tokens_that_were_not_fed_are_not_cut_from_spare_room(model, codec):
    with pytest.raises(RestoreError, match="a cache at 8 tokens holds no block up to 9"):
        codec.cut(fed(model, range(8)), 0, 9, snapshot=False)


def edit_tensor(found: Block, name: str, **fields: object) -> Block:
    tensors = tuple(
        dataclasses.replace(one, **fields) if one.name == name else one for one in found.tensors
    )
    return dataclasses.replace(found, tensors=tensors)


def edit_record(found: Block, number: int, **fields: object) -> Block:
    layers = list(found.header.layers)
    layers[number] = dataclasses.replace(layers[number], **fields)
    header = dataclasses.replace(found.header, layers=tuple(layers))
    return dataclasses.replace(found, header=header)


def without(found: Block, name: str) -> Block:
    return dataclasses.replace(found, tensors=tuple(x for x in found.tensors if x.name != name))


def shorter(found: Block) -> Block:
    header = dataclasses.replace(found.header, layers=found.header.layers[:2])
    return dataclasses.replace(found, header=header)


def moved(found: Block) -> Block:
    skeleton = json.loads(found.header.layers[3].skeleton)
    skeleton[2] += 1
    return edit_record(found, 3, skeleton=json.dumps(skeleton))


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        pytest.param(
            lambda x: without(x, "0.t0"), "there is no tensor 0.t0", id="a tensor is missing"
        ),
        pytest.param(
            lambda x: without(x, "3.s0"),
            "there is no tensor 3.s0",
            id="an array of a state is missing",
        ),
        pytest.param(
            lambda x: edit_tensor(x, "0.t0", dtype="BF16"), "layer", id="its type is smaller"
        ),
        pytest.param(
            lambda x: edit_tensor(x, "0.t0", dtype="I32"),
            "a block holds a KVCache of I32",
            id="its type is another",
        ),
        pytest.param(
            lambda x: edit_tensor(x, "3.s0", dtype="C64"),
            "unknown type C64",
            id="its type is unknown",
        ),
        pytest.param(
            lambda x: edit_tensor(x, "0.t0", shape=(1, 4, 8, 2)), "of F32:4x2", id="other heads"
        ),
        pytest.param(
            lambda x: edit_tensor(x, "0.t0", shape=(2, 2, 4, 4)), "layer", id="several rows"
        ),
        pytest.param(
            lambda x: edit_tensor(x, "0.t0", shape=(1, 2, 7, 4)), "layer", id="no such shape"
        ),
        pytest.param(lambda x: edit_tensor(x, "0.t0", data=b"\0" * 31), "layer", id="odd bytes"),
        pytest.param(lambda x: edit_record(x, 0, cache_class="Other"), "layer", id="another class"),
        pytest.param(
            lambda x: edit_record(x, 3, cache_class="Other"), "layer", id="another window"
        ),
        pytest.param(
            lambda x: edit_record(x, 3, present=False), "holds no RotatingKVCache", id="no snapshot"
        ),
        pytest.param(lambda x: edit_record(x, 3, skeleton="{"), "layer", id="no JSON"),
        pytest.param(lambda x: edit_record(x, 3, skeleton="[1, 2]"), "layer", id="another state"),
        pytest.param(lambda x: edit_record(x, 3, skeleton="3"), "layer", id="no state"),
        pytest.param(lambda x: edit_record(x, 1, skeleton='[{"x":1},1,1]'), "layer", id="no mark"),
        pytest.param(shorter, "layer", id="fewer layers"),
        pytest.param(moved, "stands at 9, not at 8", id="a window that stands elsewhere"),
    ],
)
def test_a_block_that_does_not_fit_is_an_error_of_one_kind(
    model, codec, spoil: Callable[[Block], Block], reason: str
):
    good = block(codec, fed(model, range(8)), 0, 8).block
    codec.build([loaded(good)], 8)
    with pytest.raises(RestoreError, match=reason):
        codec.build([loaded(spoil(good))], 8)


def test_blocks_of_another_length_than_asked_for_are_refused(model, codec):
    good = block(codec, fed(model, range(8)), 0, 8)
    long = loaded(good.block, 9)
    for blocks, tokens in (([good], 9), ([long], 9), ([good, good], 8), ([], 0)):
        with pytest.raises(RestoreError):
            codec.build(blocks, tokens)


def test_a_block_of_a_model_of_other_heads_or_precision_is_refused(codec):
    for other in (Recorder(mx.bfloat16), Recorder(width=8)):
        theirs = KvCodec(other, describe_layers(other))
        with pytest.raises(RestoreError, match="layer 0: a block holds"):
            codec.build([block(theirs, fed(other, range(8)), 0, 8)], 8)


def test_caches_of_another_model_are_not_cut(model, codec):
    with pytest.raises(RestoreError, match="caches"):
        codec.cut(fed(model, range(8))[:2], 0, 8, snapshot=True)
    swapped = list(reversed(fed(model, range(8))))
    with pytest.raises(RestoreError, match="layer 0 is a ChunkedKVCache"):
        codec.cut(swapped, 0, 8, snapshot=True)


def test_a_block_holds_its_own_tokens_and_no_more(model, codec):
    found = block(codec, fed(model, range(8)), 4, 6, snapshot=False).block
    assert [one.shape[2] for one in found.tensors] == [2, 2, 2, 2]
    assert found.payload_bytes == 2 * codec.layout.token_bytes


def test_what_a_block_holds_is_written_down(model, codec):
    found = block(codec, fed(model, range(8)), 0, 8).block
    assert [one.name for one in found.tensors] == [
        *("0.t0", "0.t1", "1.s0", "2.t0", "2.t1", "3.s0", "3.s1", "4.s0", "4.s1")
    ]
    assert found.header.layers[0] == LayerRecord(LayerKind.SLICEABLE, "KVCache")
    empty = block(codec, fed(model, range(8)), 0, 8, snapshot=False).block
    assert empty.header.snapshot_mask == 0
    assert isinstance(empty.tensors[0], TensorBytes)


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.uint32])
def test_tokens_are_joined_bit_by_bit_in_a_buffer_that_is_used_again(dtype) -> None:
    joiner = TokenJoiner()
    for seed in range(2):
        mx.random.seed(seed)
        parts = [(100 * mx.random.normal((1, 2, size, 3))).astype(dtype) for size in (4, 4, 2)]
        tensors = [to_bytes("0.t0", one) for one in parts]
        joined = joiner.join(tensors, (4, 4, 1), 16)
        expected = mx.concatenate([parts[0], parts[1], parts[2][:, :, :1]], axis=2)
        assert mx.array_equal(joined[:, :, :9], expected).item()
        assert mx.array_equal(joined[:, :, 9:], mx.zeros((1, 2, 7, 3), dtype)).item()


def test_tokens_of_other_forms_are_not_joined() -> None:
    joiner, good = TokenJoiner(), to_bytes("0.t0", mx.zeros((1, 2, 4, 3)))
    for other in (
        dataclasses.replace(good, shape=(1, 3, 4, 2)),
        dataclasses.replace(good, shape=(2, 2, 2, 3)),
        dataclasses.replace(good, dtype="I32"),
        dataclasses.replace(good, data=b"\0" * 48),
        dataclasses.replace(good, shape=(2, 12)),
    ):
        with pytest.raises(RestoreError):
            joiner.join([good, other], (4, 4), 16)
    with pytest.raises(RestoreError):
        joiner.join([good], (5,), 16)
