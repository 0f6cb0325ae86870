"""The prefix caches for Prometheus: what engines hold, hit, save and lose.

Labels hold only names of declared engines and fixed words. Counters begin anew with each process
of an engine, as Prometheus expects of counters.
"""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from node_agent.pool.base import EngineView, Pool
from node_agent.sync.cache_figures import hit_ratios

_PREFIX = "mlxfleet_node_cache"

# Name of the metric, the tier it is labelled with, the engine's counter.
_BY_TIER = (
    ("block_hits", "Blocks that rows started from.", (("hot", "hot_hits"), ("ssd", "ssd_hits"))),
    (
        "evictions",
        "Blocks given up for room.",
        (("hot", "hot_evictions"), ("ssd", "ssd_evictions")),
    ),
)
_PLAIN = (
    ("misses", "Prompts without any stored start.", "misses"),
    ("saves", "Blocks accepted for the SSD.", "saves"),
    ("saves_persisted", "Blocks that are on the SSD.", "saves_persisted"),
    ("skips", "Blocks that were on the SSD already.", "skips"),
    ("drops", "Blocks given up before they were on the SSD.", "drops"),
    ("corruptions", "Blocks found damaged, and removed.", "corruptions"),
    ("faults", "Failures of the disk or of a block; each cost a cold start at most.", "faults"),
    (
        "late_lookups",
        "Misses because the SSD's index did not answer in time.",
        "late_lookups",
    ),
    ("stalls", "Restores that went on without an SSD that did not answer.", "stalls"),
    (
        "refused_restores",
        "Prompts computed from their start because there was no memory to restore them.",
        "refused_restores",
    ),
    ("written_bytes", "Written to the SSD.", "written_bytes"),
    ("read_bytes", "Read from the SSD.", "read_bytes"),
)


class CacheCollector(Collector):
    """Figures of the prefix caches, read from the pool at each scrape."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def collect(self) -> Iterator[Metric]:
        """Yield the figures of this moment."""
        views = [view for view in self._pool.views() if view.cache.report is not None]
        yield from _held(views)
        yield from _tokens(views)
        yield from _counters(views)


def _held(views: list[EngineView]) -> Iterator[Metric]:
    labels = ("engine", "tier")
    held = GaugeMetricFamily(
        f"{_PREFIX}_bytes",
        "Bytes of stored blocks; the SSD's are of all engines that share its directory.",
        labels=labels,
    )
    blocks = GaugeMetricFamily(f"{_PREFIX}_blocks", "Stored blocks.", labels=labels)
    capacity = GaugeMetricFamily(
        f"{_PREFIX}_hot_capacity_bytes", "What RAM may take just now.", labels=("engine",)
    )
    queued = GaugeMetricFamily(
        f"{_PREFIX}_queued_bytes", "On the way to the SSD.", labels=("engine",)
    )
    writable = GaugeMetricFamily(
        f"{_PREFIX}_ssd_writable", "1 while the SSD tier takes blocks.", labels=("engine",)
    )
    startable = GaugeMetricFamily(
        f"{_PREFIX}_startable_blocks", "Full blocks a prompt can start from.", labels=("engine",)
    )
    for view in views:
        name, report, began = view.want.name, view.cache.report, view.cache.began
        if report is None:
            continue
        held.add_metric((name, "hot"), report.hot_used_bytes)
        blocks.add_metric((name, "hot"), report.hot_blocks)
        capacity.add_metric((name,), report.hot_capacity_bytes)
        startable.add_metric((name,), len(view.cache.held))
        if began is not None and began.settings.directory:
            held.add_metric((name, "ssd"), report.ssd_used_bytes)
            blocks.add_metric((name, "ssd"), report.ssd_blocks)
            queued.add_metric((name,), report.queued_bytes)
            writable.add_metric((name,), float(report.writable))
    yield from (held, blocks, capacity, queued, writable, startable)


def _tokens(views: list[EngineView]) -> Iterator[Metric]:
    ratio = GaugeMetricFamily(
        f"{_PREFIX}_hit_ratio",
        "Share of all prompt tokens that were restored, by tier, since the engine started.",
        labels=("engine", "tier"),
    )
    saved = CounterMetricFamily(
        f"{_PREFIX}_tokens_saved", "Prompt tokens not computed.", labels=("engine", "tier")
    )
    prompts = CounterMetricFamily(
        f"{_PREFIX}_prompt_tokens", "Prompt tokens of ended requests.", labels=("engine",)
    )
    restores = CounterMetricFamily(
        f"{_PREFIX}_restores", "Rows that started from stored blocks.", labels=("engine",)
    )
    seconds = CounterMetricFamily(
        f"{_PREFIX}_restore_seconds",
        "Time spent reading blocks and building rows from them.",
        labels=("engine",),
    )
    for view in views:
        name, tally = view.want.name, view.cache.tally
        restores.add_metric((name,), tally.restores)
        seconds.add_metric((name,), tally.restore_seconds)
        for tier, share in zip(("hot", "ssd"), hit_ratios(tally), strict=True):
            ratio.add_metric((name, tier), share)
        saved.add_metric((name, "hot"), tally.hot_tokens)
        saved.add_metric((name, "ssd"), tally.ssd_tokens)
        prompts.add_metric((name,), tally.prompt_tokens)
    yield from (ratio, saved, prompts, restores, seconds)


def _counters(views: list[EngineView]) -> Iterator[Metric]:
    told = [(view.want.name, view.cache.report.counters) for view in views if view.cache.report]
    for name, text, tiers in _BY_TIER:
        family = CounterMetricFamily(f"{_PREFIX}_{name}", text, labels=("engine", "tier"))
        for engine, counters in told:
            for tier, key in tiers:
                family.add_metric((engine, tier), counters.get(key, 0.0))
        yield family
    for name, text, key in _PLAIN:
        family = CounterMetricFamily(f"{_PREFIX}_{name}", text, labels=("engine",))
        for engine, counters in told:
            family.add_metric((engine,), counters.get(key, 0.0))
        yield family
