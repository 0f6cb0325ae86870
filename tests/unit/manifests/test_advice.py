"""Advice names the knob of the ceiling that binds, how far to turn it, and never a useless one."""

import json
from typing import Any

import pytest

from manifests.errors import Retryable
from manifests.kinds.guard import MemoryGuardSpec
from manifests.kinds.node import CeilingName
from manifests.sizing.advice import (
    Fit,
    Shortage,
    describe_advice,
    describe_comparison,
    plan_fit,
)
from manifests.sizing.estimate import (
    LayerGroup,
    LayerKind,
    ModelShape,
    PrefillCase,
    estimate_prefill,
)
from manifests.units import GIB, MIB
from node_agent.host.base import HostMemory
from node_agent.memory.knobs import plan_knobs
from node_agent.memory.reading import EngineHistory, MemoryReading, Sample

SHAPE = ModelShape(
    model_type="llama",
    groups=(LayerGroup(kind=LayerKind.FULL, layers=4, bytes_per_token=4096),),
    hidden_size=64,
    intermediate_size=128,
    attention_heads=4,
    kv_heads=2,
    head_dim=16,
    vocab_size=1024,
    dtype_bytes=4,
    context_tokens=131072,
)


def guard(tier: str = "balanced", **fields: Any) -> MemoryGuardSpec:
    return MemoryGuardSpec.model_validate_json(json.dumps({"tier": tier, **fields}))


def reading(
    ram_gib: float = 64, *, free: float = 50, active: float = 4, metal: float | None = None
) -> MemoryReading:
    host = HostMemory(
        ram_bytes=int(ram_gib * GIB),
        free_bytes=int(free * GIB),
        inactive_bytes=0,
        active_bytes=int(active * GIB),
    )
    limit = None if metal is None else int(metal * GIB)
    return MemoryReading(
        host, {"e-0": EngineHistory(1, (Sample(0.0, 4 * GIB, 4 * GIB),), 4 * GIB, True)}, limit
    )


def advise(
    seen: MemoryReading,
    spec: MemoryGuardSpec,
    binding: CeilingName,
    retryable: Retryable = Retryable.NO,
    *,
    need: float = 60,
    limit: float = 54,
    **fields: Any,
) -> str:
    shortage = Shortage(int(need * GIB), int(limit * GIB), binding, retryable, **fields)
    return describe_advice(shortage, plan_knobs(seen, spec))


def test_under_the_static_ceiling_an_easier_tier_is_named_when_it_is_enough() -> None:
    # 64 GiB: balanced leaves 58 GiB, aggressive 60 GiB; one more GiB is missing.
    text = advise(reading(), guard(), CeilingName.STATIC, need=55, limit=54)
    assert text == "Set tier aggressive in this node's memory guard."


def test_the_most_careful_tier_that_is_enough_is_named() -> None:
    text = advise(reading(), guard("safe"), CeilingName.STATIC, need=53, limit=52)
    assert "set tier balanced" in text.lower()


@pytest.mark.parametrize(
    ("seen", "spec"),
    [
        pytest.param(reading(16, free=10), guard("safe"), id="small machines reserve the same"),
        pytest.param(reading(), guard("safe", staticReserve="8Gi"), id="the reserve is overridden"),
        pytest.param(reading(metal=56), guard("safe"), id="metal binds next"),
        pytest.param(reading(), guard("aggressive"), id="there is no easier tier"),
    ],
)
def test_a_tier_that_would_change_nothing_is_not_named(
    seen: MemoryReading, spec: MemoryGuardSpec
) -> None:
    text = advise(seen, spec, CeilingName.STATIC, need=53, limit=52)
    assert text == "No setting of this node is enough; use a node with more memory."


def test_under_metals_ceiling_the_sysctl_is_named_with_its_value_and_the_tier_is_not() -> None:
    text = advise(reading(metal=48), guard("safe"), CeilingName.METAL, need=46, limit=44)
    assert "sudo sysctl iogpu.wired_limit_mb=51200" in text
    assert "tier" not in text


def test_a_wired_limit_past_the_static_ceiling_is_not_recommended() -> None:
    # 64 GiB, safe: static is 56 GiB; metal would have to be 57.
    text = advise(reading(metal=48), guard("safe"), CeilingName.METAL, need=53, limit=44)
    assert "iogpu" not in text


def test_the_wired_limit_of_a_machine_that_panicked_counts_for_less() -> None:
    seen = reading(metal=40)
    host = HostMemory(64 * GIB, 50 * GIB, 0, 0, ceiling_ratio=0.8)
    lowered = MemoryReading(host, seen.engines, seen.recommended_working_set_bytes)
    text = advise(lowered, guard(), CeilingName.METAL, need=32, limit=28)
    assert f"iogpu.wired_limit_mb={36 * 1024 * 5 // 4}" in text


def test_under_the_dynamic_ceiling_other_apps_are_named_and_a_tier_that_is_enough() -> None:
    seen = reading(free=30, active=20)
    text = advise(seen, guard("safe"), CeilingName.DYNAMIC, Retryable.ELSEWHERE, need=40, limit=34)
    assert text == (
        "Close other apps on this node or set tier balanced in this node's memory guard."
    )


