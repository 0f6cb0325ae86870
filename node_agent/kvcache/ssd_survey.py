"""Compares the files on the disk with the index, and puts the index right.

Owns the repair: rows for files that have none, no rows for files that are gone, no leftovers of
processes that died. Called when an index is new or damaged, after an exit that was not in good
order, and now and then by the writer; a start after a good exit lists nothing. Files of others are
counted and never touched.
"""

import os
import re
import sqlite3
from collections.abc import Iterator, Set
from dataclasses import dataclass

from node_agent.kvcache.block import BlockHeader
from node_agent.kvcache.block_file import read_block_header
from node_agent.kvcache.block_format import BlockDamagedError
from node_agent.kvcache.ssd_budget import INDEX_ROOM_BYTES, disk_bytes
from node_agent.kvcache.ssd_claims import claims
from node_agent.kvcache.ssd_database import Database
from node_agent.kvcache.ssd_directory import OUR_NAMES, CacheDirectory
from node_agent.kvcache.ssd_index import SsdIndex, add_block, has_block_of, remove_block
from node_agent.kvcache.ssd_owner import is_alive

_BATCH = 100
BLOCK_SUFFIX = ".safetensors"
_BLOCK_NAME = re.compile(r"([0-9a-f]{64})\.safetensors")
_TEMPORARY_NAME = re.compile(r"tmp-([0-9a-f]{32})-[0-9]+")


def block_name(digest: bytes) -> str:
    """Return the file name of a block."""
    return digest.hex() + BLOCK_SUFFIX


def temporary_name(owner: str, number: int) -> str:
    """Return the name of a file while it is written; it tells whose leftover it would be."""
    return f"tmp-{owner}-{number}"


@dataclass(frozen=True, slots=True)
class Survey:
    """What was found and done."""

    adopted: int = 0
    missing: int = 0
    damaged: int = 0
    leftovers: int = 0
    foreign_files: int = 0


@dataclass(frozen=True, slots=True)
class _Found:
    name: str
    used_at: float
    size_bytes: int


def survey(directory: CacheDirectory, database: Database) -> Survey:
    """Make the index agree with the disk. Raises: TierFault, OSError."""
    index = SsdIndex(database)
    with directory.blocks() as folder:
        known = index.sizes()
        found = _list(folder)
        blocks = {bytes.fromhex(m[1]): x for x in found if (m := _BLOCK_NAME.fullmatch(x.name))}
        leftovers = _remove_leftovers(directory, folder, found)
        adopted = damaged = 0
        # Of another size: a process died between putting a better block in its place and its row.
        unknown = sorted(
            (x for x in blocks if known.get(x) != disk_bytes(blocks[x].size_bytes)),
            key=lambda digest: blocks[digest].used_at,
        )
        for batch in _batches(unknown):
            taken, refused = _adopt(directory, database, folder, [blocks[x] for x in batch])
            adopted += taken
            damaged += refused
        missing = _strike_missing(database, folder, known.keys() - (blocks.keys() - set(unknown)))
    foreign = _count_foreign(directory, found)
    index.note_foreign(foreign)
    return Survey(adopted, missing, damaged, leftovers, foreign)


def make_index_room(directory: CacheDirectory, folder: int) -> tuple[bytes, ...]:
    """Delete blocks until a disk that is full lets the index be written; return their names.

    Their rows are the caller's: no row can be struck before. The newest go first; the older one
    is, the more others hang on it. What they take is counted, not seen: some file systems give
    deleted bytes back late or, for a snapshot's sake, not at all. Raises: OSError.
    """
    room_bytes = directory.free_bytes()
    if room_bytes >= INDEX_ROOM_BYTES:
        return ()
    found = sorted(_list(folder), key=lambda entry: entry.used_at, reverse=True)
    _remove_leftovers(directory, folder, tuple(found))
    gone: list[bytes] = []
    for entry in found:
        if room_bytes >= INDEX_ROOM_BYTES:
            break
        if match := _BLOCK_NAME.fullmatch(entry.name):
            directory.set_aside(folder, entry.name)
            gone.append(bytes.fromhex(match[1]))
            room_bytes += entry.size_bytes
    return tuple(gone)


def _list(folder: int) -> tuple[_Found, ...]:
    found = []
    with os.scandir(folder) as entries:
        for entry in entries:
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            found.append(_Found(entry.name, status.st_mtime, status.st_size))
    return tuple(found)


def _remove_leftovers(directory: CacheDirectory, folder: int, found: tuple[_Found, ...]) -> int:
    count = 0
    for entry in found:
        match = _TEMPORARY_NAME.fullmatch(entry.name)
        if match and not is_alive(directory.owners, match[1]):
            directory.set_aside(folder, entry.name)
            count += 1
    return count


def _adopt(
    directory: CacheDirectory, database: Database, folder: int, entries: list[_Found]
) -> tuple[int, int]:
    """Enter files that have no row, the oldest first; take away those that are no blocks.

    Return how many were entered and how many taken away.
    """
    headers = [(entry, _header_of(directory, folder, entry.name)) for entry in entries]
    found = [(entry, header) for entry, header in headers if header is not None]
    with database.transaction() as connection:
        for entry, (header, size_bytes) in found:
            if not _is_entered(connection, directory, header.digest, disk_bytes(size_bytes)):
                add_block(connection, header, disk_bytes(size_bytes), entry.used_at)
    return len(found), len(headers) - len(found)


def _header_of(directory: CacheDirectory, folder: int, name: str) -> tuple[BlockHeader, int] | None:
    try:
        header, size_bytes = read_block_header(folder, name)
    except FileNotFoundError:
        return None
    except BlockDamagedError:
        directory.set_aside(folder, name)
        return None
    if block_name(header.digest) != name:
        directory.set_aside(folder, name)
        return None
    return header, size_bytes


def _is_entered(
    connection: sqlite3.Connection, directory: CacheDirectory, digest: bytes, size_bytes: int
) -> bool:
    """Return whether the row is there by now or its writer is about to enter it."""
    if has_block_of(connection, digest, size_bytes):
        return True
    return any(
        claim.digest == digest and is_alive(directory.owners, claim.owner)
        for claim in claims(connection)
    )


def _strike_missing(database: Database, folder: int, digests: Set[bytes]) -> int:
    count = 0
    for batch in _batches(sorted(digests)):
        with database.transaction() as connection:
            for digest in batch:
                try:
                    os.stat(block_name(digest), dir_fd=folder, follow_symlinks=False)
                except FileNotFoundError:
                    remove_block(connection, digest)
                    count += 1
    return count


def _batches(digests: list[bytes]) -> Iterator[list[bytes]]:
    """Cut a long list: other processes get their turn between transactions."""
    return (digests[start : start + _BATCH] for start in range(0, len(digests), _BATCH))


def _count_foreign(directory: CacheDirectory, found: tuple[_Found, ...]) -> int:
    inside = sum(
        1
        for entry in found
        if not _BLOCK_NAME.fullmatch(entry.name) and not _TEMPORARY_NAME.fullmatch(entry.name)
    )
    beside = sum(
        1
        for path in directory.path.iterdir()
        if path.name not in OUR_NAMES and not path.name.startswith(".")
    )
    return inside + beside
