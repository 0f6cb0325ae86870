"""What living processes are about to write, and what they are reading.

Owns the `writing` and `leases` tables. A claim to write counts against the budget before the first
byte is written, so temporary files are counted too. A claim of a dead process is settled by whoever
opens the cache next, or looks for room in vain. All run in the caller's transaction.
"""

import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass

# A restore takes seconds; a lease that old belongs to a process that hangs.
LEASE_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Claim:
    """A file being written."""

    name: str
    digest: bytes
    owner: str
    size_bytes: int


def claim_write(connection: sqlite3.Connection, claim: Claim, parent: bytes) -> None:
    """Reserve the bytes of a file."""
    connection.execute(
        "INSERT INTO writing VALUES (?, ?, ?, ?, ?)",
        (claim.name, claim.digest, parent, claim.owner, claim.size_bytes),
    )


def end_write(connection: sqlite3.Connection, name: str) -> None:
    """Give the bytes back, or up to the block's own row."""
    connection.execute("DELETE FROM writing WHERE name = ?", (name,))


def is_being_written(connection: sqlite3.Connection, digest: bytes) -> bool:
    """Return whether some process writes this block now."""
    row = connection.execute("SELECT 1 FROM writing WHERE digest = ?", (digest,)).fetchone()
    return row is not None


def claims(connection: sqlite3.Connection) -> tuple[Claim, ...]:
    """Return all files being written."""
    rows = connection.execute("SELECT name, digest, owner, bytes FROM writing")
    return tuple(Claim(*row) for row in rows)


def owners(connection: sqlite3.Connection) -> frozenset[str]:
    """Return everybody who has a claim or a lease."""
    rows = connection.execute("SELECT owner FROM writing UNION SELECT owner FROM leases")
    return frozenset(row[0] for row in rows)


def lease(
    connection: sqlite3.Connection,
    digests: Iterable[bytes],
    holder: tuple[str, int],
    now: float,
) -> frozenset[bytes]:
    """Hold blocks against eviction; return those that are there."""
    owner, number = holder
    held = set()
    for digest in digests:
        row = connection.execute("SELECT 1 FROM blocks WHERE digest = ?", (digest,)).fetchone()
        if row is None:
            continue
        held.add(digest)
        connection.execute(
            "INSERT OR REPLACE INTO leases VALUES (?, ?, ?, ?)",
            (digest, owner, number, now + LEASE_SECONDS),
        )
    return frozenset(held)


def end_lease(connection: sqlite3.Connection, holder: tuple[str, int]) -> None:
    """Let blocks go."""
    connection.execute("DELETE FROM leases WHERE owner = ? AND number = ?", holder)


def end_writes(connection: sqlite3.Connection, owner: str) -> None:
    """Give back what an owner, who writes nothing now, could not give back when a write failed."""
    connection.execute("DELETE FROM writing WHERE owner = ?", (owner,))


def forget_owner(connection: sqlite3.Connection, owner: str) -> None:
    """Drop all leases and claims of an owner that is dead or leaves."""
    connection.execute("DELETE FROM leases WHERE owner = ?", (owner,))
    end_writes(connection, owner)