def test_other_apps_are_not_blamed_when_closing_them_is_not_enough() -> None:
    seen = reading(free=30, active=1)
    text = advise(seen, guard(), CeilingName.DYNAMIC, Retryable.ELSEWHERE, need=40, limit=30)
    assert "Close other apps on this node" not in text
    assert text.startswith("Unload other models and close other apps")


def test_other_models_are_named_when_they_hold_what_is_missing() -> None:
    text = advise(
        reading(),
        guard("aggressive"),
        CeilingName.STATIC,
        Retryable.ELSEWHERE,
        need=40,
        limit=38,
        others_bytes=12 * GIB,
    )
    assert text == "Unload other models on this node (they hold 12.0 GiB)."


def test_the_custom_ceiling_is_named_with_the_value_that_is_enough() -> None:
    spec = guard("custom", customCeiling="20Gi")
    text = advise(reading(), spec, CeilingName.DYNAMIC, need=17, limit=16)
    assert "raise customCeiling in this node's memory guard to at least 21504Mi" in text.replace(
        "Raise", "raise"
    )
    assert "other apps" not in text
    assert "tier" not in text


def test_a_custom_ceiling_past_the_machine_is_not_recommended() -> None:
    spec = guard("custom", customCeiling="20Gi")
    assert "customCeiling" not in advise(
        reading(metal=22), spec, CeilingName.DYNAMIC, need=20, limit=16
    )


def test_what_waits_is_told_to_try_again_and_not_to_change_settings() -> None:
    fit = Fit(prompt_tokens=1000, longest_tokens=250, longest_alone_tokens=300)
    text = advise(reading(), guard("safe"), CeilingName.STATIC, Retryable.LATER, fit=fit)
    assert text == "Try again shortly. With this max_tokens, a prompt of up to 250 tokens fits now."


@pytest.mark.parametrize(
    ("fit", "words"),
    [
        (Fit(1000, 250, 300), "With this max_tokens, a prompt of up to 250 tokens fits."),
        (Fit(1000, 0, 1000), "The prompt fits with a smaller max_tokens."),
        (Fit(1000, 0, 40), "With a small max_tokens, a prompt of up to 40 tokens fits."),
        (Fit(1000, 0, 0), "No setting of this node is enough; use a node with more memory."),
    ],
)
def test_the_words_say_how_many_tokens_fit(fit: Fit, words: str) -> None:
    spec = guard("aggressive")
    assert advise(reading(), spec, CeilingName.STATIC, fit=fit) == words


@pytest.mark.parametrize("max_tokens", [1, 4096])
@pytest.mark.parametrize("rows", [1, 4])
def test_the_longest_fit_is_exact(max_tokens: int, rows: int) -> None:
    case = PrefillCase(prompt_tokens=100_000, max_tokens=max_tokens, chunk_tokens=512, rows=rows)
    limit = 2 * GIB
    fit = plan_fit(SHAPE, case, limit, fused=False)

    def peak(tokens: int) -> int:
        shorter = case.model_copy(update={"prompt_tokens": tokens})
        return estimate_prefill(SHAPE, shorter, fused=False).peak_bytes

    assert 0 < fit.longest_tokens < case.prompt_tokens
    assert peak(fit.longest_tokens) <= limit < peak(fit.longest_tokens + 1)
    assert fit.longest_alone_tokens >= fit.longest_tokens


def test_what_was_learned_of_an_engine_makes_less_fit() -> None:
    case = PrefillCase(prompt_tokens=100_000, max_tokens=1, chunk_tokens=512)
    plain = plan_fit(SHAPE, case, 2 * GIB, fused=False)
    learned = plan_fit(SHAPE, case, 2 * GIB, fused=False, transient_ratio=2.0)
    assert 0 < learned.longest_tokens < plain.longest_tokens


def test_nothing_fits_into_nothing_and_a_longer_prompt_is_never_offered() -> None:
    case = PrefillCase(prompt_tokens=64, max_tokens=100_000, chunk_tokens=64)
    nothing = plan_fit(SHAPE, case, 0, fused=False)
    assert (nothing.longest_tokens, nothing.longest_alone_tokens) == (0, 0)
    fit = plan_fit(SHAPE, case, 256 * MIB, fused=False)
    assert (fit.longest_tokens, fit.longest_alone_tokens) == (0, 64)


@pytest.mark.parametrize(
    ("need", "limit", "shown"),
    [
        (2 * GIB, GIB, ("2.00 GiB", "1.00 GiB")),
        (GIB + 1, GIB, (f"{GIB + 1} bytes", f"{GIB} bytes")),
        (GIB, GIB, ("1.00 GiB", "1.00 GiB")),
    ],
)
def test_shown_figures_compare_as_the_real_ones_do(
    need: int, limit: int, shown: tuple[str, str]
) -> None:
    assert describe_comparison(need, limit) == shown
