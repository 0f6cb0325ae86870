"""What a person can do about a refusal: which knob helps, how far, and what fits as it is.

Pure text tables over figures. A knob is named only when turning it is enough by itself, by the
ceilings that a node has computed for it; when none is, the words say so. Called by preflight.
Units: bytes, tokens.
"""

import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass

from manifests.errors import Retryable
from manifests.kinds.guard import Tier
from manifests.kinds.meta import Reported
from manifests.kinds.node import CeilingName, Ceilings
from manifests.sizing.estimate import ModelShape, PrefillCase, estimate_prefill, scale_transient
from manifests.units import GIB, MIB, format_bytes


class Knobs(Reported):
    """What could be turned on a node: its tier now, and the ceilings each easier tier gives.

    `apps_closed_bytes` is what the dynamic ceiling would be without other apps.
    `ceiling_ratio` is below 1 on a machine that panicked: its limits count for less.
    """

    tier: Tier
    ceilings: Ceilings
    apps_closed_bytes: int
    easier: tuple[tuple[Tier, Ceilings], ...] = ()
    ceiling_ratio: float = 1.0


@dataclass(frozen=True, slots=True)
class Fit:
    """How long a prompt may be: with the request's own max_tokens, and with max_tokens 1."""

    prompt_tokens: int
    longest_tokens: int
    longest_alone_tokens: int


@dataclass(frozen=True, slots=True)
class Shortage:
    """A demand that was refused. `limit_bytes` is what it was compared with.

    `binding` names the ceiling behind that limit; `retryable` says which comparison it was:
    NO with what the node can ever give, the others with what is free. `others_bytes` is what
    other models hold there while they serve nothing.
    """

    need_bytes: int
    limit_bytes: int
    binding: CeilingName
    retryable: Retryable
    others_bytes: int = 0
    fit: Fit | None = None

    @property
    def missing_bytes(self) -> int:
        """How much more the ceiling would have to be."""
        return max(0, self.need_bytes - self.limit_bytes)


@dataclass(frozen=True, slots=True)
class Need:
    """What to promise a request: `need_bytes` with what was learned, `least_bytes` without."""

    need_bytes: int
    least_bytes: int


def estimate_need(
    shape: ModelShape, case: PrefillCase, *, fused: bool, transient_ratio: float
) -> Need:
    """Return what a request needs, its transient scaled by what was learned."""
    estimate = estimate_prefill(shape, case, fused=fused)
    transient_bytes = estimate.scores_bytes + estimate.activations_bytes
    scaled_bytes = scale_transient(estimate.peak_bytes, transient_bytes, transient_ratio)
    return Need(scaled_bytes, estimate.peak_bytes)


def plan_fit(
    shape: ModelShape,
    case: PrefillCase,
    limit_bytes: int,
    *,
    fused: bool,
    transient_ratio: float = 1.0,
) -> Fit:
    """Return how long the request's prompt may be to fit into a limit; 0 where none fits.

    `transient_ratio` is what was learned of the engine, as in the verdict.
    """

    def longest(of: PrefillCase) -> int:
        return _longest_tokens(
            lambda shorter: (
                estimate_need(
                    shape, shorter, fused=fused, transient_ratio=transient_ratio
                ).need_bytes
            ),
            of,
            limit_bytes,
        )

    alone = case.model_copy(update={"max_tokens": 1})
    return Fit(case.prompt_tokens, longest(case), longest(alone))


def describe_advice(shortage: Shortage, knobs: Knobs) -> str:
    """Return what helps, as sentences for people. Never names what cannot help."""
    fits = _describe_fit(shortage)
    if shortage.retryable is Retryable.LATER:
        return " ".join(["Try again shortly.", *fits])
    ways = [*_describe_room(shortage), *_describe_setting(shortage, knobs)]
    if ways:
        text = " or ".join(ways)
        return " ".join([f"{text[0].upper()}{text[1:]}.", *fits])
    if fits:
        return " ".join(fits)
    if shortage.retryable is Retryable.NO:
        return "No setting of this node is enough; use a node with more memory."
    return "Unload other models and close other apps on this node, or use another one."


def describe_comparison(need_bytes: int, limit_bytes: int) -> tuple[str, str]:
    """Return both figures so that what they show still compares as the figures do.

    Three digits are enough unless they hide the difference; then the bytes are shown.
    """
    need, limit = format_bytes(need_bytes), format_bytes(limit_bytes)
    if need == limit and need_bytes != limit_bytes:
        return f"{need_bytes} bytes", f"{limit_bytes} bytes"
    return need, limit


