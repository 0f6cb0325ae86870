"""What a sample says of an engine."""

from typing import Any

from msgspec import structs

from manifests.kinds.engine import EnginePhase
from node_agent.engine.messages import Heartbeat, Loaded
from node_agent.monitor import describe_use
from node_agent.pool.base import EngineView
from tests.support.pools import make_want

BEAT = Heartbeat(
    steps=1,
    step_seconds=0.0,
    running=0,
    waiting=0,
    active_bytes=30,
    cache_bytes=10,
    peak_bytes=99,
)
LOADED = Loaded(
    device="gpu",
    mlx_version="0.32",
    chunk_tokens=512,
    active_bytes=25,
    recommended_working_set_bytes=700,
)


def view(**fields: Any) -> EngineView:
    return EngineView(make_want(), EnginePhase.READY, **fields)


def test_an_engine_without_a_process_holds_nothing() -> None:
    assert describe_use(view(), None) is None


def test_what_mlx_holds_is_active_and_cache_and_never_the_old_peak() -> None:
    use = describe_use(view(pid=7, heartbeat=BEAT, loaded=LOADED), 20)
    assert use is not None
    assert (use.mlx_bytes, use.footprint_bytes, use.measured_bytes) == (40, 20, 40)
    assert (use.weights_bytes, use.recommended_working_set_bytes) == (25, 700)


def test_a_loading_engine_has_no_idle_weights_yet() -> None:
    use = describe_use(view(pid=7), 20)
    assert use is not None
    assert (use.weights_bytes, use.measured_bytes) == (0, 20)


def test_a_heartbeat_from_before_the_last_row_ended_does_not_tell_of_an_engine_at_rest() -> None:
    """Else what it held in mid-prompt would be taken for what it holds while idle."""
    stale = structs.replace(BEAT, running=1)
    before, after = (
        describe_use(view(pid=7, heartbeat=beat, loaded=LOADED), 20) for beat in (stale, BEAT)
    )
    assert before is not None
    assert after is not None
    assert (before.busy, after.busy) == (True, False)
