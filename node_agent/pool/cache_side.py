"""What the pool asks about the prefix cache, and what an engine has told of its own.

The pool decides nothing here: it hands an engine its terms at the start, and keeps what comes
back for its views. Lives on the event loop. Units: bytes, tokens, seconds.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from node_agent.engine.messages import (
    CacheReport,
    CacheSettings,
    Finished,
    PrefixesHeld,
    Restored,
)


@dataclass(frozen=True, slots=True)
class CacheTerms:
    """What one engine may cache, and by whose word.

    `budget` is a CacheBudget's name, empty for the agent's own default. Without `enabled` it
    keeps nothing at all. `isolated`: requests of different tenants share no prefix.
    """

    budget: str = ""
    enabled: bool = False
    isolated: bool = False
    settings: CacheSettings = field(default_factory=CacheSettings)


@dataclass(frozen=True, slots=True)
class CacheSide:
    """Where the terms come from; `terms` is asked when an engine loads, `standing` for each view.

    `standing` leaves out the sizes, which move with the free memory and the other engines. `fault`
    says why an engine must not start: its budget requires a directory that is not there.
    """

    terms: Callable[[str], CacheTerms] = lambda _: CacheTerms()
    standing: Callable[[str], CacheTerms] = lambda _: CacheTerms()
    fault: Callable[[str], str] = lambda _: ""


@dataclass(frozen=True, slots=True)
class CacheTally:
    """What one engine's requests got from its cache, since its process started.

    `hot_tokens` and `ssd_tokens` were restored, split by the blocks they came from. A restore's
    time includes building the row's cache, which the tiers' own counters leave out.
    """

    prompt_tokens: int = 0
    hot_tokens: int = 0
    ssd_tokens: int = 0
    restores: int = 0
    restore_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class CacheView:
    """The prefix cache of one engine at one moment.

    `terms` are those of now, without sizes; `began` are those that its process was started with,
    None without one.
    `held` are the digests of blocks a prompt can start from; `changes` counts their changes.
    """

    terms: CacheTerms = field(default_factory=CacheTerms)
    began: CacheTerms | None = None
    report: CacheReport | None = None
    tally: CacheTally = field(default_factory=CacheTally)
    held: frozenset[bytes] = frozenset()
    changes: int = 0

    @property
    def hot_used_bytes(self) -> int:
        """What its blocks in RAM take."""
        return 0 if self.report is None else self.report.hot_used_bytes


class CacheNotes:
    """What one engine process has told of its prefix cache."""

    def __init__(self) -> None:
        self._view = CacheView()
        self._held: set[bytes] = set()

    def begin(self, terms: CacheTerms) -> None:
        """Note what the process was started with."""
        self._view = CacheView(began=terms)
        self._held = set()

    def end(self) -> None:
        """Note that the process is gone, and its RAM with it."""
        self._view = CacheView()
        self._held = set()

    def view(self, terms: CacheTerms) -> CacheView:
        """Return the cache as it is now, under these terms."""
        return replace(self._view, terms=terms)

    def note(self, event: CacheReport | PrefixesHeld | Restored | Finished) -> None:
        """Take in what the engine says."""
        match event:
            case CacheReport():
                self._view = replace(self._view, report=event)
            case PrefixesHeld():
                self._hold(event)
            case Restored():
                self._view = replace(self._view, tally=_add_restored(self._view.tally, event))
            case Finished():
                tally = self._view.tally
                prompt_tokens = tally.prompt_tokens + event.prompt_tokens
                self._view = replace(self._view, tally=replace(tally, prompt_tokens=prompt_tokens))

    def _hold(self, event: PrefixesHeld) -> None:
        if event.full:
            self._held = set()
        self._held.update(event.added)
        self._held.difference_update(event.removed)
        self._view = replace(self._view, held=frozenset(self._held), changes=self._view.changes + 1)


def _add_restored(tally: CacheTally, event: Restored) -> CacheTally:
    blocks = event.hot_blocks + event.ssd_blocks
    hot_tokens = event.tokens * event.hot_blocks // blocks if blocks else 0
    return replace(
        tally,
        hot_tokens=tally.hot_tokens + hot_tokens,
        ssd_tokens=tally.ssd_tokens + event.tokens - hot_tokens,
        restores=tally.restores + 1,
        restore_seconds=tally.restore_seconds + event.seconds,
    )
