"""How much of a disk the cache may use.

Owns the arithmetic; pure. Called by the store before each save and when the budget changes.
"""

from dataclasses import dataclass

# What a file takes of a disk comes in such steps.
ALLOCATION_BYTES = 4096
# The index writes a journal before it notes anything, that a block is gone too. A disk full to
# the last byte could not even be made emptier.
INDEX_ROOM_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class SsdBudget:
    """The node's limits; every engine of the node is given the same.

    `daily_write_bytes` stops saves, not service, when it is spent; None: no limit.
    `retention_seconds` drops blocks not used for so long; None: never for age alone.
    """

    size_bytes: int
    leave_free_bytes: int = 0
    daily_write_bytes: int | None = None
    retention_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class DiskUse:
    """What the cache uses and what the volume has free.

    `index_bytes` is never evicted, `stored_bytes` are blocks on the disk, `claimed_bytes` are
    files being written: they are not on the disk yet, or in part.
    """

    index_bytes: int
    stored_bytes: int
    claimed_bytes: int
    free_bytes: int

    @property
    def total_bytes(self) -> int:
        """Return what the cache will take when all that is being written is there."""
        return self.index_bytes + self.stored_bytes + self.claimed_bytes


def disk_bytes(file_bytes: int) -> int:
    """Return what a file of this length takes of the disk."""
    return -(-file_bytes // ALLOCATION_BYTES) * ALLOCATION_BYTES


def allowed_bytes(budget: SsdBudget, use: DiskUse) -> int:
    """Return what the cache may take: its size, and no more than keeps `leave_free_bytes` free.

    Giving up own blocks frees the same bytes, so eviction does not change the answer.
    """
    spared_bytes = max(budget.leave_free_bytes, INDEX_ROOM_BYTES)
    by_free = use.index_bytes + use.stored_bytes + use.free_bytes - spared_bytes
    return max(0, min(budget.size_bytes, by_free))


def excess_bytes(budget: SsdBudget, use: DiskUse) -> int:
    """Return what must be evicted; zero or less when all fits."""
    return use.total_bytes - allowed_bytes(budget, use)


def is_limited_by_free(budget: SsdBudget, use: DiskUse) -> bool:
    """Return whether the free space is what binds, not the size."""
    return allowed_bytes(budget, use) < budget.size_bytes
