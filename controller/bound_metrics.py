"""Counters and histograms that remember their series: a look-up by label values is one of a dict.

`prometheus_client` checks, joins and locks at every `labels`, several times a request. Called by
the modules that declare metrics; all methods belong to one event loop.
"""

from typing import Any, Self

import prometheus_client
from prometheus_client.metrics import MetricWrapperBase


class _AtHand(MetricWrapperBase):
    """The part of a metric that keeps its series at hand."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self._at_hand: dict[tuple[str, ...], Self] = {}
        super().__init__(*args, **options)

    def labels(self, *values: Any, **named: Any) -> Self:
        """Return the series of these label values."""
        found = self._at_hand.get(values)
        if found is None or named:
            found = super().labels(*values, **named)
            if not named:
                self._at_hand[values] = found
        return found

    def remove_by_labels(self, labels: dict[str, str]) -> None:
        """Drop the series with these labels."""
        self._at_hand.clear()
        super().remove_by_labels(labels)


class Counter(_AtHand, prometheus_client.Counter):
    """A counter whose series are kept at hand."""


class Histogram(_AtHand, prometheus_client.Histogram):
    """A histogram whose series are kept at hand."""
