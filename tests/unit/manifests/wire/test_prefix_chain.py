"""Names of prefixes: the same in every process, different for every difference."""

import subprocess
import sys
import time

import pytest

from manifests.wire.prefix_chain import (
    ChainRoot,
    PrefixChain,
    chain_digests,
    pack_tokens,
    tail_digest,
)

ROOT = ChainRoot("weights-and-config")


def test_the_formula_is_pinned_so_stored_blocks_survive_releases() -> None:
    first, second = chain_digests(ROOT, range(8), 4)
    assert first.hex() == "fe3ea39de96308b513ed5dde37267694ba809865805ce12888df1b70074ea2af"
    assert second.hex() == "e1a09f95df9a95f4fcebd91ec2c13e07cba1fd724960931323b13fce32e3e3fa"


def test_another_process_with_other_hash_seed_names_the_same(tmp_path) -> None:
    code = (
        "from manifests.wire.prefix_chain import *;"
        "print(chain_digests(ChainRoot('weights-and-config'), range(8), 4)[1].hex())"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONHASHSEED": "123", "PYTHONPATH": ":".join(sys.path), "LC_ALL": "C"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.strip() == chain_digests(ROOT, range(8), 4)[1].hex()


@pytest.mark.parametrize(
    "other",
    [ChainRoot("other"), ChainRoot("weights-and-config", ("tenant-a",)), ChainRoot("", ("x",))],
)
def test_another_root_shares_no_name(other: ChainRoot) -> None:
    assert not set(chain_digests(ROOT, range(8), 4)) & set(chain_digests(other, range(8), 4))


def test_keys_are_not_glued_together() -> None:
    assert ChainRoot("f", ("ab", "c")).digest() != ChainRoot("f", ("a", "bc")).digest()
    assert ChainRoot("fa").digest() != ChainRoot("f", ("a",)).digest()


def test_a_changed_token_changes_its_block_and_all_after_it() -> None:
    before = chain_digests(ROOT, range(16), 4)
    after = chain_digests(ROOT, [*range(5), 99, *range(6, 16)], 4)
    assert [a == b for a, b in zip(before, after, strict=True)] == [True, False, False, False]


def test_a_partial_block_is_named_with_its_length() -> None:
    assert tail_digest(ROOT, range(8), 4) is None
    tails = {tail_digest(ROOT, [1, 2, 3, 4, *[0] * count], 4) for count in (1, 2, 3)}
    assert len(tails) == 3
    assert chain_digests(ROOT, [1, 2, 3, 4, 0, 0, 0, 0], 4)[1] not in tails


def test_a_prefix_of_a_block_has_the_name_that_the_shorter_sequence_gave_it() -> None:
    long, short = (PrefixChain.of(ROOT, range(n), 4) for n in (12, 6))
    assert long.digest_at(1, 2) == short.tail
    assert long.digest_at(1, 4) == long.digests[1]
    assert long.ids_digest(1, 2) == short.ids_digest(1, 2)


def test_the_digest_of_ids_is_keyed_by_the_root_and_blind_to_what_came_before() -> None:
    chain = PrefixChain.of(ROOT, [1, 2, 1, 2], 2)
    assert chain.ids_digest(0, 2) == chain.ids_digest(1, 2)
    other = PrefixChain.of(ChainRoot("weights-and-config", ("salt",)), [1, 2], 2)
    assert other.ids_digest(0, 2) != chain.ids_digest(0, 2)
    assert ROOT.ids_key() != ROOT.digest()


@pytest.mark.parametrize("tokens", [[-1], [1 << 32], [1.5]])
def test_what_is_no_token_id_is_refused(tokens: list[int]) -> None:
    with pytest.raises(ValueError, match="token ids"):
        pack_tokens(tokens)


@pytest.mark.parametrize(("index", "count"), [(0, 0), (0, 5), (2, 1), (1, 3), (-1, 4)])
def test_a_block_outside_the_sequence_is_refused(index: int, count: int) -> None:
    with pytest.raises(ValueError, match="block"):
        PrefixChain.of(ROOT, range(6), 4).digest_at(index, count)


def test_a_hundred_thousand_tokens_take_milliseconds() -> None:
    tokens = list(range(100_000))
    started = time.perf_counter()
    assert len(chain_digests(ROOT, tokens, 256)) == 390
    assert time.perf_counter() - started < 0.5  # 1.5 ms on a quiet machine
