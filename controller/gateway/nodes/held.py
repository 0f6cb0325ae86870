"""Which prefixes a node's engines hold, as its stream told; a pure state machine.

Bounded: names over the bound are dropped and counted, which costs a worse choice of node and
nothing else. Owned by `prefix_stream`, one instance a node.
"""

from dataclasses import dataclass, field

from manifests.wire.prefix_chain import DIGEST_BYTES
from manifests.wire.prefixes import PrefixChanges


@dataclass(slots=True)
class Held:
    """What one engine holds. `version` grows with every change."""

    fingerprint: str
    block_tokens: int
    digests: set[bytes] = field(default_factory=set)
    version: int = 0


class NodePrefixes:
    """All engines of one node; starts empty with every connection."""

    def __init__(self, most_names: int) -> None:
        """`most_names` bounds the names of all engines together."""
        self._most_names = most_names
        self._held: dict[str, Held] = {}
        self._names = 0
        self._version = 0
        self.dropped = 0

    @property
    def names(self) -> int:
        """How many names are held."""
        return self._names

    def find(self, engine: str) -> Held | None:
        """Return what an engine holds, None when nothing was told of it."""
        return self._held.get(engine)

    def take(self, line: PrefixChanges) -> int:
        """Follow one line; returns how many names were dropped for want of room.

        Raises: ValueError for names that are none; what the line says is not followed then.
        """
        if not line.engine:
            return 0
        added, removed = _digests(line.added), _digests(line.removed)
        held = self._held.get(line.engine)
        other = held is not None and (held.fingerprint, held.block_tokens) != (
            line.fingerprint,
            line.block_tokens,
        )
        if held is not None and (line.full or other):
            self._names -= len(held.digests)
            del self._held[line.engine]
            held = None
        if not line.fingerprint or line.block_tokens < 1:
            return 0
        if held is None:
            held = self._held[line.engine] = Held(line.fingerprint, line.block_tokens)
        before = len(held.digests)
        held.digests.difference_update(removed)
        room = self._most_names - (self._names - before) - len(held.digests)
        fresh = [name for name in dict.fromkeys(added) if name not in held.digests]
        held.digests.update(fresh[: max(0, room)])
        self._names += len(held.digests) - before
        self._version += 1
        held.version = self._version
        dropped = max(0, len(fresh) - max(0, room))
        self.dropped += dropped
        return dropped


def _digests(names: tuple[str, ...]) -> list[bytes]:
    found = [bytes.fromhex(name) for name in names]
    if any(len(name) != DIGEST_BYTES for name in found):
        raise ValueError("a name of another length")
    return found
