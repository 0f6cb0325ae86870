"""The estimator never promises less than a prefill takes; measured in a process of its own."""

import pytest

from tests.bench.estimate_accuracy import Case, compare
from tests.support.tiny_models import tiny_model

pytestmark = pytest.mark.processes

CASES = {
    "llama": [Case(1024, 256), Case(2048, 64), Case(1024, 256, rows=2)],
    "gemma3_text": [Case(1024, 256)],
    "deepseek_v3": [Case(512, 256)],
    "mamba2": [Case(512, 256)],
}


@pytest.mark.parametrize("name", sorted(CASES))
def test_a_measured_prefill_stays_within_its_estimate(name: str) -> None:
    for one in compare(tiny_model(name), CASES[name]):
        assert one.measured_bytes <= one.predicted_bytes <= 2 * one.measured_bytes, one
