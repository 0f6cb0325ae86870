"""The `MemoryGuard` kind: how careful a node is with its memory.

Figures per tier follow DESIGN §4; every number a tier stands for can be overridden.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from manifests.kinds.meta import Condition, Declared, FleetObject, Positive, Ratio, Reported
from manifests.units import GIB, MIB, Quantity


class Tier(StrEnum):
    """How much of the machine engines may take."""

    SAFE = "safe"
    BALANCED = "balanced"
    AGGRESSIVE = "aggressive"
    CUSTOM = "custom"


@dataclass(frozen=True, slots=True)
class TierFigures:
    """What a tier stands for. Units: bytes and ratios of the ceiling."""

    reserve_bytes: int
    small_machine_reserve_bytes: int
    active_ratio: float
    soft_ratio: float
    hard_ratio: float


SMALL_MACHINE_BYTES = 24 * GIB

TIERS: dict[Tier, TierFigures] = {
    Tier.SAFE: TierFigures(8 * GIB, 4 * GIB, 0.2, 0.85, 0.95),
    Tier.BALANCED: TierFigures(6 * GIB, 4 * GIB, 0.5, 0.90, 0.95),
    Tier.AGGRESSIVE: TierFigures(4 * GIB, 4 * GIB, 0.8, 0.925, 0.95),
    Tier.CUSTOM: TierFigures(2 * GIB, 2 * GIB, 0.0, 0.85, 0.95),
}


class MemoryGuardSpec(Declared):
    """A tier and the numbers that override it; None keeps the tier's figure."""

    tier: Tier = Tier.BALANCED
    static_reserve: Quantity | None = Field(
        default=None, description="RAM left to macOS and other apps"
    )
    active_ratio: Annotated[float, Field(ge=0, le=1)] | None = Field(
        default=None, description="share of other apps' active memory that counts as reclaimable"
    )
    soft_ratio: Ratio | None = None
    hard_ratio: Ratio | None = None
    safe_zone_ratio: Ratio = 0.8
    custom_ceiling: Quantity | None = Field(
        default=None, description="the ceiling of the custom tier"
    )
    prefill_transient_margin: Quantity = Quantity(text="256Mi", bytes=256 * MIB)
    min_chunk_tokens: Positive = 32
    prefill_concurrency: Positive = 1
    wired_limit: Quantity | None = Field(
        default=None, description="expert: MLX's wired limit; None keeps it at 0"
    )
    node_selector: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.tier is Tier.CUSTOM and self.custom_ceiling is None:
            raise ValueError("tier custom needs customCeiling, such as 40Gi")
        if self.tier is not Tier.CUSTOM and self.custom_ceiling is not None:
            raise ValueError("customCeiling is read only with tier: custom")
        figures = TIERS[self.tier]
        soft = figures.soft_ratio if self.soft_ratio is None else self.soft_ratio
        hard = figures.hard_ratio if self.hard_ratio is None else self.hard_ratio
        if soft > hard:
            raise ValueError(f"softRatio {soft} must not exceed hardRatio {hard}")
        return self


class MemoryGuardStatus(Reported):
    """Which nodes follow this guard."""

    observed_generation: int = 0
    nodes: tuple[str, ...] = ()
    conditions: tuple[Condition, ...] = ()


class MemoryGuard(FleetObject):
    """How careful the selected nodes are with their memory."""

    kind: Literal["MemoryGuard"] = "MemoryGuard"
    spec: MemoryGuardSpec = Field(default_factory=MemoryGuardSpec)
    status: MemoryGuardStatus = Field(default_factory=MemoryGuardStatus)
