"""Makes room on the disk: eviction, reservation before a save, trimming, wiping.

Owns every deletion of a good block. In each transaction files go before their rows and rows of
new files come after them, and a file's bytes are reserved before its first byte: whatever moment a
process dies at, the index counts at least what the disk holds. Called by the store.
"""

import os
import sqlite3
from dataclasses import dataclass
from enum import StrEnum

from node_agent.kvcache.block import BlockHeader
from node_agent.kvcache.ssd_budget import (
    INDEX_ROOM_BYTES,
    DiskUse,
    SsdBudget,
    allowed_bytes,
    disk_bytes,
    excess_bytes,
    is_limited_by_free,
)
from node_agent.kvcache.ssd_claims import (
    Claim,
    claim_write,
    end_write,
    end_writes,
    is_being_written,
)
from node_agent.kvcache.ssd_health import TierFault, TierReason
from node_agent.kvcache.ssd_index import (
    Victim,
    figure,
    has_block,
    next_victim,
    of_fingerprint,
    remove_block,
    touch_blocks,
)
from node_agent.kvcache.ssd_session import Session, settle_dead
from node_agent.kvcache.ssd_survey import block_name, make_index_room

EVICTIONS_PER_STEP = 32
_DAY_SECONDS = 86400


class PutOutcome(StrEnum):
    """What became of a block handed to the disk."""

    STORED = "stored"
    ALREADY = "already"
    NO_ROOM = "no_room"
    INDEX_FULL = "index_full"
    NO_PARENT = "no_parent"
    DAILY_BUDGET = "daily_budget"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class Reservation:
    """Room for one file; `evicted` blocks went for it. `claim` is None when there is none."""

    outcome: PutOutcome
    claim: Claim | None = None
    evicted: int = 0


def reserve(
    session: Session, folder: int, budget: SsdBudget, wanted: tuple[BlockHeader, int], now: float
) -> Reservation:
    """Reserve room for a block of so many bytes, evicting a bounded number of others.

    Raises: TierFault (FULL when the volume itself has no room), OSError.
    """
    header, file_bytes = wanted
    size_bytes = disk_bytes(file_bytes)
    with session.database.transaction() as connection:
        use = disk_use(session, connection)
        if use.free_bytes >= INDEX_ROOM_BYTES:
            # One thread writes, and it is here: what it still claims is of a write that failed.
            end_writes(connection, session.owner.token)
        refusal = _refusal(connection, header, (size_bytes, budget.daily_write_bytes), now)
        if refusal is not None:
            return Reservation(refusal)
        if use.index_bytes + size_bytes > allowed_bytes(budget, use):
            if is_limited_by_free(budget, use):
                raise TierFault(
                    TierReason.FULL,
                    f"{session.directory.path}: {use.free_bytes} bytes free, "
                    f"{budget.leave_free_bytes} are to be left free",
                )
            return Reservation(PutOutcome.NO_ROOM)
        if use.free_bytes < INDEX_ROOM_BYTES:
            return Reservation(PutOutcome.INDEX_FULL)
        # Claimed first: the claim keeps the block's parent from being evicted for it.
        owner = session.owner.token
        claim = Claim(session.next_temporary(), header.digest, owner, size_bytes)
        claim_write(connection, claim, header.parent)
        evicted, excess = _evict(session, (connection, folder), budget, now)
        if excess > 0:
            end_write(connection, claim.name)
            return Reservation(PutOutcome.NO_ROOM, None, evicted)
        return Reservation(PutOutcome.STORED, claim, evicted)


def trim_step(session: Session, budget: SsdBudget, now: float) -> int:
    """Evict a bounded number of blocks over the budget or past retention; return how many.

    Raises: TierFault, OSError.
    """
    with session.directory.blocks() as folder, session.database.transaction() as connection:
        evicted, _ = _evict(session, (connection, folder), budget, now)
        if budget.retention_seconds is None:
            return evicted
        since = now - budget.retention_seconds
        while evicted < EVICTIONS_PER_STEP:
            victim = next_victim(connection, now, since)
            if victim is None:
                break
            _delete(session, connection, folder, victim)
            evicted += 1
    return evicted