def _describe_fit(shortage: Shortage) -> list[str]:
    fit = shortage.fit
    if fit is None:
        return []
    now = "" if shortage.retryable is Retryable.NO else " now"
    if fit.longest_tokens > 0:
        longest = min(fit.longest_tokens, fit.prompt_tokens)
        return [f"With this max_tokens, a prompt of up to {longest} tokens fits{now}."]
    if fit.longest_alone_tokens >= fit.prompt_tokens:
        return [f"The prompt fits{now} with a smaller max_tokens."]
    if fit.longest_alone_tokens > 0:
        longest = fit.longest_alone_tokens
        return [f"With a small max_tokens, a prompt of up to {longest} tokens fits{now}."]
    return []


def _describe_room(shortage: Shortage) -> list[str]:
    """Name who else holds memory; only where the node would be enough without them."""
    if shortage.retryable is not Retryable.ELSEWHERE:
        return []
    held = shortage.others_bytes
    if held and held >= shortage.missing_bytes:
        return [f"unload other models on this node (they hold {format_bytes(held)})"]
    return []


def _describe_setting(shortage: Shortage, knobs: Knobs) -> list[str]:
    """Name the settings that would be enough, for the ceiling that binds."""
    ways = []
    if shortage.binding is CeilingName.METAL:
        ways += _describe_wired_limit(shortage, knobs)
    elif shortage.binding is CeilingName.DYNAMIC and knobs.tier is Tier.CUSTOM:
        ways += _describe_custom_ceiling(shortage, knobs)
    elif shortage.binding is CeilingName.DYNAMIC:
        ways += _describe_other_apps(shortage, knobs)
    return [*ways, *_describe_tier(shortage, knobs)]


def _describe_other_apps(shortage: Shortage, knobs: Knobs) -> list[str]:
    wanted = knobs.ceilings.dynamic_bytes + shortage.missing_bytes
    enough = wanted <= min(knobs.apps_closed_bytes, knobs.ceilings.abort_bytes)
    return ["close other apps on this node"] if enough else []


def _describe_tier(shortage: Shortage, knobs: Knobs) -> list[str]:
    """Name the most careful tier that is enough."""
    wanted = _limit(knobs.ceilings, shortage) + shortage.missing_bytes
    for tier, ceilings in knobs.easier:
        if _limit(ceilings, shortage) >= wanted:
            return [f"set tier {tier.value} in this node's memory guard"]
    return []


def _describe_wired_limit(shortage: Shortage, knobs: Knobs) -> list[str]:
    ceilings = knobs.ceilings
    wanted = (ceilings.metal_bytes or 0) + shortage.missing_bytes
    others = ceilings.static_bytes
    if shortage.retryable is not Retryable.NO or knobs.tier is Tier.CUSTOM:
        others = min(others, ceilings.dynamic_bytes)
    if wanted > others:
        return []
    wanted_mib = math.ceil(wanted / knobs.ceiling_ratio / MIB)
    return [
        f"raise iogpu.wired_limit_mb on this node to at least {wanted_mib} "
        f"(sudo sysctl iogpu.wired_limit_mb={wanted_mib})"
    ]


def _describe_custom_ceiling(shortage: Shortage, knobs: Knobs) -> list[str]:
    wanted = knobs.ceilings.dynamic_bytes + shortage.missing_bytes
    if wanted > knobs.ceilings.abort_bytes:
        return []
    declared = _as_quantity(math.ceil(wanted / knobs.ceiling_ratio))
    return [f"raise customCeiling in this node's memory guard to at least {declared}"]


def _limit(ceilings: Ceilings, shortage: Shortage) -> int:
    """Return the ceiling that the refusal compared with."""
    return ceilings.abort_bytes if shortage.retryable is Retryable.NO else ceilings.hard_bytes


def _as_quantity(count: int) -> str:
    """Return bytes as a Kubernetes quantity, rounded up."""
    if count >= 100 * GIB:
        return f"{math.ceil(count / GIB)}Gi"
    return f"{math.ceil(count / MIB)}Mi"


def _longest_tokens(
    need_bytes: Callable[[PrefillCase], int], case: PrefillCase, limit_bytes: int
) -> int:
    def need_of(tokens: int) -> int:
        cached_tokens = min(case.cached_tokens, tokens)
        return need_bytes(
            case.model_copy(update={"prompt_tokens": tokens, "cached_tokens": cached_tokens})
        )

    return bisect_right(range(1, case.prompt_tokens + 1), limit_bytes, key=need_of)
