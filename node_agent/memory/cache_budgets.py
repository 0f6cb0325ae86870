"""Which cache budget a node and its engines follow, and what that gives each engine.

Pure: declared budgets and figures in, terms and limits out. The keeper carries it out, the sync
chooses. Units: bytes, tokens, seconds.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from manifests.kinds.cache_budget import CacheBudget, CacheBudgetSpec
from node_agent.engine.messages import CacheLimits, CacheSettings
from node_agent.memory.selecting import select_by_labels
from node_agent.pool.cache_side import CacheTerms

# Room for the hot tier moves by the byte; sending every move would only make noise.
STEP_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class FollowedBudget:
    """A budget in force; without a name it is the agent's own default."""

    name: str
    spec: CacheBudgetSpec
    generation: int = 0


@dataclass(frozen=True, slots=True)
class CachePlaces:
    """Where this agent keeps caches by itself; see `CacheSettings.memory_file`."""

    directory: Path
    memory_file: Path


@dataclass(frozen=True, slots=True)
class HotUse:
    """What one engine's blocks in RAM take, and what its budget allows it."""

    used_bytes: int
    share_bytes: int


def choose_budget(
    budgets: Iterable[CacheBudget], labels: Mapping[str, str], default: CacheBudgetSpec
) -> FollowedBudget:
    """Return the budget that selects a node by its labels, or the default."""
    chosen = select_by_labels(budgets, labels)
    if chosen is None:
        return FollowedBudget("", default)
    meta = chosen.metadata
    return FollowedBudget(meta.name or "", chosen.spec, meta.generation or 0)


def plan_directory(spec: CacheBudgetSpec, places: CachePlaces) -> str:
    """Return where a budget keeps its blocks; empty without an SSD tier.

    A relative directory is one under the agent's data.
    """
    if not spec.ssd.enabled or spec.ssd.size.bytes <= 0:
        return ""
    if spec.ssd.directory is None:
        return str(places.directory)
    return str(places.directory.parent / Path(spec.ssd.directory).expanduser())


def plan_shares(followed: Mapping[str, FollowedBudget]) -> dict[str, int]:
    """Return each engine's part of its budget's RAM: those who follow one share it evenly."""
    names = [one.name for one in followed.values()]
    return {
        engine: one.spec.hot.size.bytes // names.count(one.name) if one.spec.hot.enabled else 0
        for engine, one in followed.items()
    }


def plan_disk_limits(
    followed: Iterable[FollowedBudget], directory: str, places: CachePlaces
) -> CacheLimits:
    """Return what everybody who uses a directory is told of it; no `hot_bytes`.

    Budgets that share a directory share its blocks, so the largest size, the largest space to
    leave and the longest retention hold for all of them.
    """
    specs = [one.spec for one in followed if plan_directory(one.spec, places) == directory]
    if not specs or not directory:
        return CacheLimits()
    kept = [0.0 if spec.retention is None else spec.retention.seconds for spec in specs]
    return CacheLimits(
        size_bytes=max(spec.ssd.size.bytes for spec in specs),
        leave_free_bytes=max(spec.ssd.leave_free.bytes for spec in specs),
        retention_seconds=0.0 if 0.0 in kept else max(kept),
    )


def plan_terms(
    one: FollowedBudget, disk: CacheLimits, hot_bytes: int, places: CachePlaces
) -> CacheTerms:
    """Return what an engine is started with; `hot_bytes` is what its tier may hold just now."""
    directory = plan_directory(one.spec, places)
    return CacheTerms(
        budget=one.name,
        enabled=bool(directory) or (one.spec.hot.enabled and one.spec.hot.size.bytes > 0),
        isolated=one.spec.isolation == "tenant",
        settings=CacheSettings(
            directory=directory,
            memory_file=str(places.memory_file) if directory else "",
            size_bytes=disk.size_bytes,
            leave_free_bytes=disk.leave_free_bytes,
            durable=one.spec.ssd.durable,
            hot_bytes=hot_bytes,
            block_tokens=one.spec.block_tokens,
            retention_seconds=disk.retention_seconds,
        ),
    )


def plan_room_bytes(headroom_bytes: int, soft_bytes: int, used_bytes: int) -> int:
    """Return by how much all hot tiers together may grow.

    Never into what may still be promised, nor over the soft mark, where they would have to shrink
    at once: a tenth of what is left below it stays free.
    """
    below_soft = soft_bytes - used_bytes
    return max(0, min(headroom_bytes, below_soft - below_soft // 10))


def plan_hot_limits(uses: Mapping[str, HotUse], room_bytes: int | None) -> dict[str, int]:
    """Return what each hot tier may hold: its share, but only as far as memory is free.

    What is held is not taken away here, except over a share: pressure does that, by `plan_cut`.
    None for `room_bytes` means that nobody guards the memory.
    """
    if room_bytes is None:
        return {engine: use.share_bytes for engine, use in uses.items()}
    growing = [one for one in uses.values() if one.used_bytes < one.share_bytes]
    part = room_bytes // max(1, len(growing))
    return {
        engine: min(
            use.share_bytes,
            max(use.used_bytes, (use.used_bytes + part) // STEP_BYTES * STEP_BYTES),
        )
        for engine, use in uses.items()
    }


def plan_cut(held: Mapping[str, int], target_bytes: int) -> dict[str, int]:
    """Return what each hot tier may keep so that all together hold a target."""
    total = sum(held.values())
    if total <= target_bytes:
        return dict(held)
    return {engine: size * max(0, target_bytes) // total for engine, size in held.items()}
