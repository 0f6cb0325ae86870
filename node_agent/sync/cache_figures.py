"""What the node and its engines tell of their prefix caches, from views and budgets.

Pure. Used by status reports, the node's lease and the metrics, so that all tell the same. Units:
bytes, tokens, seconds.
"""

from collections.abc import Iterable, Mapping

from manifests.kinds.engine import EngineCache
from manifests.kinds.node import CacheInForce
from node_agent.memory.cache_budgets import FollowedBudget
from node_agent.pool.base import EngineView
from node_agent.pool.cache_side import CacheTally, CacheTerms, CacheView

# What an engine says while its disk tier is opened, or is closed in good order.
_PASSING = frozenset({"", "Starting", "Closed"})
# What ails one model and not the node.
_OF_THE_MODEL = frozenset({"ModelNotCacheable"})
# Why a tier is off that means the volume itself has no room.
DISK_FULL = "DiskFull"


def hit_ratios(tally: CacheTally) -> tuple[float, float]:
    """Return the shares of all prompt tokens that came from RAM and from the disk."""
    if tally.prompt_tokens <= 0:
        return (0.0, 0.0)
    return (
        min(1.0, tally.hot_tokens / tally.prompt_tokens),
        min(1.0, tally.ssd_tokens / tally.prompt_tokens),
    )


def describe_engine_cache(view: EngineView) -> EngineCache | None:
    """Return what to report of one engine's cache; None while it has none."""
    cache = view.cache
    if cache.began is None or not cache.began.enabled or cache.report is None:
        return None
    report, tally = cache.report, cache.tally
    counters = report.counters
    hot_ratio, ssd_ratio = hit_ratios(tally)
    return EngineCache(
        budget=cache.terms.budget,
        fingerprint=report.fingerprint,
        block_tokens=cache.began.settings.block_tokens,
        hot_used_bytes=report.hot_used_bytes,
        hot_capacity_bytes=report.hot_capacity_bytes,
        hot_blocks=report.hot_blocks,
        ssd_used_bytes=report.ssd_used_bytes,
        ssd_blocks=report.ssd_blocks,
        queued_bytes=report.queued_bytes,
        hit_ratio=round(min(1.0, hot_ratio + ssd_ratio), 3),
        hot_hit_ratio=round(hot_ratio, 3),
        ssd_hit_ratio=round(ssd_ratio, 3),
        tokens_saved=tally.hot_tokens + tally.ssd_tokens,
        misses=_count(counters, "misses"),
        restores=tally.restores,
        restore_seconds=round(tally.restore_seconds, 4),
        saves=_count(counters, "saves"),
        saves_persisted=_count(counters, "saves_persisted"),
        drops=_count(counters, "drops"),
        hot_evictions=_count(counters, "hot_evictions"),
        ssd_evictions=_count(counters, "ssd_evictions"),
        corruptions=_count(counters, "corruptions"),
        faults=_count(counters, "faults"),
        reason=report.state_reason,
        message=report.state_message or describe_pending(cache),
    )


def describe_pending(cache: CacheView) -> str:
    """Return in words what a changed budget changes only when the engine starts anew."""
    if cache.began is None:
        return ""
    old, new = cache.began, cache.terms
    changed = [word for word, differs in _differences(old, new) if differs]
    if not changed:
        return ""
    return f"{', '.join(changed)} of the cache budget take effect when the engine starts anew"


def _differences(old: CacheTerms, new: CacheTerms) -> tuple[tuple[str, bool], ...]:
    one, other = old.settings, new.settings
    return (
        ("enabled", old.enabled != new.enabled),
        ("ssd.directory", one.directory != other.directory),
        ("ssd.durable", one.durable != other.durable),
        ("blockTokens", one.block_tokens != other.block_tokens),
    )


def describe_node_cache(
    budget: FollowedBudget, directory: str, views: Iterable[EngineView]
) -> CacheInForce:
    """Return the budget in force and what all engines here hold.

    Engines that share a directory tell the same bytes of it; they are counted once.
    """
    used: dict[str, tuple[int, int]] = {}
    hot_used_bytes, worst = 0, ("", "")
    for view in views:
        report, began = view.cache.report, view.cache.began
        if report is None or began is None:
            continue
        hot_used_bytes += report.hot_used_bytes
        place = began.settings.directory
        if place:
            before = used.get(place, (0, 0))
            used[place] = (
                max(before[0], report.ssd_used_bytes),
                max(before[1], report.ssd_blocks),
            )
        if report.state_reason not in _PASSING | _OF_THE_MODEL and not worst[0]:
            worst = (report.state_reason, report.state_message)
    spec = budget.spec
    return CacheInForce(
        name=budget.name,
        generation=budget.generation,
        directory=directory,
        ssd_used_bytes=sum(size for size, _ in used.values()),
        ssd_size_bytes=spec.ssd.size.bytes if directory else 0,
        ssd_leave_free_bytes=spec.ssd.leave_free.bytes if directory else 0,
        ssd_blocks=sum(blocks for _, blocks in used.values()),
        hot_used_bytes=hot_used_bytes,
        hot_size_bytes=spec.hot.size.bytes if spec.hot.enabled else 0,
        block_tokens=spec.block_tokens,
        isolation=spec.isolation,
        reason=worst[0],
        message=worst[1],
    )


def _count(counters: Mapping[str, float], name: str) -> int:
    return int(counters.get(name, 0))
