"""The estimator never promises less than prompts take; measured in a process of its own.

Whole requests, cold and from a restored cache, alone and in batches, and every single chunk.
"""

import pytest

from tests.bench.estimate_accuracy import LEAST_CHUNK_BYTES, Case, compare
from tests.support.tiny_models import tiny_model

pytestmark = pytest.mark.processes

CASES = {
    "llama": [
        Case(1024, 256),
        Case(2048, 64),
        Case(1100, 256, rows=3),
        Case(2048, 512, cached_tokens=1024),
    ],
    "gemma3_text": [Case(1024, 256), Case(1024, 256, rows=2), Case(1024, 256, cached_tokens=768)],
    "deepseek_v3": [Case(512, 256), Case(812, 64)],
    "mamba2": [Case(512, 256), Case(600, 128, rows=2)],
    "qwen3_moe": [Case(812, 64)],
    "qwen3_next": [Case(512, 64), Case(1024, 256, cached_tokens=512)],
}

# Blocks of recurrent layers grow with the square of a chunk's width, and lanes halve that.
MOST = {"mamba2": 4.0}


@pytest.mark.parametrize("name", ["llama", "qwen3_moe"])
def test_chunks_behind_long_contexts_in_few_layers_stay_within_theirs(name: str) -> None:
    """One layer is half of what is held; it grows while both halves of a chunk are under way."""
    wide = tiny_model(name, layers=2, hidden=256, heads=2, context=32_768)
    for one in compare(wide, [Case(6_000, 256), Case(5_000, 128, cached_tokens=4_096)]):
        assert one.measured_bytes <= one.predicted_bytes, one
        for chunk in one.chunks:
            assert chunk.measured_bytes <= chunk.predicted_bytes, (one.case, chunk)


@pytest.mark.parametrize("name", sorted(CASES))
def test_measured_prompts_stay_within_their_estimates(name: str) -> None:
    for one in compare(tiny_model(name), CASES[name]):
        assert one.measured_bytes <= one.predicted_bytes, one
        assert one.predicted_bytes <= MOST.get(name, 2.0) * one.measured_bytes, one
        large = [chunk for chunk in one.chunks if chunk.measured_bytes >= LEAST_CHUNK_BYTES]
        assert large, one
        for chunk in large:
            assert chunk.measured_bytes <= chunk.predicted_bytes, (one.case, chunk)
