"""The disk tier: finds, reads and writes blocks, and survives its disk.

Owns the order of steps of each operation. The engine's thread finds, and never waits long for it;
readers' threads lease and get; the writer's thread puts, trims and wipes. No method raises for what
a disk does: see `SsdLink`, whose `probe` opens the tier. All engines of a node may share one
directory.
"""

import errno
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial

import structlog

from manifests.wire.prefix_chain import PrefixChain
from node_agent.kvcache.block import Block, BlockHeader, CutBlock, StoredBlock
from node_agent.kvcache.block_file import flush_to_drive, read_file, write_new
from node_agent.kvcache.block_format import (
    BlockError,
    EncodedBlock,
    Expected,
    decode_block,
    encode_block,
)
from node_agent.kvcache.restore_plan import wanted_digests
from node_agent.kvcache.ssd_budget import SsdBudget, allowed_bytes, disk_bytes
from node_agent.kvcache.ssd_claims import Claim, end_lease, end_write, lease
from node_agent.kvcache.ssd_health import TierFault, TierReason
from node_agent.kvcache.ssd_index import Figures, add_block, remove_block, touch_blocks
from node_agent.kvcache.ssd_link import SsdLink
from node_agent.kvcache.ssd_lookups import IndexLooks, Lookups
from node_agent.kvcache.ssd_room import (
    PutOutcome,
    disk_use,
    make_way,
    note_written,
    reserve,
    trim_step,
    wipe_step,
)
from node_agent.kvcache.ssd_session import Session
from node_agent.kvcache.ssd_survey import block_name, survey
from node_agent.kvcache.ssd_watch import OPEN_SECONDS, READ_SECONDS

_LOG = structlog.get_logger(__name__)
_NOT_REPLACEABLE = frozenset({errno.EISDIR, errno.ENOTEMPTY, errno.ENOTDIR, errno.EEXIST})


class SsdStore:
    """One process's blocks on the shared disk. `link` has the state, `probe` and `close`."""

    def __init__(self, link: SsdLink) -> None:
        self.link = link
        self._index = IndexLooks(link, Lookups())
        self._figures = Figures(), 0

    def figures(self) -> tuple[Figures, int]:
        """Return the index's totals, and the bytes the cache may take; of late if it is slow."""
        self._figures = self._index.look(
            partial(_read_figures, self.link.budget), self._figures, (Figures(), 0)
        )
        return self._figures

    def find(self, chain: PrefixChain) -> tuple[StoredBlock, ...] | None:
        """Return all stored blocks that a sequence could start from; for `plan_restore`.

        None when the index is slow to answer and may yet; a disk that hangs holds nothing.
        """
        return self._index.find(
            lambda session: session.index.find(*wanted_digests(chain), chain.block_tokens)
        )

    def find_cut(self, cuts: Sequence[bytes]) -> tuple[CutBlock, ...] | None:
        """Return a block that a sequence could start from in its middle; see `wanted_cuts`.

        None as in `find`.
        """
        if not cuts:
            return ()

        def question(session: Session) -> tuple[CutBlock, ...]:
            found = session.index.find_cut(cuts)
            return () if found is None else (found,)

        return self._index.find(question)

    def contains(self, digest: bytes, snapshot_mask: int = 0) -> bool:
        """Return whether a block is stored, with all these snapshots."""
        return self._index.look(
            lambda session: session.index.contains(digest, snapshot_mask), False, False
        )

    @contextmanager
    def leased(self, digests: Iterable[bytes]) -> Iterator[None]:
        """Hold blocks against eviction while they are read, and note their use."""
        wanted, holder, leasing = tuple(digests), ("", 0), None
        if wanted:
            with self.link.guarded(READ_SECONDS) as session:
                if session is not None:
                    holder = (session.owner.token, session.next_number())
                    with session.database.transaction() as connection:
                        now = self.link.clock()
                        touch_blocks(connection, lease(connection, wanted, holder, now), now)
                    leasing = session
        try:
            yield
        finally:
            if leasing is not None:
                with self.link.guarded() as session:
                    if session is leasing:
                        with leasing.database.transaction() as connection:
                            end_lease(connection, holder)

    def get(self, expected: Expected) -> Block | None:
        """Return a block that is proven to be the one expected; None for a miss.

        A damaged or exchanged one is taken away and counted, once.
        """
        with self.link.guarded(READ_SECONDS) as session:
            if session is None:
                return None
            name = block_name(expected.digest)
            with session.directory.blocks() as folder:
                try:
                    content = read_file(folder, name, self.link.watch.progress)
                    block = decode_block(memoryview(content).toreadonly(), expected)
                except FileNotFoundError:
                    _strike(session, folder, expected.digest)
                    return None
                except BlockError as error:
                    self.link.stats.add(corruptions=1)
                    _LOG.warning("cached block set aside", block=name[:16], problem=str(error))
                    session.directory.set_aside(folder, name)
                    _strike(session, folder, expected.digest)
                    return None
            self.link.stats.add(read_bytes=len(content))
            return block
        return None

    def put(self, block: Block) -> PutOutcome:
        """Store a block, evicting others if need be.

        It takes the place of one with the same name that lacks a snapshot it has.
        Raises: ValueError when the block's tensors are not what they state.
        """
        if not self.link.may_write():
            return PutOutcome.OFF
        encoded = encode_block(block)
        with self.link.guarded(size_bytes=disk_bytes(encoded.size_bytes)) as session:
            if session is None:
                return PutOutcome.OFF
            with session.directory.blocks() as folder:
                wanted = (block.header, encoded.size_bytes)
                outcome, claim = _reserve(self.link, session, folder, wanted)
                if make_way(session, folder, outcome):
                    outcome, claim = _reserve(self.link, session, folder, wanted)
                if outcome is PutOutcome.INDEX_FULL:
                    place = session.directory.path
                    raise TierFault(TierReason.FULL, f"{place}: no room for the index's journal")
                if claim is not None:
                    _write(self.link, session, folder, (block.header, encoded), claim)
                    self.link.proven(disk_bytes(encoded.size_bytes))
            return outcome
        return PutOutcome.OFF

    def touch(self, digests: Iterable[bytes]) -> None:
        """Note a use of blocks that were served by a faster tier."""
        with self.link.guarded() as session:
            if session is not None:
                with session.database.transaction() as connection:
                    touch_blocks(connection, digests, self.link.clock())

    def resize(self, budget: SsdBudget) -> None:
        """Set the budget; it holds for the next save, and `trim` brings the disk under it."""
        self.link.budget = budget

    def trim(self) -> int:
        """Evict one bounded step of what is too much or too old; call again until it returns 0."""
        with self.link.guarded() as session:
            if session is not None:
                evicted = trim_step(session, self.link.budget, self.link.clock())
                self.link.stats.add(ssd_evictions=evicted)
                return evicted
        return 0

    def wipe(self, fingerprint: str | None = None) -> int:
        """Delete one bounded step of one model's blocks, or of all; call again until it returns 0.

        It may be cut off at any moment and begun again.
        """
        with self.link.guarded() as session:
            return wipe_step(session, fingerprint) if session is not None else 0
        return 0

    def demote(self, fingerprint: str) -> None:
        """Let the blocks of a model that is gone be the first to be evicted."""
        with self.link.guarded() as session:
            if session is not None:
                session.index.demote(fingerprint)

    def survey(self) -> None:
        """List the directory, put the index right, and count files of others."""
        with self.link.guarded(OPEN_SECONDS) as session:
            if session is not None:
                survey(session.directory, session.database)


