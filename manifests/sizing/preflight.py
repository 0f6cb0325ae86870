"""The verdict on one demand for memory, before anything is allocated or answered.

Pure: figures in, None or a refusal out. Called by a node's arbiter, which has the last word, and by
the gateway, which asks the same of every node's report before it sends. Units: bytes.
"""

from collections.abc import Callable
from dataclasses import dataclass

from manifests.errors import Code, Refusal, Retryable
from manifests.kinds.guard import Tier
from manifests.kinds.node import CeilingName, Ceilings
from manifests.sizing.advice import Fit, Knobs, Shortage, describe_advice, describe_comparison

RETRY_AFTER_SECONDS = 2

FitWithin = Callable[[int], Fit]


@dataclass(frozen=True, slots=True)
class Standing:
    """What the node holds and has promised at the moment of the verdict.

    `engine_idle_bytes` is what the asking engine holds while idle; `all_idle_bytes` is that of
    every engine together, loads in flight included. `margin_bytes` is kept free for transients.
    `alone` means that nothing is promised to anybody. `find_knobs` is asked for a refusal's words.
    """

    ceilings: Ceilings
    used_bytes: int
    reserved_bytes: int
    engine_idle_bytes: int
    all_idle_bytes: int
    tier: Tier
    find_knobs: Callable[[], Knobs]
    margin_bytes: int = 0
    alone: bool = False

    @property
    def custom(self) -> bool:
        """Whether the dynamic ceiling is the user's own figure, which does not move."""
        return self.tier is Tier.CUSTOM

    @property
    def headroom_bytes(self) -> int:
        """What may still be promised."""
        held = self.used_bytes + self.reserved_bytes + self.margin_bytes
        return self.ceilings.hard_bytes - held

    @property
    def lasting_limit_bytes(self) -> int:
        """The ceiling that does not move with other apps, less the margin."""
        return max(0, self.lasting_ceiling_bytes - self.margin_bytes)

    @property
    def lasting_ceiling_bytes(self) -> int:
        """The ceiling that does not move with other apps."""
        if self.custom:
            return min(self.ceilings.abort_bytes, self.ceilings.dynamic_bytes)
        return self.ceilings.abort_bytes


def clip_need(need_bytes: int, least_bytes: int | None, standing: Standing) -> int:
    """Return what to ask for, given what was learned and what the arithmetic says at least.

    What was learned keeps requests apart, and is never a reason to refuse one that would have the
    node to itself: alone it takes what there is, and the engine's gate shrinks its chunks. So a
    lesson cannot shut the door to the prompts that would correct it.
    """
    if least_bytes is None or need_bytes <= least_bytes:
        return need_bytes
    empty = min(standing.ceilings.hard_bytes - standing.margin_bytes, standing.lasting_limit_bytes)
    most = standing.headroom_bytes if standing.alone else empty - standing.engine_idle_bytes
    return max(least_bytes, min(need_bytes, most))


def _lasting_binding(standing: Standing) -> CeilingName:
    """Name the ceiling behind `lasting_ceiling_bytes`."""
    ceilings, limit = standing.ceilings, standing.lasting_ceiling_bytes
    if limit == ceilings.static_bytes:
        return CeilingName.STATIC
    return CeilingName.METAL if limit == ceilings.metal_bytes else CeilingName.DYNAMIC


def judge_prefill(
    need_bytes: int, standing: Standing, fit_within: FitWithin | None = None
) -> Refusal | None:
    """Return None when the demand fits now, else why not and where or when it would.

    `no`: larger than this node could ever give. `later`: only running requests are in the way.
    `elsewhere`: other models or other apps are, and waiting here need not help.
    """
    if need_bytes <= standing.headroom_bytes:
        return None
    ever = max(0, standing.lasting_limit_bytes - standing.engine_idle_bytes)
    if need_bytes > ever:
        shortage = Shortage(need_bytes, ever, _lasting_binding(standing), Retryable.NO)
        return _refuse_prefill(shortage, standing, fit_within)
    free_when_idle = standing.ceilings.hard_bytes - standing.all_idle_bytes - standing.margin_bytes
    waits = need_bytes <= free_when_idle
    shortage = Shortage(
        need_bytes,
        max(0, standing.headroom_bytes if waits else min(standing.headroom_bytes, free_when_idle)),
        standing.ceilings.binding,
        Retryable.LATER if waits else Retryable.ELSEWHERE,
        others_bytes=max(0, standing.all_idle_bytes - standing.engine_idle_bytes),
    )
    return _refuse_prefill(shortage, standing, fit_within)


_CIRCUMSTANCE: dict[Retryable, str] = {
    Retryable.NO: "this node can give at most {limit} to it",
    Retryable.ELSEWHERE: "{limit} is free on this node beside other models and apps",
    Retryable.LATER: "{limit} is free on this node while other requests run",
}


def _refuse_prefill(
    shortage: Shortage, standing: Standing, fit_within: FitWithin | None
) -> Refusal:
    """Word the refusal: need, limit, which ceiling binds, what helps."""
    fit = None if fit_within is None else fit_within(shortage.limit_bytes)
    told = Shortage(
        shortage.need_bytes,
        shortage.limit_bytes,
        shortage.binding,
        shortage.retryable,
        shortage.others_bytes,
        fit,
    )
    need, limit = describe_comparison(told.need_bytes, told.limit_bytes)
    circumstance = _CIRCUMSTANCE[told.retryable].format(limit=limit)
    return _refusal(f"The request needs {need} of memory, but {circumstance}", told, standing)


def judge_load(need_bytes: int, standing: Standing) -> Refusal | None:
    """Return None when a model's bytes fit now, else why not. A load needs no margin."""
    free = standing.headroom_bytes + standing.margin_bytes
    if need_bytes <= free:
        return None
    ever = need_bytes <= standing.lasting_ceiling_bytes
    limit = max(0, free) if ever else standing.lasting_ceiling_bytes
    shortage = Shortage(
        need_bytes,
        limit,
        standing.ceilings.binding if ever else _lasting_binding(standing),
        Retryable.LATER if ever else Retryable.NO,
        others_bytes=standing.all_idle_bytes,
    )
    need, shown = describe_comparison(need_bytes, limit)
    room = f"{shown} is {'free' if ever else 'all there can be'} on this node"
    return _refusal(f"The model needs {need} of memory, but {room}", shortage, standing)


def _refusal(words: str, shortage: Shortage, standing: Standing) -> Refusal:
    later = shortage.retryable is Retryable.LATER
    ceiling_bytes = _ceiling_bytes(standing.ceilings, shortage.binding)
    _, ceiling = describe_comparison(shortage.need_bytes, ceiling_bytes)
    return Refusal(
        code=Code.PREFILL_MEMORY_EXCEEDED,
        message=f"{words} ({shortage.binding.value} ceiling {ceiling}).",
        retryable=shortage.retryable,
        hint=describe_advice(shortage, standing.find_knobs()),
        estimated_bytes=shortage.need_bytes,
        limit_bytes=shortage.limit_bytes,
        binding=shortage.binding.value,
        retry_after_seconds=RETRY_AFTER_SECONDS if later else None,
        fitting_tokens=None if shortage.fit is None else shortage.fit.longest_tokens,
    )


def _ceiling_bytes(ceilings: Ceilings, binding: CeilingName) -> int:
    """Return one of the three ceilings by its name."""
    if binding is CeilingName.METAL:
        return ceilings.metal_bytes or 0
    return ceilings.static_bytes if binding is CeilingName.STATIC else ceilings.dynamic_bytes
