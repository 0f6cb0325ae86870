"""Every number of the guard at a scrape, and series that go with their engine."""

from prometheus_client import CollectorRegistry, generate_latest

from node_agent.engine.messages import ChunkMeasured
from node_agent.memory.enforcer_plan import AbortRow, Evict
from node_agent.metrics import GuardMetrics


def chunk(predicted: int, actual: int) -> ChunkMeasured:
    return ChunkMeasured(
        request_id="r",
        chunk_tokens=512,
        context_tokens=512,
        predicted_bytes=predicted,
        actual_bytes=actual,
    )


def scrape(registry: CollectorRegistry) -> dict[str, float]:
    lines = generate_latest(registry).decode().splitlines()
    pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in pairs if "_created" not in name}


def test_measures_are_counted_and_shown_before_the_first() -> None:
    registry = CollectorRegistry()
    metrics = GuardMetrics(registry)
    name = 'mlxfleet_node_guard_actions_total{action="%s"}'
    assert scrape(registry)[name % "reclaim"] == 0
    metrics.note_action(Evict("a", "x"))
    metrics.note_action(AbortRow("a", "r", "x"))
    metrics.note_action(AbortRow("a", "s", "x"))
    found = scrape(registry)
    assert (found[name % "evict"], found[name % "abort"]) == (1, 2)


def test_each_chunk_shows_what_was_foretold_what_it_took_and_the_worst_ratio() -> None:
    registry = CollectorRegistry()
    metrics = GuardMetrics(registry)
    metrics.note_chunk("a", chunk(100 << 20, 50 << 20))
    metrics.note_chunk("a", chunk(100 << 20, 120 << 20))
    metrics.note_chunk("b", chunk(0, 7))
    found = scrape(registry)
    assert found['mlxfleet_node_prefill_peak_predicted_bytes_sum{engine="a"}'] == 200 << 20
    assert found['mlxfleet_node_prefill_peak_actual_bytes_sum{engine="a"}'] == 170 << 20
    assert found['mlxfleet_node_prefill_peak_ratio_bucket{engine="a",le="1.0"}'] == 1
    assert found['mlxfleet_node_prefill_peak_ratio_count{engine="a"}'] == 2
    assert metrics.greatest_ratios == {"a": 1.2, "b": 0.0}


def test_an_engine_that_is_gone_takes_its_series_along() -> None:
    registry = CollectorRegistry()
    metrics = GuardMetrics(registry)
    metrics.note_chunk("a", chunk(1, 1))
    metrics.note_chunk("b", chunk(0, 1))
    metrics.retain(["a"])
    assert not any('engine="b"' in name for name in scrape(registry))
    metrics.retain([])
    assert metrics.greatest_ratios == {}