def _read_figures(budget: SsdBudget, session: Session) -> tuple[Figures, int]:
    with session.database.looking() as connection:
        allowed = allowed_bytes(budget, disk_use(session, connection))
    return session.index.figures(), allowed


def _reserve(
    link: SsdLink, session: Session, folder: int, wanted: tuple[BlockHeader, int]
) -> tuple[PutOutcome, Claim | None]:
    reservation = reserve(session, folder, link.budget, wanted, link.clock())
    link.stats.add(ssd_evictions=reservation.evicted)
    return reservation.outcome, reservation.claim


def _write(
    link: SsdLink,
    session: Session,
    folder: int,
    content: tuple[BlockHeader, EncodedBlock],
    claim: Claim,
) -> None:
    header, encoded = content
    durable, written = link.settings.durable, claim.name
    try:
        write_new(
            folder, claim.name, [encoded.head, *encoded.payload], durable, link.watch.progress
        )
        _put_in_place(session, folder, claim)
        written = block_name(claim.digest)
        if durable:
            flush_to_drive(folder)
        with session.database.transaction() as connection:
            now = link.clock()
            end_write(connection, claim.name)
            add_block(connection, header, disk_bytes(encoded.size_bytes), now)
            note_written(connection, encoded.size_bytes, now)
    except (OSError, TierFault) as error:
        _undo_write(session, folder, claim, written)
        if isinstance(error, OSError) and error.errno == errno.EDQUOT:
            _give_up(link, session, claim.size_bytes)
        raise
    link.stats.add(saves_persisted=1, written_bytes=encoded.size_bytes)


def _give_up(link: SsdLink, session: Session, size_bytes: int) -> None:
    """Evict as much as did not fit into a quota; the volume's free space does not show it."""
    with session.database.reading() as connection:
        use = disk_use(session, connection)
    smaller = replace(link.budget, size_bytes=max(0, use.total_bytes - size_bytes))
    link.stats.add(ssd_evictions=trim_step(session, smaller, link.clock()))


def _put_in_place(session: Session, folder: int, claim: Claim) -> None:
    """Give a written file its name; what stands there and is no file is moved away first."""
    name = block_name(claim.digest)
    try:
        os.rename(claim.name, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError as error:
        if error.errno not in _NOT_REPLACEABLE:
            raise
        session.directory.set_aside(folder, name)
        os.rename(claim.name, name, src_dir_fd=folder, dst_dir_fd=folder)


def _undo_write(session: Session, folder: int, claim: Claim, written: str) -> None:
    """Take a file that has no row away and give its bytes back; the fault itself is the caller's.

    If the index refuses too, the claim counts until the next save or the end of this process: too
    little is used then, never too much.
    """
    with suppress(OSError):
        os.unlink(written, dir_fd=folder)
    with suppress(TierFault), session.database.transaction() as connection:
        end_write(connection, claim.name)


def _strike(session: Session, folder: int, digest: bytes) -> None:
    """Drop the row of a file that is gone, unless another process has stored it again."""
    with session.database.transaction() as connection:
        try:
            os.stat(block_name(digest), dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            remove_block(connection, digest)
