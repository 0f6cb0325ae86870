"""Memory figures for Prometheus: the guard's numbers at each scrape, and what it did.

Labels hold only names of declared engines and fixed words, so no client can add series; an engine
that is gone takes its series along.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from manifests.errors import Refusal
from manifests.kinds.node import GuardInForce, PressureLevel
from node_agent.engine.messages import ChunkMeasured
from node_agent.host.base import HostMemory
from node_agent.memory.arbiter import Arbiter
from node_agent.memory.base import Admission, AdmissionRequest, Reservation
from node_agent.memory.enforcer_plan import AbortRow, Action, Evict, ReclaimCache, ShrinkHotCache
from node_agent.pool.base import Pool
from node_agent.sync.conditions import HealthNow

_PREFIX = "mlxfleet_node_memory"
_MIB = 1 << 20
_PEAK_BUCKETS = tuple(float(_MIB << power) for power in range(0, 17, 2))
_RATIO_BUCKETS = (0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 4.0)

ACTION_WORDS: dict[type[Action], str] = {
    Evict: "evict",
    AbortRow: "abort",
    ReclaimCache: "reclaim",
    ShrinkHotCache: "shrink_hot_cache",
}


class GuardMetrics:
    """Counts what the guard did, and how well each prefill chunk was foretold."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._actions = Counter(
            "mlxfleet_node_guard_actions",
            "Measures taken against memory pressure.",
            ("action",),
            registry=registry,
        )
        for word in ACTION_WORDS.values():
            self._actions.labels(word)
        self._predicted = Histogram(
            "mlxfleet_node_prefill_peak_predicted_bytes",
            "Peak foretold for each prefill chunk, over what was held before it.",
            ("engine",),
            registry=registry,
            buckets=_PEAK_BUCKETS,
        )
        self._actual = Histogram(
            "mlxfleet_node_prefill_peak_actual_bytes",
            "Peak measured for each prefill chunk, over what was held before it.",
            ("engine",),
            registry=registry,
            buckets=_PEAK_BUCKETS,
        )
        self._ratio = Histogram(
            "mlxfleet_node_prefill_peak_ratio",
            "Measured peak over the foretold one, for each prefill chunk.",
            ("engine",),
            registry=registry,
            buckets=_RATIO_BUCKETS,
        )
        self._greatest: dict[str, float] = {}

        self._admissions = Counter(
            "mlxfleet_node_memory_admissions",
            "Demands for memory: admitted, or the code and the way out of the refusal.",
            ("kind", "outcome"),
            registry=registry,
        )
        for kind in ("prefill", "load"):
            self._admissions.labels(kind, "admitted")

    @property
    def greatest_ratios(self) -> dict[str, float]:
        """The largest measured over foretold peak of each engine so far."""
        return dict(self._greatest)

    def note_action(self, action: Action) -> None:
        """Count one measure."""
        self._actions.labels(ACTION_WORDS[type(action)]).inc()

    def note_admission(self, kind: str, answer: Reservation | Refusal) -> None:
        """Count one answer of the arbiter; `kind` is prefill or load."""
        outcome = "admitted"
        if isinstance(answer, Refusal):
            outcome = f"{answer.code.value}_{answer.retryable.value}"
        self._admissions.labels(kind, outcome).inc()

    def note_chunk(self, engine: str, chunk: ChunkMeasured) -> None:
        """Take in one measured prefill chunk."""
        self._predicted.labels(engine).observe(chunk.predicted_bytes)
        self._actual.labels(engine).observe(chunk.actual_bytes)
        self._greatest.setdefault(engine, 0.0)
        if chunk.predicted_bytes > 0:
            ratio = chunk.actual_bytes / chunk.predicted_bytes
            self._ratio.labels(engine).observe(ratio)
            self._greatest[engine] = max(self._greatest[engine], ratio)

    def retain(self, engines: Iterable[str]) -> None:
        """Drop the series of engines that are gone."""
        for gone in self._greatest.keys() - set(engines):
            del self._greatest[gone]
            for metric in (self._predicted, self._actual, self._ratio):
                metric.remove(gone)


class CountedAdmission:
    """The arbiter's door with a counter beside it."""

    def __init__(self, inner: Admission, metrics: GuardMetrics) -> None:
        self._inner, self._metrics = inner, metrics

    async def admit(
        self, request: AdmissionRequest, *, wait_seconds: float = 0.0
    ) -> Reservation | Refusal:
        """Reserve a request's peak, and count the answer."""
        answer = await self._inner.admit(request, wait_seconds=wait_seconds)
        self._metrics.note_admission("prefill", answer)
        return answer

    async def admit_load(
        self, engine: str, need_bytes: int, *, wait_seconds: float = 0.0
    ) -> Reservation | Refusal:
        """Reserve a model's bytes, and count the answer."""
        answer = await self._inner.admit_load(engine, need_bytes, wait_seconds=wait_seconds)
        self._metrics.note_admission("load", answer)
        return answer


@dataclass(frozen=True, slots=True)
class MemorySources:
    """Where the gauges come from beside the arbiter and the pool."""

    guard: Callable[[], GuardInForce] = GuardInForce
    health: Callable[[], HealthNow] = HealthNow
    host: Callable[[], HostMemory | None] = lambda: None
    greatest_ratios: Callable[[], dict[str, float]] = dict


