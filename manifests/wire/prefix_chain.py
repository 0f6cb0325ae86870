"""Names of cached prefixes: a SHA-256 chain over blocks of token ids.

Owns the one formula by which a gateway and every engine name the same prefix alike, in any
process, after any restart. Pure: values in, values out. The engine's cache and the gateway's
scorer call it; neither may invent another formula.

    root   = H("root", format version, fingerprint, extra keys)
    block  = H("block", digest before it, count of ids, ids as 4 little-endian bytes each)

A partial block at the end of a sequence is named by the same formula: the count is part of it,
so no partial block is ever taken for a full one. The fingerprint stands for what computed the
cache (weights, config, kinds and precision of the layers), never for a model's name.

Inside a block there is a cut after every `CUT_TOKENS` tokens, so that a sequence that turns off
in the middle of a block can use its beginning. Names of cuts are keyed as `ids_digest` is: with
them short pieces of a prompt could be guessed one after the other. A mark is such a name after any
number of tokens; a block carries all of its own, so that what is shared is known to one token.
"""

import hashlib
import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

FORMAT_VERSION = 1
TOKEN_BYTES = 4
DIGEST_BYTES = 32
CUT_TOKENS = 16
CUT_BYTES = 16

_BLOCK_TAG = b"mlxfleet block\0"
_ROOT_TAG = b"mlxfleet root\0"
_IDS_TAG = b"mlxfleet ids\0"
_CUT_TAG = b"mlxfleet cut"


@dataclass(frozen=True, slots=True)
class ChainRoot:
    """Where a chain starts: what must be equal before any token is compared.

    `fingerprint` names what computes the cache. `extra_keys` name whatever else its content hangs
    on: a tenant's salt, an image's hash, a template that changes no token. Their order counts.
    A key applies from the first block on, so prompts with different keys share nothing.
    """

    fingerprint: str
    extra_keys: tuple[str, ...] = ()

    def digest(self) -> bytes:
        """Return what stands before the first block."""
        return self._hash(_ROOT_TAG)

    def ids_key(self) -> bytes:
        """Return the key for `ids_digest`; it stands in no file, unlike `digest`."""
        return self._hash(_IDS_TAG)

    def _hash(self, tag: bytes) -> bytes:
        hasher = hashlib.sha256(tag + FORMAT_VERSION.to_bytes(4, "little"))
        for text in (self.fingerprint, *self.extra_keys):
            raw = text.encode()
            hasher.update(len(raw).to_bytes(8, "little") + raw)
        return hasher.digest()


def pack_tokens(tokens: Sequence[int]) -> bytes:
    """Return token ids as 4 little-endian bytes each.

    Raises: ValueError for an id outside 0 .. 2^32 - 1.
    """
    try:
        ids = array("I", tokens)
    except (OverflowError, TypeError) as error:
        raise ValueError(f"token ids are whole numbers from 0 to 2^32 - 1: {error}") from error
    if sys.byteorder == "big":
        ids.byteswap()
    return ids.tobytes()


def block_digest(parent: bytes, packed: bytes | memoryview) -> bytes:
    """Return the name of the block with these packed ids, full or partial, after `parent`."""
    count = len(packed) // TOKEN_BYTES
    return hashlib.sha256(
        b"".join((_BLOCK_TAG, parent, count.to_bytes(4, "little"), packed))
    ).digest()


def chain_digests(root: ChainRoot, tokens: Sequence[int], block_tokens: int) -> tuple[bytes, ...]:
    """Return the names of all full blocks of a sequence, in order."""
    return PrefixChain.of(root, tokens, block_tokens).digests


def tail_digest(root: ChainRoot, tokens: Sequence[int], block_tokens: int) -> bytes | None:
    """Return the name of the partial block at the end; None when the last block is full."""
    return PrefixChain.of(root, tokens, block_tokens).tail


