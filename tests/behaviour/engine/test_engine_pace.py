"""A running stream keeps its pace while a long prompt is fed, and deadlines hold meanwhile."""

import pytest

from manifests.errors import Code
from node_agent.engine.messages import Failed, Finished, Generate, Tokens
from tests.support.fleet import SMOLLM2
from tests.support.mlx_engine import bare_engine
from tests.support.tiny_models import tiny_model
from tests.support.token_gaps import LONG, greedy_row, measure_gaps

pytestmark = pytest.mark.processes


def test_a_running_stream_keeps_its_pace_while_a_long_prompt_is_fed():
    """Chunks of 512 tokens would each keep it waiting for several seconds on a CPU."""
    assert SMOLLM2.is_dir(), "run `make models` first"
    with bare_engine(SMOLLM2, chunk_tokens=512) as engine:
        found = measure_gaps(engine, prompt_tokens=500)
    assert sum(found.chunks) == 500
    assert len(found.gaps) >= 8
    # Other tests may run beside this one, so not every single gap is our doing.
    late = [gap for gap in found.gaps if gap > 1.0]
    assert len(late) <= len(found.gaps) // 10, sorted(found.gaps)[-5:]
    assert max(found.gaps) < 2.5


def test_a_deadline_ends_a_request_while_its_prompt_is_fed_and_nobody_else():
    with bare_engine(tiny_model("llama"), chunk_tokens=16) as engine:
        late = greedy_row(LONG, 100_000, 5)
        late = Generate(request_id=LONG, prompt=late.prompt, max_tokens=5, deadline_seconds=0.5)
        rows = engine.run(late, greedy_row("other", 5, 10))
    failed = rows[LONG][-1]
    assert isinstance(failed, Failed)
    assert (failed.code, failed.retryable) == (Code.DEADLINE_EXCEEDED, "no")
    assert not [event for event in rows[LONG] if isinstance(event, Tokens)]
    assert isinstance(rows["other"][-1], Finished)


def test_a_prompt_of_higher_priority_is_fed_before_one_that_came_earlier():
    with bare_engine(tiny_model("llama"), chunk_tokens=16) as engine:
        low, high = greedy_row("low", 4000, 2), greedy_row("high", 4000, 2)
        high = Generate(request_id="high", prompt=high.prompt, max_tokens=2, priority=1)
        engine.run(low, high)
        ends = [event.request_id for event in engine.seen if isinstance(event, Finished)]
    assert ends == ["high", "low"]
