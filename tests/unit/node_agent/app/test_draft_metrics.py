"""What engines say of their drafts, as Prometheus reads it."""

from dataclasses import replace

from prometheus_client import CollectorRegistry

from node_agent.draft_metrics import DraftCollector
from node_agent.engine.messages import Heartbeat
from tests.support.scripted_pool import ScriptedPool, say, scripted_view


def test_drafted_and_accepted_tokens_are_counted_by_engine(tmp_path):
    beat = Heartbeat(
        steps=1,
        step_seconds=0.0,
        running=1,
        waiting=0,
        active_bytes=0,
        cache_bytes=0,
        peak_bytes=0,
        drafted_tokens=20,
        accepted_tokens=15,
    )
    told = replace(scripted_view(tmp_path, "told"), heartbeat=beat)
    silent = scripted_view(tmp_path, "silent")
    registry = CollectorRegistry()
    registry.register(DraftCollector(ScriptedPool([told, silent], say([]))))

    def read(name: str, engine: str) -> float | None:
        return registry.get_sample_value(f"mlxfleet_node_draft_{name}_total", {"engine": engine})

    assert (read("tokens", "told-0"), read("accepted_tokens", "told-0")) == (20, 15)
    assert read("tokens", "silent-0") is None
