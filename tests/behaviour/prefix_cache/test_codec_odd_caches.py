"""Lists of caches, quantized and other caches: the same as cold, or refused with the reason."""

import copy
from functools import partial

import pytest
from mlx_lm.models.cache import (
    ConcatenateKVCache,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
    make_prompt_cache,
)

from node_agent.engine.prefix.kv_codec import RestoreError, describe_layers
from node_agent.engine.prefix.prefix_cache import prove_codec
from node_agent.kvcache.layer_kinds import LayerKind
from tests.support.cached_engine import prompt
from tests.support.kv_odd_models import LISTS, list_model, other_caches
from tests.support.kv_rows import Rows, cold, feed, go_on

LONG = prompt(300)
SAID = 10


def check_all(rows: Rows) -> list[int]:
    """Run a prompt, itself again, a branch and the next turn; return how much was cached."""
    prove_codec(rows.model, rows.codec)
    first = rows.run(LONG, SAID)
    assert first.said == cold(rows.model, LONG, SAID)
    rows.finish(LONG, first)
    turns = [LONG, [*LONG[:200], *prompt(60, seed=4)], [*LONG, *first.said, 5, 6, 7]]
    cached = []
    for turn in turns:
        warm = rows.run(turn, SAID)
        assert warm.said == cold(rows.model, turn, SAID)
        cached.append(warm.cached_tokens)
    return cached


@pytest.mark.parametrize("name", LISTS)
def test_members_of_a_list_are_stored_each_by_its_own_kind(name):
    rows = Rows(list_model(name), block_tokens=64)
    kinds = {(one.cache_class, one.kind) for one in rows.codec.layout.layers}
    assert ("KVCache", LayerKind.SLICEABLE) in kinds
    assert not {name for name, _ in kinds} & {"CacheList"}
    assert check_all(rows) == [299, 192, 309]


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(partial(QuantizedKVCache, 32, 8), id="8 bits"),
        pytest.param(partial(QuantizedKVCache, 32, 4), id="4 bits"),
        pytest.param(ConcatenateKVCache, id="concatenated"),
    ],
)
def test_other_caches_by_token_go_on_from_any_token(make):
    rows = Rows(other_caches(make), block_tokens=64)
    assert not rows.codec.layout.snapshot_mask
    assert check_all(rows) == [299, 192, 309]
    # A prompt that ends with a block feeds the last token again.
    warm = rows.run(LONG[:128], SAID)
    assert (warm.said, warm.cached_tokens) == (cold(rows.model, LONG[:128], SAID), 127)


def test_a_window_is_stored_without_what_it_drops_next():
    """B29: though a chunk of 64 was fed, no more than the window of 32."""
    rows = Rows(other_caches(partial(RotatingKVCache, 32)), block_tokens=64)
    assert check_all(rows) == [299, 192, 309]
    (stored,) = rows.blocks(LONG)
    assert {tensor.shape[2] for tensor in stored.block.tensors} == {32}
    assert stored.block.payload_bytes == rows.codec.layout.snapshot_bytes


@pytest.mark.parametrize("kept_tokens", [0, 4])
@pytest.mark.parametrize("decoded_tokens", [0, 1, 9, 27, 28, 29, 70])
def test_a_window_that_has_turned_round_goes_on(kept_tokens, decoded_tokens):
    """With kept first tokens mlx-lm's own results hang on chunk ends, so both go the same way."""
    rows = Rows(other_caches(partial(RotatingKVCache, 32, kept_tokens)), block_tokens=512)
    caches = make_prompt_cache(rows.model)
    feed(rows.model, caches, LONG[:40])
    said = go_on(rows.model, caches, 7, decoded_tokens)
    tokens = [*LONG[:40], *[7, *said][:decoded_tokens]]
    rows.keep_end(tokens, caches)
    blocks = rows.blocks([*tokens, 9])
    for more in (LONG[50:51], LONG[50:55], LONG[50:120]):
        ways = [copy.deepcopy(caches), rows.codec.build(blocks, len(tokens))]
        for way in ways:
            feed(rows.model, way, more)
        left, right = (go_on(rows.model, way, 11, SAID) for way in ways)
        assert left == right


def test_what_quantizes_otherwise_has_another_fingerprint():
    details = {
        describe_layers(other_caches(partial(QuantizedKVCache, 32, bits))).layers[0].detail
        for bits in (4, 8)
    }
    assert len(details) == 2


class Sealed(KVCache):
    """Shows its state and cannot be set to one."""

    @property
    def state(self):
        return super().state


class Silent(KVCache):
    """Shows nothing."""

    @property
    def state(self):
        return []


class Obscure(KVCache):
    """Has what no file can hold."""

    @property
    def state(self):
        return self.keys, object()


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (Sealed, "Sealed cannot be set to a stored state"),
        (Silent, "Silent shows no state that could be stored"),
        (Obscure, "object in a cache's state cannot be stored"),
    ],
)
def test_a_cache_that_cannot_be_stored_is_refused_by_name(kind, reason):
    with pytest.raises(RestoreError, match=reason):
        describe_layers(other_caches(kind))


class Forgetful(KVCache):
    """Leaves out of its state where it stands."""

    @property
    def state(self):
        return self.keys, self.values

    @state.setter
    def state(self, state):
        self.keys, self.values = state


def test_a_cache_whose_state_is_not_all_of_it_is_found_out_when_the_model_is_loaded():
    rows = Rows(other_caches(Forgetful), block_tokens=64)
    assert rows.codec.layout.layers[0].kind is LayerKind.SNAPSHOT
    with pytest.raises(RestoreError):
        prove_codec(rows.model, rows.codec)
