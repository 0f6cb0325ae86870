"""A running stream keeps its pace while a long prompt is fed, and deadlines hold meanwhile."""

import itertools

import pytest

from manifests.errors import Code
from node_agent.engine.batching.chunking import STRETCH
from node_agent.engine.messages import Failed, Finished, Generate, Tokens
from node_agent.engine.scheduling.pace import GROWTH, MIN_CHUNK_TOKENS
from tests.support.fleet import SMOLLM2
from tests.support.mlx_engine import bare_engine
from tests.support.tiny_models import tiny_model
from tests.support.token_gaps import LONG, greedy_row, measure_gaps

pytestmark = pytest.mark.processes


def test_a_running_stream_keeps_its_pace_while_a_long_prompt_is_fed():
    """It gets a token between any two chunks, and these are cut by time: they begin narrow.

    How long the gaps are is measured by a bench; here it depends on what else the machine does.
    """
    assert SMOLLM2.is_dir(), "run `make models` first"
    with bare_engine(SMOLLM2, chunk_tokens=512) as engine:
        found = measure_gaps(engine, prompt_tokens=500)
    assert sum(found.chunks) == 500
    assert len(found.gaps) >= len(found.chunks) - 1
    assert found.chunks[0] <= GROWTH * MIN_CHUNK_TOKENS
    widest = itertools.accumulate(found.chunks, max, initial=MIN_CHUNK_TOKENS)
    for before, chunk in zip(widest, found.chunks, strict=False):
        assert chunk <= GROWTH * STRETCH * before, found.chunks


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
