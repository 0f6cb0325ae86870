"""Verdicts: fits, never, elsewhere or later, and the knob that helps (B43)."""

import pytest

from manifests.errors import Code, Refusal, Retryable
from manifests.kinds.guard import Tier
from manifests.kinds.node import CeilingName, Ceilings
from manifests.sizing.advice import Knobs
from manifests.sizing.preflight import Standing, judge_load, judge_prefill


def standing(
    *,
    static: int = 100,
    dynamic: int = 100,
    metal: int | None = None,
    used: int = 0,
    reserved: int = 0,
    idle: int = 0,
    all_idle: int = 0,
    margin: int = 0,
    custom: bool = False,
) -> Standing:
    limits = {CeilingName.STATIC: static, CeilingName.DYNAMIC: dynamic}
    if metal is not None:
        limits[CeilingName.METAL] = metal
    binding = min(limits, key=lambda name: limits[name])
    ceilings = Ceilings(
        static_bytes=static,
        dynamic_bytes=dynamic,
        metal_bytes=metal,
        hard_bytes=limits[binding],
        abort_bytes=static if metal is None else min(static, metal),
        binding=binding,
    )
    tier = Tier.CUSTOM if custom else Tier.AGGRESSIVE
    knobs = Knobs(tier=tier, ceilings=ceilings, apps_closed_bytes=200)
    return Standing(ceilings, used, reserved, idle, all_idle, tier, lambda: knobs, margin)


def refused(verdict: Refusal | None) -> Refusal:
    assert verdict is not None
    return verdict


@pytest.mark.parametrize(("need", "fits"), [(54, True), (60, True), (61, False), (120, False)])
def test_a_request_is_admitted_up_to_the_last_byte_of_headroom(need: int, fits: bool) -> None:
    verdict = judge_prefill(need, standing(used=30, reserved=10, idle=30, all_idle=30))
    assert (verdict is None) == fits


def test_what_can_never_fit_is_refused_at_once_with_need_and_limit() -> None:
    verdict = refused(judge_prefill(80, standing(used=30, idle=30, all_idle=30)))
    assert verdict.code is Code.PREFILL_MEMORY_EXCEEDED
    assert verdict.retryable is Retryable.NO
    assert (verdict.estimated_bytes, verdict.limit_bytes) == (80, 70)
    assert verdict.http_status == 413


def test_what_running_requests_keep_out_may_come_later() -> None:
    verdict = refused(judge_prefill(60, standing(used=30, reserved=30, idle=30, all_idle=30)))
    assert verdict.retryable is Retryable.LATER
    assert verdict.limit_bytes == 40
    assert (verdict.http_status, verdict.retry_after_seconds) == (503, 2)


def test_what_other_models_keep_out_belongs_elsewhere() -> None:
    verdict = refused(judge_prefill(60, standing(used=80, idle=30, all_idle=80)))
    assert (verdict.retryable, verdict.http_status) == (Retryable.ELSEWHERE, 413)


def test_what_other_apps_keep_out_belongs_elsewhere_and_names_them() -> None:
    verdict = refused(judge_prefill(40, standing(dynamic=50, used=30, idle=30, all_idle=30)))
    assert (verdict.retryable, verdict.binding) == (Retryable.ELSEWHERE, "dynamic")
    assert "other apps" in verdict.hint


@pytest.mark.parametrize(
    ("where", "knob"),
    [
        (standing(static=50), "a node with more memory"),
        (standing(metal=50), "iogpu.wired_limit_mb"),
        (standing(dynamic=50, custom=True), "customCeiling"),
    ],
)
def test_the_advice_names_the_knob_of_the_binding_ceiling(where: Standing, knob: str) -> None:
    verdict = refused(judge_prefill(90, where))
    assert verdict.retryable is Retryable.NO
    assert verdict.binding == where.ceilings.binding.value
    assert knob in verdict.hint


def test_never_is_judged_by_the_lasting_ceiling_not_by_todays_apps() -> None:
    verdict = refused(judge_prefill(80, standing(dynamic=10)))
    assert verdict.retryable is Retryable.ELSEWHERE
    assert verdict.limit_bytes == 10


def test_a_load_that_other_engines_keep_out_waits_and_an_impossible_one_does_not() -> None:
    assert judge_load(40, standing(used=60)) is None
    assert refused(judge_load(41, standing(used=60))).retryable is Retryable.LATER
    never = refused(judge_load(101, standing(dynamic=70)))
    assert (never.retryable, never.limit_bytes, never.binding) == (Retryable.NO, 100, "static")


def test_the_margin_is_kept_free_of_requests_but_not_of_loads() -> None:
    where = standing(used=30, idle=30, all_idle=30, margin=10)
    assert judge_prefill(60, where) is None
    verdict = refused(judge_prefill(61, where))
    assert (verdict.retryable, verdict.limit_bytes) == (Retryable.NO, 60)
    assert judge_load(70, where) is None
