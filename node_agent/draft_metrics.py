"""Prompt lookup for Prometheus: how many tokens engines drafted, and how many came true.

Labels hold only names of declared engines. Counters begin anew with each process of an engine, as
Prometheus expects of counters.
"""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from node_agent.pool.base import Pool

_PREFIX = "mlxfleet_node_draft"


class DraftCollector(Collector):
    """What came of drafts, read from the engines' last heartbeats at each scrape."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def collect(self) -> Iterator[Metric]:
        """Yield the figures of this moment."""
        drafted = CounterMetricFamily(
            f"{_PREFIX}_tokens", "Tokens drafted and verified.", labels=("engine",)
        )
        accepted = CounterMetricFamily(
            f"{_PREFIX}_accepted_tokens", "Drafted tokens that came true.", labels=("engine",)
        )
        for view in self._pool.views():
            if view.heartbeat is not None:
                drafted.add_metric((view.want.name,), view.heartbeat.drafted_tokens)
                accepted.add_metric((view.want.name,), view.heartbeat.accepted_tokens)
        yield from (drafted, accepted)
