"""Which blocks are on the disk: rows over the shared SQLite file.

Owns the tables `blocks` and `cuts`, and the order of eviction. Methods that take a connection run
in the caller's transaction. Called by the store.

Order of eviction: least recently used first, but only blocks that no stored block needs, that no
running restore holds, and that no block being written needs. So a chain goes from its end, and
nothing holds space that cannot be reached. `tick` counts uses and hangs on no clock; of blocks
used at once the deepest goes first. What cannot be reached any more is put at tick 0, to go first.
"""

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from manifests.wire.prefix_chain import CUT_BYTES, CUT_TOKENS
from node_agent.kvcache.block import BlockHeader, CutBlock, StoredBlock, Tier
from node_agent.kvcache.ssd_database import Database

# SQLite allows 32,766 parameters a statement; more than this gains nothing.
_BATCH = 500
_COLUMNS = "digest, parent, place, tokens, snapshots, bytes, needs_parent"
_FREE_LEAF = """
    NOT EXISTS (SELECT 1 FROM blocks c WHERE c.parent = b.digest AND c.needs_parent)
    AND NOT EXISTS (SELECT 1 FROM leases l WHERE l.digest = b.digest AND l.expires_at > :now)
    AND NOT EXISTS (SELECT 1 FROM writing w WHERE w.parent = b.digest OR w.digest = b.digest)
"""


@dataclass(frozen=True, slots=True)
class Victim:
    """A block to evict."""

    digest: bytes
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Figures:
    """Totals of the index. Units: `used_bytes` counts blocks and what is being written."""

    used_bytes: int = 0
    blocks: int = 0
    foreign_files: int = 0


class SsdIndex:
    """The blocks on the disk, shared by all processes of the node."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def find(
        self, digests: Sequence[bytes], parents: Sequence[bytes], block_tokens: int
    ) -> tuple[StoredBlock, ...]:
        """Return the blocks with these names, and partial blocks that follow these parents.

        Raises: TierFault.
        """
        found: list[StoredBlock] = []
        with self._database.looking() as connection:
            for batch in _batches(digests):
                where = f"digest IN ({_marks(batch)})"
                found += _rows(connection, where, batch)
            for batch in _batches(parents):
                where = f"parent IN ({_marks(batch)}) AND tokens < ?"
                found += _rows(connection, where, [*batch, block_tokens])
        return tuple(found)

    def find_cut(self, cuts: Sequence[bytes]) -> CutBlock | None:
        """Return a block with the last of these cuts that any has; see `wanted_cuts`.

        Raises: TierFault.
        """
        where = "digest = (SELECT digest FROM cuts WHERE cut = ? LIMIT 1)"
        with self._database.looking() as connection:
            for number in range(len(cuts), 0, -1):
                for block in _rows(connection, where, [cuts[number - 1]]):
                    return CutBlock(block, number * CUT_TOKENS)
        return None

    def contains(self, digest: bytes, snapshot_mask: int = 0) -> bool:
        """Return whether a block is stored, with all these snapshots. Raises: TierFault."""
        with self._database.looking() as connection:
            return has_block(connection, digest, snapshot_mask)

    def figures(self) -> Figures:
        """Return the totals. Raises: TierFault."""
        with self._database.looking() as connection:
            rows = dict(connection.execute("SELECT name, value FROM figures"))
        return Figures(rows["used_bytes"], rows["blocks"], rows["foreign_files"])

    def sizes(self) -> dict[bytes, int]:
        """Return the names and bytes of all blocks. Raises: TierFault."""
        with self._database.reading() as connection:
            return dict(connection.execute("SELECT digest, bytes FROM blocks").fetchall())

    def names(self, fingerprint: str, snapshot_mask: int, block_tokens: int) -> frozenset[bytes]:
        """Return one model's full blocks that carry all these snapshots. Raises: TierFault."""
        with self._database.reading() as connection:
            rows = connection.execute(
                "SELECT digest, snapshots FROM blocks WHERE fingerprint = ? AND tokens = ?",
                (fingerprint, block_tokens),
            ).fetchall()
        mask = snapshot_mask
        return frozenset(bytes(digest) for digest, held in rows if int(held, 16) & mask == mask)

    def note_foreign(self, count: int) -> None:
        """Remember how many files of others were seen. Raises: TierFault."""
        with self._database.transaction() as connection:
            connection.execute("UPDATE figures SET value=? WHERE name='foreign_files'", (count,))

    def demote(self, fingerprint: str) -> None:
        """Let the blocks of a model that is gone be evicted first. Raises: TierFault."""
        with self._database.transaction() as connection:
            connection.execute("UPDATE blocks SET tick = 0 WHERE fingerprint = ?", (fingerprint,))


def has_block(connection: sqlite3.Connection, digest: bytes, snapshot_mask: int = 0) -> bool:
    """Return whether a block is stored, with all these snapshots."""
    row = connection.execute("SELECT snapshots FROM blocks WHERE digest = ?", (digest,)).fetchone()
    return row is not None and int(row[0], 16) & snapshot_mask == snapshot_mask


