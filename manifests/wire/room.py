"""What a node judges an engine's requests by, as its load report says it.

A gateway that asks `manifests.sizing.preflight` with these figures gets the node's own verdict of
that moment. Built by the agent's sync, read by the gateway. Units: bytes, tokens.
"""

from dataclasses import replace
from functools import cached_property

from pydantic import Field

from manifests.kinds.guard import Tier
from manifests.kinds.meta import Reported
from manifests.kinds.node import Ceilings
from manifests.sizing.advice import Knobs
from manifests.sizing.preflight import Standing


class EngineRoom(Reported):
    """One engine's standing on its node. Units: bytes; `chunk_tokens` and the default in tokens.

    `absent_bytes` are weights that must come in before it serves, 0 once they have.
    `transient_ratio` is what was learned of its prefills. `givable_bytes` is what its node frees
    for a request that needs it: hot caches, and engines that have nothing to do. `hot_bytes` are
    the hot caches alone.
    """

    tier: Tier
    ceilings: Ceilings
    used_bytes: int
    reserved_bytes: int
    engine_idle_bytes: int
    all_idle_bytes: int
    margin_bytes: int
    alone: bool
    fused: bool
    chunk_tokens: int
    transient_ratio: float = 1.0
    absent_bytes: int = 0
    givable_bytes: int = 0
    hot_bytes: int = 0
    default_output_tokens: int = Field(description="output cap of a request that sets none")
    knobs: Knobs

    @cached_property
    def own_standing(self) -> Standing:
        """What a request is judged against, by the report alone."""
        return Standing(
            ceilings=self.ceilings,
            used_bytes=self.used_bytes + self.absent_bytes,
            reserved_bytes=self.reserved_bytes,
            engine_idle_bytes=self.engine_idle_bytes + self.absent_bytes,
            all_idle_bytes=self.all_idle_bytes + self.absent_bytes,
            tier=self.tier,
            find_knobs=lambda: self.knobs,
            margin_bytes=self.margin_bytes,
            alone=self.alone,
        )

    @cached_property
    def ever_bytes(self) -> int:
        """What the node gives one request of this engine on its best day."""
        standing = self.own_standing
        return max(0, standing.lasting_limit_bytes - standing.engine_idle_bytes)

    def standing(self, held_bytes: int = 0) -> Standing:
        """Return what a request is judged against, `held_bytes` being promised besides."""
        if not held_bytes:
            return self.own_standing
        reserved_bytes = self.reserved_bytes + held_bytes
        return replace(self.own_standing, reserved_bytes=reserved_bytes, alone=False)
