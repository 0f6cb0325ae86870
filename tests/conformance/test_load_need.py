"""Placement and the node count a model's bytes alike: what was placed is what is asked for."""

from pathlib import Path

import pytest

from controller.placement.fleet import estimate_need
from manifests.kinds.engine import EngineSpec
from manifests.kinds.model import Context, Prefill
from manifests.sizing.estimate import LayerGroup, LayerKind, ModelShape
from manifests.wire.report import Inspection
from node_agent.pool.load_plan import plan_load_bytes
from node_agent.sources.base import ModelFiles
from tests.support.pools import SHAPE

WEIGHTS = 987_654_321
FUSABLE = ModelShape(
    model_type="llama",
    groups=(LayerGroup(kind=LayerKind.FULL, layers=32, bytes_per_token=4096),),
    hidden_size=4096,
    intermediate_size=14336,
    attention_heads=32,
    kv_heads=8,
    head_dim=128,
    vocab_size=128_256,
    dtype_bytes=2,
    context_tokens=131_072,
)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("shape", [SHAPE, FUSABLE])
@pytest.mark.parametrize("changes", [{}, {"chunkTokens": 64}, {"minTokens": 900_000}])
def test_placement_and_node_ask_for_the_same_bytes(
    shape: ModelShape, fused: bool, changes: dict[str, int]
) -> None:
    spec = EngineSpec.model_validate(
        {
            "model": "m",
            "node": "n",
            "revision": "1",
            "source": {"path": "/m"},
            "prefill": {key: value for key, value in changes.items() if key == "chunkTokens"},
            "context": {key: value for key, value in changes.items() if key == "minTokens"},
        }
    )
    placed = estimate_need(
        Inspection(source="/m", weights_bytes=WEIGHTS, fingerprint="f", shape=shape),
        spec.context,
        spec.prefill,
        fused=fused,
    )
    asked = plan_load_bytes(spec, ModelFiles(Path("/m"), WEIGHTS, "f", shape), fused=fused)
    assert placed.needed_bytes == asked


def test_a_fused_node_needs_less_for_the_same_context() -> None:
    known = Inspection(source="/m", weights_bytes=WEIGHTS, fingerprint="f", shape=FUSABLE)
    plain = estimate_need(known, Context(), Prefill())
    fused = estimate_need(known, Context(), Prefill(), fused=True)
    assert fused.needed_bytes < plain.needed_bytes
