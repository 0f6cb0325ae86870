"""The disk tier while it is open: directory, index and our sign of life together.

Owns opening and closing. Called by the store, which drops a session at the first fault and opens
a new one when it is time to try again.
"""

from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from node_agent.kvcache.ssd_claims import claims, end_write, forget_owner, owners
from node_agent.kvcache.ssd_database import Database, delete_database
from node_agent.kvcache.ssd_directory import CacheDirectory
from node_agent.kvcache.ssd_health import TierFault, TierReason
from node_agent.kvcache.ssd_index import SsdIndex
from node_agent.kvcache.ssd_owner import Owner, dead_owners, forget, forget_nameless, is_alive
from node_agent.kvcache.ssd_survey import Survey, make_index_room, survey, temporary_name


@dataclass(frozen=True, slots=True)
class Session:
    """An open cache directory. `found` is set when the index had to be put right."""

    directory: CacheDirectory
    database: Database
    index: SsdIndex
    owner: Owner
    found: Survey | None = None
    _numbers: "count[int]" = field(default_factory=count)

    def next_number(self) -> int:
        """Return a number not used before since the directory was opened."""
        return next(self._numbers)

    def next_temporary(self) -> str:
        """Return a name for a file to be written."""
        return temporary_name(self.owner.token, self.next_number())

    def close(self) -> None:
        """Leave in good order: no claims, no sign of life."""
        try:
            with self.database.transaction() as connection:
                forget_owner(connection, self.owner.token)
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Let go of a directory that may be gone; what cannot be tidied up is left behind."""
        self.database.close()
        self.owner.leave()


def open_session(path: Path, memory_file: Path | None, suspect: bool = False) -> Session:
    """Open the cache, and put its index right if need be.

    With `suspect` the index is read through, as it is after a process that died.
    Raises: TierFault, OSError.
    """
    directory = CacheDirectory(path, memory_file)
    with directory.locked():
        directory.sweep()
        dead = dead_owners(directory.owners)
        with directory.blocks() as folder:
            relieved = bool(make_index_room(directory, folder))
        database = _open_database(directory, suspect or bool(dead))
        try:
            found = None
            if suspect or dead or database.fresh or relieved:
                found = survey(directory, database)
            settle_dead(directory, database)
            for token in dead:
                forget(directory.owners, token)
            forget_nameless(directory.owners)
            owner = Owner(directory.owners)
        except BaseException:
            database.close()
            raise
    return Session(directory, database, SsdIndex(database), owner, found)


def settle_dead(directory: CacheDirectory, database: Database) -> int:
    """Drop claims and leases of processes that died; return of how many. Raises: TierFault.

    Their temporary files are taken away first, so the bytes are free when they count as free.
    """
    with database.transaction() as connection:
        dead = [x for x in owners(connection) if not is_alive(directory.owners, x)]
        for claim in claims(connection):
            if claim.owner in dead:
                (directory.path / "blocks" / claim.name).unlink(missing_ok=True)
                end_write(connection, claim.name)
        for token in dead:
            forget_owner(connection, token)
    return len(dead)


def _open_database(directory: CacheDirectory, suspect: bool) -> Database:
    """Open the index; make a new one in place of a damaged one."""
    try:
        database = Database(directory.index_file)
        if suspect:
            try:
                database.check()
            except TierFault:
                database.close()
                raise
    except TierFault as fault:
        if fault.reason is not TierReason.INDEX:
            raise
        delete_database(directory.index_file)
        return Database(directory.index_file)
    return database