def has_block_of(connection: sqlite3.Connection, digest: bytes, size_bytes: int) -> bool:
    """Return whether a block of this size is stored."""
    query = "SELECT 1 FROM blocks WHERE digest = ? AND bytes = ?"
    return connection.execute(query, (digest, size_bytes)).fetchone() is not None


def figure(connection: sqlite3.Connection, name: str) -> int:
    """Return one total."""
    row = connection.execute("SELECT value FROM figures WHERE name = ?", (name,)).fetchone()
    return int(row[0])


def add_block(
    connection: sqlite3.Connection, header: BlockHeader, size_bytes: int, now: float
) -> None:
    """Enter a block as the most recently used one."""
    row = (
        header.digest,
        header.parent,
        header.index,
        header.tokens,
        f"{header.snapshot_mask:x}",
        header.fingerprint,
        size_bytes,
        int(header.needs_parent),
        _next_tick(connection),
        now,
        b"".join(header.cuts),
    )
    # Not REPLACE: it would skip the trigger that takes the old row's bytes off the total.
    _delete_row(connection, header.digest)
    connection.execute("INSERT INTO blocks VALUES (?,?,?,?,?,?,?,?,?,?,?)", row)
    connection.executemany(
        "INSERT OR IGNORE INTO cuts VALUES (?, ?)", [(cut, header.digest) for cut in header.cuts]
    )


def touch_blocks(connection: sqlite3.Connection, digests: Iterable[bytes], now: float) -> None:
    """Note a use of blocks, all at once."""
    tick = _next_tick(connection)
    connection.executemany(
        "UPDATE blocks SET tick = ?, used_at = ? WHERE digest = ?",
        [(tick, now, digest) for digest in digests],
    )


def next_victim(
    connection: sqlite3.Connection, now: float, unused_since: float | None = None
) -> Victim | None:
    """Return the block to evict next; None when none may go.

    With `unused_since` only blocks not used since then.
    """
    age = "" if unused_since is None else "AND b.used_at < :since"
    row = connection.execute(
        f"SELECT digest, bytes FROM blocks b WHERE {_FREE_LEAF} {age} "  # noqa: S608 - constants
        "ORDER BY tick, place DESC LIMIT 1",
        {"now": now, "since": unused_since},
    ).fetchone()
    return None if row is None else Victim(bytes(row[0]), int(row[1]))


def of_fingerprint(
    connection: sqlite3.Connection, fingerprint: str | None, limit: int
) -> tuple[Victim, ...]:
    """Return some blocks of one model, or of any."""
    rows = connection.execute(
        "SELECT digest, bytes FROM blocks WHERE fingerprint = ?1 OR ?1 IS NULL LIMIT ?2",
        (fingerprint, limit),
    )
    return tuple(Victim(bytes(digest), int(size)) for digest, size in rows)


def remove_block(connection: sqlite3.Connection, digest: bytes) -> None:
    """Strike a block out; what needs it cannot be reached now and will go first."""
    if not _delete_row(connection, digest):
        return
    connection.execute(
        "WITH RECURSIVE lost(digest) AS ("
        " SELECT digest FROM blocks WHERE parent = ? AND needs_parent"
        " UNION SELECT b.digest FROM blocks b JOIN lost ON b.parent = lost.digest"
        " WHERE b.needs_parent)"
        "UPDATE blocks SET tick = 0 WHERE digest IN (SELECT digest FROM lost)",
        (digest,),
    )


def _delete_row(connection: sqlite3.Connection, digest: bytes) -> bool:
    row = connection.execute("SELECT cuts FROM blocks WHERE digest = ?", (digest,)).fetchone()
    if row is None:
        return False
    cuts = [(row[0][at : at + CUT_BYTES], digest) for at in range(0, len(row[0]), CUT_BYTES)]
    connection.executemany("DELETE FROM cuts WHERE cut = ? AND digest = ?", cuts)
    connection.execute("DELETE FROM blocks WHERE digest = ?", (digest,))
    return True


def _next_tick(connection: sqlite3.Connection) -> int:
    connection.execute("UPDATE figures SET value = value + 1 WHERE name = 'tick'")
    return figure(connection, "tick")


def _batches(items: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    return (items[start : start + _BATCH] for start in range(0, len(items), _BATCH))


def _marks(items: Sequence[bytes]) -> str:
    return ",".join("?" * len(items))


def _rows(
    connection: sqlite3.Connection, where: str, values: Sequence[object]
) -> Iterator[StoredBlock]:
    query = f"SELECT {_COLUMNS} FROM blocks WHERE {where}"  # noqa: S608 - only question marks vary
    for digest, parent, place, tokens, snapshots, size_bytes, needs in connection.execute(
        query, values
    ):
        mask = int(snapshots, 16)
        yield StoredBlock(
            bytes(digest), bytes(parent), place, tokens, mask, size_bytes, Tier.SSD, bool(needs)
        )
