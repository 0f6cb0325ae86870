"""The verdict on one demand for memory, before anything is allocated or answered.

Pure: figures in, None or a refusal out. Called by the arbiter. Units: bytes.
"""

from dataclasses import dataclass

from manifests.errors import Code, Refusal, Retryable
from manifests.node import CeilingName, Ceilings
from manifests.units import format_bytes

RETRY_AFTER_SECONDS = 2

_ADVICE: dict[CeilingName, str] = {
    CeilingName.STATIC: "Shorten the context or choose a less careful memory guard tier.",
    CeilingName.DYNAMIC: "Close other apps on this node or choose a less careful tier.",
    CeilingName.METAL: "Raise iogpu.wired_limit_mb on this node or shorten the context.",
}
_CUSTOM_ADVICE = "Raise customCeiling in the node's memory guard or shorten the context."


@dataclass(frozen=True, slots=True)
class Standing:
    """What the node holds and has promised at the moment of the verdict.

    `engine_idle_bytes` is what the asking engine holds while idle; `all_idle_bytes` is that of
    every engine together, loads in flight included.
    """

    ceilings: Ceilings
    used_bytes: int
    reserved_bytes: int
    engine_idle_bytes: int
    all_idle_bytes: int
    custom: bool = False

    @property
    def headroom_bytes(self) -> int:
        """What may still be promised."""
        return self.ceilings.hard_bytes - self.used_bytes - self.reserved_bytes

    @property
    def lasting_limit_bytes(self) -> int:
        """The ceiling that does not move with other apps."""
        if self.custom:
            return min(self.ceilings.abort_bytes, self.ceilings.dynamic_bytes)
        return self.ceilings.abort_bytes


def describe_advice(binding: CeilingName, *, custom: bool) -> str:
    """Return which knob helps against one ceiling."""
    if custom and binding is CeilingName.DYNAMIC:
        return _CUSTOM_ADVICE
    return _ADVICE[binding]


def _lasting_binding(standing: Standing) -> CeilingName:
    """Name the ceiling behind `lasting_limit_bytes`."""
    ceilings, limit = standing.ceilings, standing.lasting_limit_bytes
    if limit == ceilings.static_bytes:
        return CeilingName.STATIC
    return CeilingName.METAL if limit == ceilings.metal_bytes else CeilingName.DYNAMIC


def judge_prefill(need_bytes: int, standing: Standing) -> Refusal | None:
    """Return None when the demand fits now, else why not and where or when it would.

    `no`: larger than this node could ever give. `later`: only running requests are in the way.
    `elsewhere`: other models or other apps are, and waiting here need not help.
    """
    if need_bytes <= standing.headroom_bytes:
        return None
    ever = max(0, standing.lasting_limit_bytes - standing.engine_idle_bytes)
    if need_bytes > ever:
        return _refuse(need_bytes, ever, _lasting_binding(standing), Retryable.NO, standing)
    idle = max(0, standing.ceilings.hard_bytes - standing.all_idle_bytes)
    retryable = Retryable.LATER if need_bytes <= idle else Retryable.ELSEWHERE
    limit = max(0, standing.headroom_bytes)
    return _refuse(need_bytes, limit, standing.ceilings.binding, retryable, standing)


_CIRCUMSTANCE: dict[Retryable, str] = {
    Retryable.NO: "this node can give at most {limit} to it",
    Retryable.ELSEWHERE: "{limit} is free on this node beside other models and apps",
    Retryable.LATER: "{limit} is free on this node while other requests run",
}


def _refuse(
    need_bytes: int,
    limit_bytes: int,
    binding: CeilingName,
    retryable: Retryable,
    standing: Standing,
) -> Refusal:
    """Word the refusal: need, limit, which ceiling binds, what helps."""
    circumstance = _CIRCUMSTANCE[retryable].format(limit=format_bytes(limit_bytes))
    later = retryable is Retryable.LATER
    return Refusal(
        code=Code.PREFILL_MEMORY_EXCEEDED,
        message=(
            f"The request needs {format_bytes(need_bytes)} of memory, but {circumstance} "
            f"({binding.value} ceiling {format_bytes(_ceiling_bytes(standing.ceilings, binding))})."
        ),
        retryable=retryable,
        hint="Try again shortly." if later else describe_advice(binding, custom=standing.custom),
        estimated_bytes=need_bytes,
        limit_bytes=limit_bytes,
        binding=binding.value,
        retry_after_seconds=RETRY_AFTER_SECONDS if later else None,
    )


def _ceiling_bytes(ceilings: Ceilings, binding: CeilingName) -> int:
    """Return one of the three ceilings by its name."""
    if binding is CeilingName.METAL:
        return ceilings.metal_bytes or 0
    return ceilings.static_bytes if binding is CeilingName.STATIC else ceilings.dynamic_bytes


def judge_load(need_bytes: int, standing: Standing) -> Refusal | None:
    """Return None when a model's weights fit now, else why not."""
    if need_bytes <= standing.headroom_bytes:
        return None
    ever = need_bytes <= standing.lasting_limit_bytes
    binding = standing.ceilings.binding if ever else _lasting_binding(standing)
    limit = max(0, standing.headroom_bytes) if ever else standing.lasting_limit_bytes
    return Refusal(
        code=Code.PREFILL_MEMORY_EXCEEDED,
        message=(
            f"The model needs {format_bytes(need_bytes)} of memory, but "
            f"{format_bytes(limit)} is {'free' if ever else 'all there can be'} on this node "
            f"({binding.value} ceiling {format_bytes(_ceiling_bytes(standing.ceilings, binding))})."
        ),
        retryable=Retryable.LATER if ever else Retryable.NO,
        hint=describe_advice(binding, custom=standing.custom),
        estimated_bytes=need_bytes,
        limit_bytes=limit,
        binding=binding.value,
    )
