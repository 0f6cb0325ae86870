"""What the layers of a model keep, as far as a cache must know.

Owns the declared kinds. Pure. The engine describes each layer's cache once, when a model is
loaded, from the classes it finds; an unknown class must be declared SNAPSHOT, which is right for
every class that can save and restore its state.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class LayerKind(StrEnum):
    """How a layer's state relates to tokens.

    SLICEABLE: the state of tokens a..b can be cut out, stored and joined again: KVCache, a
    quantized KV cache, MLA's latent cache. SNAPSHOT: only the whole state after some token can
    be stored: a rotating window, recurrent and convolution state, a chunked cache, a list of
    caches that holds one of those.
    """

    SLICEABLE = "sliceable"
    SNAPSHOT = "snapshot"


@dataclass(frozen=True, slots=True)
class LayerDescriptor:
    """One layer's cache.

    `cache_class` and `detail` go into the fingerprint: `detail` is any text that must change when
    the stored bytes mean something else (dtype, window, kept tokens, bits, group size).

    Units: `token_bytes` is one token's share of a SLICEABLE layer, `snapshot_bytes` the whole
    state of a SNAPSHOT layer; estimates, used for limits only.
    """

    kind: LayerKind
    cache_class: str
    detail: str = ""
    token_bytes: int = 0
    snapshot_bytes: int = 0


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """All layers of a model, in order."""

    layers: tuple[LayerDescriptor, ...]

    @property
    def snapshot_mask(self) -> int:
        """Return a bit for each layer that needs a snapshot; bit i is layer i."""
        kinds = enumerate(layer.kind for layer in self.layers)
        return sum(1 << index for index, kind in kinds if kind is LayerKind.SNAPSHOT)

    @property
    def needs_chain(self) -> bool:
        """Return whether a restore needs every block before its end, not only the last one."""
        return any(layer.kind is LayerKind.SLICEABLE for layer in self.layers)

    @property
    def token_bytes(self) -> int:
        """Return what one token adds to a block."""
        return sum(layer.token_bytes for layer in self.layers)

    @property
    def snapshot_bytes(self) -> int:
        """Return what a snapshot of all its layers adds to a block."""
        return sum(layer.snapshot_bytes for layer in self.layers)


def cache_fingerprint(model_fingerprint: str, layers: Sequence[LayerDescriptor]) -> str:
    """Return the name of what computes a cache: the model's files and how its layers keep state.

    It is the `fingerprint` of a `ChainRoot` and of stored blocks. The agent reports it, so a
    gateway can name prefixes without knowing layers.
    """
    facts = [model_fingerprint, [[x.kind, x.cache_class, x.detail] for x in layers]]
    return hashlib.sha256(json.dumps(facts, separators=(",", ":")).encode()).hexdigest()[:32]
