"""What the agent is told about stored prefixes: figures, and names of what is held.

Owns what was told last, and the pace. It holds no array and imports no MLX. The MLX thread calls
`events` every turn; the listing of the disk runs on the disk tier's thread, and rests long enough
not to be felt.
"""

import time
from collections.abc import Callable, Iterator

from node_agent.engine.messages import CacheReport, Event, PrefixesHeld
from node_agent.engine.prefix.prefix_store import PrefixStore
from node_agent.kvcache.layer_kinds import CacheLayout
from node_agent.kvcache.tiers import DiskTier

REPORT_SECONDS = 1.0
# Blocks of other engines come and go in equal numbers at times, which no figure shows.
RELIST_SECONDS = 30.0
# Listing takes at most this share of the time.
_REST_FACTOR = 50.0
# Names in one message, so that no frame grows with the disk.
NAMES_PER_MESSAGE = 4096

Names = frozenset[bytes]


class PrefixReporter:
    """Tells of one engine's prefix cache."""

    def __init__(
        self,
        store: PrefixStore,
        identity: tuple[str, CacheLayout],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`identity` is as in `CacheTiers`."""
        self._store, self._clock = store, clock
        self._fingerprint, layout = identity
        self._mask = layout.snapshot_mask
        self._listing = None if store.disk is None else _DiskListing(store.disk, self._list)
        self._last_report: CacheReport | None = None
        self._told: Names | None = None
        self._due_at_seconds = clock()

    def events(self) -> list[Event]:
        """Return what has changed since the last time; nothing before a second has passed."""
        now = self._clock()
        if now < self._due_at_seconds:
            return []
        self._due_at_seconds = now + REPORT_SECONDS
        report = self._store.report(self._fingerprint)
        changed = report != self._last_report
        if self._listing is not None:
            # Reading may have moved nothing but a counter; the disk is then listed in vain.
            self._listing.refresh(now, changed=changed)
        events: list[Event] = [report] if changed else []
        self._last_report = report
        held = self._store.hot.names(self._mask, self._store.settings.block_tokens)
        if self._listing is not None:
            if self._listing.names is None:
                return events
            held |= self._listing.names
        events += plan_names(self._told, held)
        self._told = held
        return events

    def _list(self, disk: DiskTier) -> Names:
        with disk.store.link.guarded() as session:
            if session is not None:
                block_tokens = self._store.settings.block_tokens
                return session.index.names(self._fingerprint, self._mask, block_tokens)
        return frozenset()


def not_cacheable(why: str) -> CacheReport:
    """Return the only report of a model whose layers cannot be stored. Pure."""
    return CacheReport(fingerprint="", state_reason="ModelNotCacheable", state_message=why)


def plan_names(told: Names | None, held: Names) -> Iterator[PrefixesHeld]:
    """Yield the messages that bring a listener from what was told to what is held. Pure.

    The first ever is the full set, as far as one message takes it; the rest are changes.
    """
    added = sorted(held - (told or frozenset()))
    removed = sorted((told or frozenset()) - held)
    if told is None:
        first, added = added[:NAMES_PER_MESSAGE], added[NAMES_PER_MESSAGE:]
        yield PrefixesHeld(full=True, added=first)
    for at in range(0, max(len(added), len(removed)), NAMES_PER_MESSAGE):
        end = at + NAMES_PER_MESSAGE
        yield PrefixesHeld(full=False, added=added[at:end], removed=removed[at:end])


class _DiskListing:
    """The names on the disk as they were listed last; None before the first time."""

    def __init__(self, disk: DiskTier, read: Callable[[DiskTier], Names]) -> None:
        self._disk, self._read = disk, read
        self.names: Names | None = None
        self._busy = False
        self._stale = True
        self._rest_until_seconds = 0.0
        self._relist_at_seconds = 0.0

    def refresh(self, now: float, *, changed: bool) -> None:
        """Have the disk listed anew if that may show something new."""
        self._stale = self._stale or changed or now >= self._relist_at_seconds
        if self._busy or not self._stale or now < self._rest_until_seconds:
            return
        if not self._disk.store.link.state.readable:
            # What is not there yet, or no more, holds nothing.
            self.names = frozenset()
            return
        self._busy, self._stale = True, False
        self._relist_at_seconds = now + RELIST_SECONDS
        self._disk.writer.add_job(lambda: self._list(now))

    def _list(self, now: float) -> None:
        """Read the names; on the disk tier's thread."""
        started_seconds = time.perf_counter()
        try:
            self.names = self._read(self._disk)
        finally:
            rest_seconds = _REST_FACTOR * (time.perf_counter() - started_seconds)
            self._rest_until_seconds = now + rest_seconds
            self._busy = False