class MemoryCollector(Collector):
    """The node's memory as the guard sees it."""

    def __init__(self, arbiter: Arbiter, pool: Pool, sources: MemorySources | None = None) -> None:
        self._arbiter, self._pool = arbiter, pool
        self._sources = sources or MemorySources()

    def collect(self) -> Iterator[Metric]:
        """Yield the gauges of this moment."""
        yield from self._figures()
        yield from self._limits()
        yield from self._guard()
        yield from self._host()
        yield from self._engines()

    def _figures(self) -> Iterator[Metric]:
        state = self._arbiter.state()
        for name, text, value in (
            ("capacity", "RAM of the node.", state.capacity_bytes),
            ("used", "Memory held by engines.", state.used_bytes),
            ("reserved", "Memory promised and not yet allocated.", state.reserved_bytes),
            ("headroom", "Memory that may still be promised.", state.headroom_bytes),
        ):
            yield GaugeMetricFamily(f"{_PREFIX}_{name}_bytes", text, value=value)

    def _limits(self) -> Iterator[Metric]:
        ceilings = self._arbiter.state().ceilings
        limits = {
            "static": ceilings.static_bytes,
            "dynamic": ceilings.dynamic_bytes,
            "metal": ceilings.metal_bytes,
            "hard": ceilings.hard_bytes,
            "abort": ceilings.abort_bytes,
        }
        ceiling = GaugeMetricFamily(
            f"{_PREFIX}_ceiling_bytes", "Limits by kind; hard is the least.", labels=("kind",)
        )
        binding = GaugeMetricFamily(
            f"{_PREFIX}_ceiling_binding", "1 for the ceiling that binds.", labels=("kind",)
        )
        for kind, limit in limits.items():
            if limit is not None:
                ceiling.add_metric((kind,), limit)
        for kind in ("static", "dynamic", "metal"):
            binding.add_metric((kind,), float(kind == ceilings.binding.value))
        yield from (ceiling, binding)

    def _guard(self) -> Iterator[Metric]:
        guard, health = self._sources.guard(), self._sources.health()
        marks = GaugeMetricFamily(
            f"{_PREFIX}_watermark_bytes", "Where each pressure level begins.", labels=("level",)
        )
        marks.add_metric(("soft",), guard.soft_bytes)
        marks.add_metric(("hard",), guard.hard_bytes)
        marks.add_metric(("emergency",), guard.emergency_bytes)
        pressure = GaugeMetricFamily(
            f"{_PREFIX}_pressure", "1 for the pressure level in force.", labels=("level",)
        )
        for level in PressureLevel:
            pressure.add_metric((level.value,), float(level is health.level))
        yield from (marks, pressure)
        for name, text, value in (
            ("margin_bytes", "Kept free for the transient of each prefill.", guard.margin_bytes),
            ("waiting", "Requests and loads in line for memory.", health.waiting),
            ("paused", "1 while new requests wait for pressure to fall.", health.paused),
            ("ceiling_ratio", "What kernel panics leave of the ceilings.", health.ceiling_ratio),
            ("stranded_engines", "Ended engines whose memory stayed.", len(health.stranded)),
        ):
            yield GaugeMetricFamily(f"{_PREFIX}_{name}", text, value=float(value))

    def _host(self) -> Iterator[Metric]:
        """Yield the machine's own figures, as far as it tells them."""
        memory = self._sources.host()
        if memory is None:
            return
        for name, text, value in (
            ("free_bytes", "Memory nobody uses.", memory.free_bytes),
            ("inactive_bytes", "Memory the system can take back.", memory.inactive_bytes),
            ("active_bytes", "Memory other apps use.", memory.active_bytes),
            ("wired_bytes", "Memory pinned in RAM.", memory.wired_bytes),
            ("compressor_bytes", "Memory held by the compressor.", memory.compressor_bytes),
            ("swap_used_bytes", "Swap in use.", memory.swap_used_bytes),
            ("available_percent", "Neither wired nor compressed.", memory.available_percent),
            ("kernel_pressure", "macOS: 1 normal, 2 warn, 4 critical.", memory.kernel_pressure),
        ):
            if value is not None:
                yield GaugeMetricFamily(f"mlxfleet_node_host_{name}", text, value=value)

    def _engines(self) -> Iterator[Metric]:
        footprint = GaugeMetricFamily(
            "mlxfleet_node_engine_footprint_bytes", "Memory of one engine.", labels=("engine",)
        )
        greatest = GaugeMetricFamily(
            "mlxfleet_node_prefill_peak_ratio_max",
            "Largest measured over foretold peak of a prefill chunk.",
            labels=("engine",),
        )
        learned = GaugeMetricFamily(
            "mlxfleet_node_prefill_learned_ratio",
            "By how much an engine's foretold transients are scaled.",
            labels=("engine",),
        )
        ratios = self._sources.greatest_ratios()
        for view in self._pool.views():
            name = view.want.name
            if view.pid is not None:
                footprint.add_metric((name,), self._arbiter.engine_footprint_bytes(name))
                learned.add_metric((name,), self._arbiter.lessons.of(name).ratio)
            if name in ratios:
                greatest.add_metric((name,), ratios[name])
        yield from (footprint, greatest, learned)
