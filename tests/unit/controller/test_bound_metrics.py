"""Our counters and histograms give the page that prometheus_client's own would."""

import prometheus_client
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

from controller.bound_metrics import Counter, Histogram

BUCKETS = (0.0001, 0.05, 1, 2.5, 1800)
AMOUNTS = (0.0, 0.0001, 0.00011, 1, 1.5, 1800, 1e6)


def fill(counter, free, histogram) -> None:
    """Count and observe the same on either kind."""
    for label in ("a", 'q"uote\\ \n', "b"):
        counter.labels(label, "ok").inc()
        counter.labels(label, "ok").inc(2.5)
    free.inc(3)
    for amount in AMOUNTS:
        histogram.labels("a").observe(amount)
    histogram.labels("gone").observe(1)
    counter.labels("gone", "ok").inc()
    counter.remove_by_labels({"x": "gone"})
    histogram.remove_by_labels({"x": "gone"})


@pytest.mark.parametrize("page", [generate_latest, generate_openmetrics])
def test_the_page_is_that_of_the_library(page) -> None:
    pages = []
    for counters, histograms in (
        (Counter, Histogram),
        (prometheus_client.Counter, prometheus_client.Histogram),
    ):
        registry = CollectorRegistry()
        fill(
            counters("c", "Counts", ("x", "y"), registry=registry),
            counters("free", "Without labels", registry=registry),
            histograms("h", "Observes", ("x",), buckets=BUCKETS, registry=registry),
        )
        lines = page(registry).decode().splitlines()
        pages.append([line for line in lines if "_created" not in line])
    assert pages[0] == pages[1]


def test_a_series_with_other_labels_than_declared_is_refused() -> None:
    counter = Counter("c", "Counts", ("x",), registry=CollectorRegistry())
    with pytest.raises(ValueError, match="labels"):
        counter.labels("a", "b")


def test_two_metrics_of_one_name_are_refused() -> None:
    registry = CollectorRegistry()
    Counter("c", "Counts", registry=registry)
    with pytest.raises(ValueError, match="c_total"):
        Counter("c", "Again", registry=registry)
