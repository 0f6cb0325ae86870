"""Every number of the guard at a scrape, and series that go with their engine."""

from prometheus_client import CollectorRegistry, generate_latest

from manifests.errors import Refusal
from manifests.kinds.guard import MemoryGuardSpec
from manifests.kinds.node import GuardInForce, PressureLevel
from node_agent.engine.messages import ChunkMeasured
from node_agent.host.base import HostMemory
from node_agent.memory.arbiter import Arbiter
from node_agent.memory.enforcer_plan import AbortRow, Evict
from node_agent.metrics import CountedAdmission, GuardMetrics, MemoryCollector, MemorySources
from node_agent.sync.conditions import HealthNow
from tests.support.scripted_pool import ScriptedPool, say


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


async def test_each_answer_of_the_arbiter_is_counted_with_its_reason() -> None:
    registry = CollectorRegistry()
    arbiter = Arbiter(MemoryGuardSpec())
    counted = CountedAdmission(arbiter, GuardMetrics(registry))
    assert isinstance(await counted.admit_load("a", 5), Refusal)
    arbiter.observe(HostMemory(16 << 30, 16 << 30, 0, 0), ())
    assert not isinstance(await counted.admit_load("a", 5), Refusal)
    assert isinstance(await counted.admit_load("a", 1 << 40), Refusal)
    found = scrape(registry)
    name = 'mlxfleet_node_memory_admissions_total{kind="load",outcome="%s"}'
    assert found[name % "admitted"] == 1
    assert found[name % "engine_not_ready_later"] == 1
    assert found[name % "prefill_memory_exceeded_no"] == 1


def test_a_scrape_shows_every_limit_mark_and_level_and_what_the_machine_tells() -> None:
    registry = CollectorRegistry()
    arbiter = Arbiter(MemoryGuardSpec())
    memory = HostMemory(16 << 30, 9 << 30, 0, 0, wired_bytes=3 << 30, available_percent=67)
    arbiter.observe(memory, ())
    guard = GuardInForce(soft_bytes=8, hard_bytes=9, emergency_bytes=10, margin_bytes=1)
    health = HealthNow(level=PressureLevel.SOFT, paused=True, waiting=3)
    sources = MemorySources(lambda: guard, lambda: health, lambda: memory, dict)
    registry.register(MemoryCollector(arbiter, ScriptedPool([], say([])), sources))
    found = scrape(registry)
    prefix = "mlxfleet_node_memory"
    assert found[f'{prefix}_watermark_bytes{{level="hard"}}'] == 9
    assert found[f'{prefix}_pressure{{level="soft"}}'] == 1
    assert found[f'{prefix}_pressure{{level="ok"}}'] == 0
    assert (found[f"{prefix}_waiting"], found[f"{prefix}_paused"]) == (3, 1)
    assert found[f'{prefix}_ceiling_bytes{{kind="hard"}}'] == 9 << 30
    assert found[f'{prefix}_ceiling_binding{{kind="dynamic"}}'] == 1
    assert found["mlxfleet_node_host_wired_bytes"] == 3 << 30
    assert found["mlxfleet_node_host_available_percent"] == 67
    assert "mlxfleet_node_host_swap_used_bytes" not in found
