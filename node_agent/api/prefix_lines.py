"""The lines that bring a gateway from what it was told of stored prefixes to what is held. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from manifests.wire.prefixes import NAMES_PER_LINE, PrefixChanges
from node_agent.pool.base import EngineView


@dataclass(frozen=True, slots=True)
class Told:
    """What one gateway knows of one engine."""

    fingerprint: str
    block_tokens: int
    held: frozenset[bytes]


def look(views: Iterable[EngineView]) -> dict[str, Told]:
    """Return what there is to tell, by engine; engines without a prefix cache are left out."""
    found = {}
    for view in views:
        fingerprint = "" if view.loaded is None else view.loaded.cache_fingerprint
        began = view.cache.began
        if fingerprint and began is not None and view.cache.changes:
            told = Told(fingerprint, began.settings.block_tokens, view.cache.held)
            found[view.want.name] = told
    return found


def plan_lines(before: Mapping[str, Told], now: Mapping[str, Told]) -> Iterator[PrefixChanges]:
    """Yield the lines, engine by engine."""
    for engine in sorted(before.keys() - now.keys()):
        yield PrefixChanges(engine=engine, full=True)
    for engine in sorted(now):
        yield from _lines_of(engine, before.get(engine), now[engine])


def _lines_of(engine: str, before: Told | None, now: Told) -> Iterator[PrefixChanges]:
    same = before is not None and (before.fingerprint, before.block_tokens) == (
        now.fingerprint,
        now.block_tokens,
    )
    known = before.held if before is not None and same else frozenset()
    if same and known is now.held:
        return
    added, removed = sorted(now.held - known), sorted(known - now.held)
    full = not same
    for at in range(0, max(len(added), len(removed), int(full)), NAMES_PER_LINE):
        end = at + NAMES_PER_LINE
        yield PrefixChanges(
            engine=engine,
            fingerprint=now.fingerprint,
            block_tokens=now.block_tokens,
            full=full,
            added=tuple(name.hex() for name in added[at:end]),
            removed=tuple(name.hex() for name in removed[at:end]),
        )
        full = False
