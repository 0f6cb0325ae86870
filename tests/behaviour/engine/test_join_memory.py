"""Rows that join a decode batch take no more than is foretold, whatever picks their tokens."""

from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import pytest
from mlx import nn
from mlx_lm.models import llama

from manifests.sizing.estimate import ModelShape, read_shape
from node_agent.engine.batching.batch import BatchRunner
from node_agent.engine.batching.drafts import DraftBook
from node_agent.engine.batching.lanes import Lanes
from node_agent.engine.messages import SamplingParams
from node_agent.engine.meter import MemoryMeter
from node_agent.engine.rows import JoinCost
from node_agent.engine.scheduling.forecast import Forecast
from tests.support.pools import greedy
from tests.support.tiny_configs import tiny_config

ROWS = 8
CHUNK_TOKENS = 64
DECODE_STEPS = 3
FILTERS = {"temperature": 1.0, "top_k": 40, "top_p": 0.9, "min_p": 0.01}
PENALTIES = {"repetition_penalty": 1.1, "presence_penalty": 0.2, "frequency_penalty": 0.1}
ALL = FILTERS | PENALTIES | {"logit_bias": {5: 1.0}}

# What each row samples with, and whether it has filters. Equal samplers run over all rows at once.
KINDS: dict[str, Any] = {
    "greedy": lambda _row: ({"temperature": 0.0}, False),
    "drawn": lambda _row: ({"temperature": 1.0}, False),
    "drawn, seeded": lambda row: ({"temperature": 1.0, "seed": row}, False),
    "filters": lambda _row: (FILTERS, True),
    "filters, seeded": lambda row: (FILTERS | {"seed": row}, True),
    "penalties": lambda _row: (PENALTIES | {"temperature": 0.0}, True),
    "all": lambda _row: (ALL, True),
    "all, seeded": lambda row: (ALL | {"seed": row}, True),
    "all, first only": lambda row: ({"temperature": 0.0} if row else ALL, not row),
    "all, last only": lambda row: (ALL, True) if row == ROWS - 1 else ({"temperature": 0.0}, False),
}


@pytest.fixture(scope="module", params=[32_000, 151_936], ids=["32k", "152k"])
def wide(request: pytest.FixtureRequest) -> tuple[nn.Module, ModelShape]:
    """Return a tiny model with as large a vocabulary as real ones have, and its shape."""
    config = tiny_config("llama", layers=2, hidden=32, context=4096)
    config = config | {"vocab_size": request.param}
    model = llama.Model(llama.ModelArgs.from_dict(config))
    mx.eval(model.parameters())
    return model, read_shape(config)


def joined(model: nn.Module, kind: str) -> Iterator[tuple[JoinCost, int]]:
    """Let rows join one after the other; yield what was foretold of each and what it took."""
    runner = BatchRunner(Lanes(model), CHUNK_TOKENS, ROWS, DraftBook(most_tokens=0))
    meter = MemoryMeter()
    for row in range(ROWS):
        sampling = SamplingParams(**KINDS[kind](row)[0])
        prompt = [10 + (7 * at + 31 * row) % 900 for at in range(41)]
        uid = runner.insert(greedy(str(row), prompt, 100, sampling=sampling))
        while tokens := runner.prompt(uid).next_chunk_tokens(CHUNK_TOKENS):
            runner.feed_together([uid], tokens)
        cost = runner.join_cost(uid, apart=False)
        meter.begin_chunk()
        runner.join(uid, apart=False)
        for _ in range(DECODE_STEPS):
            runner.decode()
        mx.synchronize()
        yield cost, meter.end_chunk()
        meter.clear()


@pytest.mark.parametrize("kind", KINDS)
def test_a_join_and_the_steps_after_it_take_no_more_than_is_foretold(wide, kind):
    model, shape = wide
    forecast = Forecast(shape, fused=False)
    filtered_rows = 0
    for row, (cost, actual_bytes) in enumerate(joined(model, kind)):
        filtered_rows += KINDS[kind](row)[1]
        assert (cost.rows, cost.filtered_rows) == (row + 1, filtered_rows)
        foretold_bytes = forecast.join_bytes(cost)
        assert actual_bytes <= foretold_bytes, (row + 1, actual_bytes / foretold_bytes)
