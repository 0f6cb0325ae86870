from typing import Any, cast

import pytest

from controller.reconcile.revision import build_engine, engine_names, engine_revision
from manifests.kinds.engine import ENGINE_FINALIZER, MODEL_LABEL
from manifests.kinds.model import Model
from manifests.kinds.scheme import dump_object, parse_object


def model(name: str = "qwen", **spec: Any) -> Model:
    raw = {
        "apiVersion": "mlxfleet.dev/v1alpha1",
        "kind": "Model",
        "metadata": {"name": name, "uid": "u1"},
        "spec": {"source": {"path": "/models/x"}, **spec},
    }
    return cast(Model, parse_object(raw))


def revision(**spec: Any) -> str:
    return engine_revision(model(**spec).spec)


@pytest.mark.parametrize(
    "spec",
    [
        {"source": {"path": "/models/y"}},
        {"context": {"maxTokens": 4096}},
        {"prefill": {"chunkTokens": 64}},
        {"memoryGuard": "careful"},
        {"engineType": "speculative"},
        {"aliases": ["gpt-4"]},
        {"keep": {"pinned": True}},
    ],
)
def test_what_an_engine_is_made_from_changes_the_revision(spec: dict[str, Any]) -> None:
    assert revision(**spec) != revision()


@pytest.mark.parametrize(
    "spec",
    [
        {"replicas": 7},
        {"nodeSelector": {"disk": "fast"}},
        {"rollout": {"strategy": "Recreate"}},
        {"context": {"minTokens": 64}},
        {"batching": {"maxRunning": 32}},
    ],
)
def test_scale_place_and_written_out_defaults_do_not_restart_engines(spec: dict[str, Any]) -> None:
    assert revision(**spec) == revision()


def test_an_engine_carries_its_model_settings_owner_and_finalizer() -> None:
    source = model(context={"maxTokens": 4096}, keep={"idleTTL": "5m"})
    engine = build_engine(source, "r1", "qwen-r1-0", "studio")
    assert parse_object(dump_object(engine)) == engine
    assert engine.spec.context == source.spec.context
    assert engine.spec.keep == source.spec.keep
    assert (engine.spec.model, engine.spec.node, engine.spec.revision) == ("qwen", "studio", "r1")
    assert engine.metadata.finalizers == [ENGINE_FINALIZER]
    (owner,) = engine.metadata.owner_references
    assert (owner.kind, owner.uid, owner.controller) == ("Model", "u1", True)
    assert engine.metadata.labels[MODEL_LABEL] == "qwen"


def test_names_are_the_first_free_ones_and_never_too_long() -> None:
    assert engine_names("m", "r", {"m-r-0", "m-r-2"}, 3) == ["m-r-1", "m-r-3", "m-r-4"]
    (name,) = engine_names("x" * 253, "abcdef12", (), 1)
    assert len(name) <= 253