def wipe_step(session: Session, fingerprint: str | None) -> int:
    """Delete a bounded number of blocks of one model or of all, in use or not; return how many.

    Raises: TierFault, OSError.
    """
    with session.directory.blocks() as folder, session.database.transaction() as connection:
        victims = of_fingerprint(connection, fingerprint, EVICTIONS_PER_STEP)
        for victim in victims:
            _delete(session, connection, folder, victim)
    return len(victims)


def make_way(session: Session, folder: int, outcome: PutOutcome) -> bool:
    """Look for dead processes' claims when there was no room, and give up blocks for the index.

    Return whether it is worth trying again. Raises: TierFault, OSError.
    """
    if outcome is PutOutcome.INDEX_FULL:
        gone = make_index_room(session.directory, folder)
        with session.database.transaction() as connection:
            for digest in gone:
                remove_block(connection, digest)
        return bool(gone)
    return outcome is PutOutcome.NO_ROOM and settle_dead(session.directory, session.database) > 0


def note_written(connection: sqlite3.Connection, size_bytes: int, now: float) -> None:
    """Count bytes against the day's write budget."""
    _start_day(connection, now)
    connection.execute(
        "UPDATE figures SET value = value + ? WHERE name = 'day_bytes'", (size_bytes,)
    )


def _refusal(
    connection: sqlite3.Connection,
    header: BlockHeader,
    sizes: tuple[int, int | None],
    now: float,
) -> PutOutcome | None:
    size_bytes, daily_bytes = sizes
    if has_block(connection, header.digest, header.snapshot_mask):
        touch_blocks(connection, [header.digest], now)
        return PutOutcome.ALREADY
    if is_being_written(connection, header.digest):
        return PutOutcome.ALREADY
    if header.needs_parent and not has_block(connection, header.parent):
        return PutOutcome.NO_PARENT
    if daily_bytes is None:
        return None
    _start_day(connection, now)
    spent = figure(connection, "day_bytes") + size_bytes > daily_bytes
    return PutOutcome.DAILY_BUDGET if spent else None


def _start_day(connection: sqlite3.Connection, now: float) -> None:
    day = int(now // _DAY_SECONDS)
    if figure(connection, "day") != day:
        connection.execute("UPDATE figures SET value = ? WHERE name = 'day'", (day,))
        connection.execute("UPDATE figures SET value = 0 WHERE name = 'day_bytes'")


def disk_use(session: Session, connection: sqlite3.Connection) -> DiskUse:
    """Return what the cache uses. Raises: OSError."""
    claimed = int(connection.execute("SELECT coalesce(sum(bytes), 0) FROM writing").fetchone()[0])
    return DiskUse(
        session.database.file_bytes(),
        figure(connection, "used_bytes") - claimed,
        claimed,
        session.directory.free_bytes(),
    )


def _evict(
    session: Session, place: tuple[sqlite3.Connection, int], budget: SsdBudget, now: float
) -> tuple[int, int]:
    """Evict until all fits, a bounded number; return how many, and the bytes still too many.

    The free space is read once: file systems give deleted bytes back late.
    """
    connection, folder = place
    excess = excess_bytes(budget, disk_use(session, connection))
    evicted = 0
    while excess > 0 and evicted < EVICTIONS_PER_STEP:
        victim = next_victim(connection, now)
        if victim is None:
            break
        _delete(session, connection, folder, victim)
        excess -= victim.size_bytes
        evicted += 1
    return evicted, excess


def _delete(session: Session, connection: sqlite3.Connection, folder: int, victim: Victim) -> None:
    name = block_name(victim.digest)
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        pass
    except (IsADirectoryError, PermissionError):
        session.directory.set_aside(folder, name)
    remove_block(connection, victim.digest)
