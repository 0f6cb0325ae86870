"""Counters and histograms of one event loop: plain numbers until somebody asks for the page.

`prometheus_client`'s own check their labels and take locks at every step, some sixteen times a
request. These give it the same samples when it collects. Called by the modules that declare
metrics; all methods belong to one event loop.
"""

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector


class CounterSeries:
    """One counter: a number that grows."""

    __slots__ = ("created_seconds", "value")

    def __init__(self) -> None:
        self.value = 0.0
        self.created_seconds = time.time()

    def inc(self, amount: float = 1.0) -> None:
        """Add an amount, which is not negative."""
        self.value += amount


class HistogramSeries:
    """One histogram: how many observations fell into each bucket, and their sum."""

    __slots__ = ("_bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, amount: float) -> None:
        """Note one observation; a bucket's bound belongs to it."""
        self.counts[bisect_left(self._bounds, amount)] += 1
        self.total += amount


_Series = TypeVar("_Series")


class _Labelled(Collector, Generic[_Series]):
    """The series of one metric by label values; what they look like is the subclass's."""

    def __init__(self, labels: Sequence[str], make: Callable[[], _Series]) -> None:
        self._labels, self._make = tuple(labels), make
        self._series: dict[tuple[str, ...], _Series] = {}

    def labels(self, *values: str) -> _Series:
        """Return the series of these label values."""
        found = self._series.get(values)
        if found is None:
            if len(values) != len(self._labels):
                raise ValueError(f"a metric with labels {self._labels} has {len(values)} values")
            found = self._series[values] = self._make()
        return found

    def remove_by_labels(self, labels: dict[str, str]) -> None:
        """Drop the series with these labels."""
        places = {self._labels.index(name): value for name, value in labels.items()}
        self._series = {
            values: one
            for values, one in self._series.items()
            if any(values[place] != value for place, value in places.items())
        }


class Counter(_Labelled[CounterSeries]):
    """Counters by label values."""

    def __init__(
        self,
        name: str,
        documentation: str,
        labels: Sequence[str] = (),
        *,
        registry: CollectorRegistry,
    ) -> None:
        """Register. Mutates: registry."""
        super().__init__(labels, CounterSeries)
        self._name, self._documentation = name, documentation
        if not self._labels:
            self.labels()
        registry.register(self)

    def inc(self, amount: float = 1.0) -> None:
        """Add to the counter that has no labels."""
        self.labels().inc(amount)

    def describe(self) -> Iterable[Metric]:
        """Return the metric without samples."""
        return [self._family()]

    def collect(self) -> Iterable[Metric]:
        """Return one sample for each series."""
        family = self._family()
        for values, one in self._series.items():
            family.add_metric(values, one.value, created=one.created_seconds)
        return [family]

    def _family(self) -> CounterMetricFamily:
        return CounterMetricFamily(self._name, self._documentation, labels=self._labels)


class Histogram(_Labelled[HistogramSeries]):
    """Histograms by label values."""

    def __init__(
        self,
        name: str,
        documentation: str,
        labels: Sequence[str] = (),
        *,
        buckets: Sequence[float],
        registry: CollectorRegistry,
    ) -> None:
        """Register. `buckets` are upper bounds in rising order. Mutates: registry."""
        bounds = [float(bound) for bound in buckets]
        super().__init__(labels, lambda: HistogramSeries(bounds))
        self._name, self._documentation = name, documentation
        self._shown = [*(repr(bound) for bound in bounds), "+Inf"]
        registry.register(self)

    def describe(self) -> Iterable[Metric]:
        """Return the metric without samples."""
        return [self._family()]

    def collect(self) -> Iterable[Metric]:
        """Return the samples of each series."""
        family = self._family()
        for values, one in self._series.items():
            so_far, buckets = 0, []
            for shown, count in zip(self._shown, one.counts, strict=True):
                so_far += count
                buckets.append((shown, float(so_far)))
            family.add_metric(values, buckets, one.total)
        return [family]

    def _family(self) -> HistogramMetricFamily:
        return HistogramMetricFamily(self._name, self._documentation, labels=self._labels)
