"""What the tiers did, as numbers.

Owns the counters. The engine's thread and the writer's thread count here; the engine sends a
snapshot to the agent, which makes metrics of it. Counters only grow.
"""

import threading
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class KvCacheStats:
    """Counters since the process started. Units: bytes and tokens as named; seconds summed.

    `saves` were accepted for the disk, `saves_persisted` are on it; the difference is queued or
    was given up after it was accepted (`drops` says how many, `skips` were there already).
    `late_lookups` found the index too busy or the disk hanging, and counted as if nothing were
    stored; `stalls` are restores that went on without blocks that a hanging disk did not give,
    `refused_restores` prompts computed from their start because a restore had no memory.
    """

    hot_hits: int = 0
    ssd_hits: int = 0
    misses: int = 0
    tokens_saved: int = 0
    restores: int = 0
    restore_seconds: float = 0.0
    saves: int = 0
    saves_persisted: int = 0
    skips: int = 0
    drops: int = 0
    hot_evictions: int = 0
    ssd_evictions: int = 0
    corruptions: int = 0
    faults: int = 0
    late_lookups: int = 0
    stalls: int = 0
    refused_restores: int = 0
    written_bytes: int = 0
    read_bytes: int = 0


class StatsCounter:
    """The one place of a process that counts; safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stats = KvCacheStats()

    def add(self, **amounts: int | float) -> None:
        """Add to counters by name."""
        with self._lock:
            grown = {name: getattr(self._stats, name) + more for name, more in amounts.items()}
            self._stats = replace(self._stats, **grown)

    def snapshot(self) -> KvCacheStats:
        """Return all counters at one moment."""
        with self._lock:
            return self._stats
