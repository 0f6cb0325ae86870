"""What the agent counts about requests and engines, for Prometheus.

Labels hold only names of declared models and engines and fixed words, so no client can add
series; a model that is gone takes its series along.
"""

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from manifests.kinds.engine import EnginePhase
from node_agent.api.traffic import Outcome
from node_agent.pool.base import Pool

OTHER = "other"
_PREFIX = "mlxfleet_node"
_TTFT_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60, 120, 300, 600)


class ServingMetrics:
    """Counters of finished requests."""

    def __init__(self, registry: CollectorRegistry) -> None:
        model = ("model",)
        self._requests = Counter(
            f"{_PREFIX}_requests",
            "Requests that ended, by outcome: ok, cancelled or an error code.",
            ("model", "outcome"),
            registry=registry,
        )
        self._first_token = Histogram(
            f"{_PREFIX}_time_to_first_token_seconds",
            "From the request's arrival to its first token.",
            model,
            registry=registry,
            buckets=_TTFT_BUCKETS,
        )
        self._prompt = Counter(
            f"{_PREFIX}_prompt_tokens", "Prompt tokens of served requests.", model,
            registry=registry,
        )  # fmt: skip
        self._cached = Counter(
            f"{_PREFIX}_cached_tokens", "Prompt tokens restored from cache.", model,
            registry=registry,
        )  # fmt: skip
        self._generated = Counter(
            f"{_PREFIX}_generated_tokens", "Tokens generated.", model, registry=registry
        )
        self._prefill = Counter(
            f"{_PREFIX}_prefill_seconds", "Time spent feeding prompts.", model, registry=registry
        )
        self._decode = Counter(
            f"{_PREFIX}_decode_seconds", "Time from first to last token.", model, registry=registry
        )
        self._known: set[str] = set()
        self._series: set[tuple[str, str]] = set()

    def retain(self, models: Iterable[str]) -> None:
        """Learn which models are declared here; drop the series of those that are gone."""
        known = set(models)
        for series in [item for item in self._series if item[0] not in {*known, OTHER}]:
            self._requests.remove(*series)
            self._series.discard(series)
        for gone in self._known - known:
            for metric in self._by_model():
                metric.remove(gone)
        self._known = known

    def record(self, model: str | None, outcome: Outcome) -> None:
        """Count one request that ended."""
        label = model if model is not None and model in self._known else OTHER
        self._series.add((label, outcome.word))
        self._requests.labels(label, outcome.word).inc()
        if outcome.usage is None or outcome.timing is None:
            return
        self._prompt.labels(label).inc(outcome.usage.prompt_tokens)
        self._cached.labels(label).inc(outcome.usage.cached_tokens)
        self._generated.labels(label).inc(outcome.usage.completion_tokens)
        self._prefill.labels(label).inc(outcome.timing.prefill_seconds)
        first, last = outcome.timing.first_token_seconds, outcome.timing.last_token_seconds
        if first is not None and last is not None:
            self._first_token.labels(label).observe(first)
            self._decode.labels(label).inc(last - first)

    def _by_model(self) -> tuple[Counter | Histogram, ...]:
        return (
            self._first_token,
            self._prompt,
            self._cached,
            self._generated,
            self._prefill,
            self._decode,
        )


class EngineCollector(Collector):
    """Figures of the engines, read from the pool at each scrape."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def collect(self) -> Iterator[Metric]:
        """Yield the gauges of this moment."""
        views = self._pool.views()
        phases = GaugeMetricFamily(f"{_PREFIX}_engines", "Engines by phase.", labels=("phase",))
        for phase in EnginePhase:
            phases.add_metric((phase.value,), sum(view.phase is phase for view in views))
        yield phases
        restarts = GaugeMetricFamily(
            f"{_PREFIX}_engine_restarts", "Restarts since declared.", labels=("engine",)
        )
        running = GaugeMetricFamily(
            f"{_PREFIX}_engine_running", "Requests being decoded.", labels=("engine",)
        )
        waiting = GaugeMetricFamily(
            f"{_PREFIX}_engine_waiting", "Requests queued.", labels=("engine",)
        )
        for view in views:
            restarts.add_metric((view.want.name,), view.restarts)
            running.add_metric((view.want.name,), view.running)
            waiting.add_metric((view.want.name,), view.waiting)
        yield from (restarts, running, waiting)