@dataclass(frozen=True, slots=True)
class PrefixChain:
    """One sequence of tokens with the names of all its blocks.

    Units: `packed` holds `TOKEN_BYTES` bytes a token. `digests` are the full blocks. A block is
    addressed by its index; `parent(0)` is the root's digest.
    """

    root_digest: bytes
    ids_key: bytes
    packed: bytes
    block_tokens: int
    digests: tuple[bytes, ...]

    @classmethod
    def of(cls, root: ChainRoot, tokens: Sequence[int], block_tokens: int) -> "PrefixChain":
        """Name all blocks of a sequence. Raises: ValueError for bad ids or block size."""
        return cls.of_packed(root, pack_tokens(tokens), block_tokens)

    @classmethod
    def of_packed(cls, root: ChainRoot, packed: bytes, block_tokens: int) -> "PrefixChain":
        """Name all blocks of a sequence of packed ids. Raises: ValueError."""
        if block_tokens < 1:
            raise ValueError(f"block_tokens is {block_tokens}; a block holds at least one token")
        view, step = memoryview(packed), block_tokens * TOKEN_BYTES
        parent = root_digest = root.digest()
        digests = []
        for start in range(0, len(packed) - step + 1, step):
            parent = block_digest(parent, view[start : start + step])
            digests.append(parent)
        return cls(root_digest, root.ids_key(), packed, block_tokens, tuple(digests))

    @property
    def tokens(self) -> int:
        """Return how many tokens the sequence has."""
        return len(self.packed) // TOKEN_BYTES

    @property
    def tail(self) -> bytes | None:
        """Return the name of the partial block at the end, None when there is none."""
        count = self.tokens % self.block_tokens
        return self.digest_at(len(self.digests), count) if count else None

    def parent(self, index: int) -> bytes:
        """Return the digest before block `index`."""
        return self.digests[index - 1] if index else self.root_digest

    def digest_at(self, index: int, count: int) -> bytes:
        """Return the name of the first `count` tokens of block `index`."""
        if count == self.block_tokens and 0 <= index < len(self.digests):
            return self.digests[index]
        ids = self._slice(index, count)
        return block_digest(self.parent(index), ids)

    def ids_digest(self, index: int, count: int) -> bytes:
        """Return a keyed digest of the ids themselves, without what came before them.

        A stored block carries it, so that a block is checked against the ids of the request and
        not only against its name, while its header holds no prompt text (B33, B97).
        """
        ids = self._slice(index, count)
        return hashlib.blake2b(ids, key=self.ids_key, digest_size=DIGEST_BYTES).digest()

    def cuts(self, index: int, count: int) -> tuple[bytes, ...]:
        """Return the names of the cuts in the first `count` tokens of a block.

        The first names `CUT_TOKENS` tokens, the second twice as many: these ids after this parent.
        """
        return self._names(index, count, CUT_TOKENS) if count >= CUT_TOKENS else ()

    def marks(self, index: int, count: int) -> bytes:
        """Return the marks of the first `count` tokens of a block: `CUT_BYTES` after each token.

        Every `CUT_TOKENS`th is the cut there.
        """
        return b"".join(self._names(index, count, 1)) if count else b""

    def _names(self, index: int, count: int, every_tokens: int) -> tuple[bytes, ...]:
        ids, step = self._slice(index, count), every_tokens * TOKEN_BYTES
        hasher = hashlib.blake2b(
            self.parent(index), key=self.ids_key, digest_size=CUT_BYTES, person=_CUT_TAG
        )
        names = []
        for start in range(0, len(ids) - step + 1, step):
            hasher.update(ids[start : start + step])
            names.append(hasher.digest())
        return tuple(names)

    def _slice(self, index: int, count: int) -> memoryview:
        start = index * self.block_tokens * TOKEN_BYTES
        end = start + count * TOKEN_BYTES
        if index < 0 or not 0 < count <= self.block_tokens or end > len(self.packed):
            raise ValueError(f"block {index} of this sequence has no {count} tokens")
        return memoryview(self.packed)[start:end]
