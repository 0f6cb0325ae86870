"""Memory figures for Prometheus, read from the arbiter at each scrape."""

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from node_agent.memory.arbiter import Arbiter
from node_agent.pool.base import Pool

_PREFIX = "mlxfleet_node_memory"


class MemoryCollector(Collector):
    """The node's memory as the guard sees it."""

    def __init__(self, arbiter: Arbiter, pool: Pool) -> None:
        self._arbiter, self._pool = arbiter, pool

    def collect(self) -> Iterator[Metric]:
        """Yield the gauges of this moment."""
        state = self._arbiter.state()
        for name, text, value in (
            ("capacity", "RAM of the node.", state.capacity_bytes),
            ("used", "Memory held by engines.", state.used_bytes),
            ("reserved", "Memory promised and not yet allocated.", state.reserved_bytes),
            ("headroom", "Memory that may still be promised.", state.headroom_bytes),
        ):
            yield GaugeMetricFamily(f"{_PREFIX}_{name}_bytes", text, value=value)
        ceilings = state.ceilings
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
        footprint = GaugeMetricFamily(
            "mlxfleet_node_engine_footprint_bytes", "Memory of one engine.", labels=("engine",)
        )
        for view in self._pool.views():
            if view.pid is not None:
                name = view.want.name
                footprint.add_metric((name,), self._arbiter.engine_footprint_bytes(name))
        yield footprint
